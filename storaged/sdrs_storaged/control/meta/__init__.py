"""The MetaStore: the only mutable truth of a cluster.

``store`` is the contract. ``sqlite`` keeps it in one file on one machine, ``memory`` in a dict for tests and the
simulator; ``in_process``, ``changes`` and ``limits`` are what they share. All of them run one contract suite.
"""
