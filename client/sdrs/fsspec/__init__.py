"""``sdrs://`` for fsspec: checkpoints as folders of files.

::

    fsspec.open("sdrs://127.0.0.1:7070/llm-7b/1000/file")      # host:port[,host:port]/job/step/path in the step
    fsspec.open("sdrs:///llm-7b/1000/file")                    # the cluster of SDRS_URL, else the one on this machine

A checkpoint never changes, so a write makes a new generation of its step: the files of the newest one and the new one,
committed when the file is closed. What happens in ``with fs.transaction:`` becomes one generation, or nothing does.

=================  ==============================================================================
``filesystem``     what fsspec calls; ``reader`` is the half of it that looks and reads
``places``         paths taken apart
``files``          one open file
``generations``    what a step holds, and its verified bytes
``trees``          a step's names, and what edits make of them
``writing``        a new generation, though others write as well
``carrying``       how it keeps the blobs of the one before
``batches``        edits that belong together; transactions
``contents``       where a file's bytes come from
``failures``       our errors as Python's
=================  ==============================================================================
"""

from sdrs.fsspec.filesystem import SdrsFileSystem

__all__ = ["SdrsFileSystem"]
