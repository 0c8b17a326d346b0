"""torch.distributed.checkpoint (DCP) over SDRS.

::

    from sdrs.torch import StorageReader, StorageWriter
    dcp.save(state, storage_writer=StorageWriter("sdrs://127.0.0.1:7070/llm-7b/1000"))
    dcp.load(state, storage_reader=StorageReader("sdrs://127.0.0.1:7070/llm-7b/1000"))

With N ranks a checkpoint has N + 1 shards: what each rank wrote, and DCP's metadata, which the coordinator saves last.
So it is committed, all at once, when everything is in, and whoever dies before leaves nothing that can be seen.

================  =====================================================================================
``writer``        what DCP calls to save; ``shard`` makes one of a rank's items; ``staging`` copies them
``reader``        what DCP calls to load; ``reading`` brings the bytes of a plan to their tensors
``boxes``         arithmetic: which elements of a stored tensor a part of it consists of
``metadata``      DCP's Metadata as a plain state, and back
``clusters``      one connection for each cluster and process
================  =====================================================================================
"""

from sdrs.torch.reader import StorageReader
from sdrs.torch.writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
