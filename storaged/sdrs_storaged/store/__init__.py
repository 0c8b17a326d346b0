"""Fragments on disk: the only place that writes, reads and deletes a node's data files.

Everything here blocks, is safe to call from several threads, and belongs into a bounded thread pool.
``engine.FragmentStore`` is the door; the files below it do one job each:

- ``fragment``: the file format; pure
- ``claim``: whose folder this is, and the lock on it
- ``capacity``: how full a disk is, and the space that writers reserved
- ``inventory``: the index of a disk's fragments, which can be thrown away
- ``disk``: one data folder, and whether it can still be trusted (I9)
- ``temp_file``, ``writer``: a fragment on its way in; ``shelf``: its way to its final place, and out again
- ``reader``: a fragment on its way out, every block checked (I5)
"""
