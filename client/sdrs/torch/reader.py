"""What DCP calls to load.

1. ``read_metadata`` on all ranks: the last shard of the checkpoint.
2. ``prepare_local_plan`` on all ranks, ``prepare_global_plan`` on the coordinator: all are to read the same generation.
3. ``read_data`` on all ranks: each reads what its plan needs, from whichever shards have it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from sdrs.address import parse_checkpoint_url
from sdrs.restore.readings import read_state
from sdrs.restore.shard_reader import ShardReader, open_shard
from sdrs.restore.targets import ByteCount
from sdrs.torch.clusters import cluster_at
from sdrs.torch.metadata import Place, from_state
from sdrs.torch.reading import BytesRead, Read, TensorRead, load_into, read_all
from sdrs_core.checkpoints import ContentKind, Save
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, RefusedError
from sdrs_core.ids import random_id


class StorageReader(storage.StorageReader):
    """``sdrs://host:port[,host:port...]/job/step``, or ``sdrs:///job/step`` with SDRS_URL.

    Objects that are no tensors are loaded only if torch can do so without running code (``weights_only``), unless
    ``allow_pickle`` says that whoever saved them is trusted. ``read_bytes`` counts what was read of the shards.
    """

    def __init__(self, url: str | os.PathLike[str], *, allow_pickle: bool = False) -> None:
        super().__init__()
        self._url = os.fspath(url)
        parse_checkpoint_url(self._url)
        self._allow_pickle = allow_pickle
        self._save: Save | None = None
        self._places: dict[MetadataIndex, Place] = {}
        self._count = ByteCount()
        self._load_id = random_id()

    @property
    def checkpoint_id(self) -> str:
        return self._url

    @property
    def read_bytes(self) -> int:
        return self._count.read_bytes

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        try:
            parse_checkpoint_url(os.fspath(checkpoint_id))
        except InvalidArgumentError:
            return False
        return True

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._url = os.fspath(checkpoint_id)
            parse_checkpoint_url(self._url)
        self._save = None
        self._places = {}
        self._load_id = random_id()

    # No parameter is called kwargs: DCP would take it for a sign of metadata per rank, and ask for that if this fails.
    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        url, job, step = parse_checkpoint_url(self._url)
        self._save = save = cluster_at(url).checkpoints(job).get(step)
        if save.kind is not ContentKind.STATE:
            raise InvalidArgumentError(f"{save.title} holds files: use restore_files")
        metadata = from_state(read_state([self._open(save.world_size - 1)]).finish())
        metadata.storage_meta = StorageMeta(checkpoint_id=self._url, load_id=self._load_id)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        for plan in plans:
            plan.storage_data = self._found.save_id
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        if plan.storage_data not in (None, self._found.save_id):
            # P16: two generations never mix.
            raise RefusedError(f"{self._found.title} was saved again while the ranks began to load it: load it again")
        lock = threading.Lock()
        read_all([self._read(item, planner, lock) for item in plan.items], self._open)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, item: ReadItem, planner: LoadPlanner, lock: threading.Lock) -> Read:
        where = self._places.get(item.storage_index)
        if where is None or (where.dtype is None) != (item.type == LoadItemType.BYTE_IO):
            raise CorruptDataError(f"the metadata of {self._found.title} has no place for {item.storage_index.fqn!r}")
        if where.dtype is None:
            return BytesRead(where, load_into(planner, item, allow_pickle=self._allow_pickle), lock)
        return TensorRead(item, where, planner, lock)

    @property
    def _found(self) -> Save:
        if self._save is None:
            raise InvalidArgumentError(f"{self._url}: its metadata was not read")
        return self._save

    def _open(self, rank: int) -> ShardReader:
        url, _, _ = parse_checkpoint_url(self._url)
        return open_shard(cluster_at(url).process(), self._found, rank, self._count)
