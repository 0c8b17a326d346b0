"""What a node keeps when its process dies: its identity, and the fragments that were fsynced."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Protocol

from sdrs_core import checksums
from sdrs_core.errors import CorruptDataError
from sdrs_core.ids import BlobId, ClusterId, DiskId, NodeId
from sdrs_storaged.node.identity import _State
from sdrs_storaged.store.fragment import FragmentKey, FragmentOrigin, StoredFragment
from tests.simulation.frames import blocks_of, table_of


@dataclass(frozen=True, slots=True)
class Held:
    """One fragment on one disk. ``table`` is what its footer says, whatever became of its bytes."""

    stored: StoredFragment
    origin: FragmentOrigin
    data: bytes
    table: bytes
    source_table: bytes
    is_synced: bool = True

    @property
    def is_sound(self) -> bool:
        return table_of(self.data) == self.table

    def rotten(self) -> Held:
        """A bit of it flips, unnoticed."""
        return replace(self, data=self.data[:-1] + bytes([self.data[-1] ^ 1]))


class Watcher(Protocol):
    """The checks' ears at a disk."""

    def persisted(self, node_id: NodeId, before: _State | None, after: _State) -> None: ...

    def dropped(self, node_id: NodeId, held: Held) -> None: ...

    def quarantined(self, node_id: NodeId, held: Held) -> None: ...

    def answered(self, node_id: NodeId, group_id: str, epoch: int, epoch_then: int) -> None: ...


@dataclass
class Platter:
    """A node's disks, by their ids. One that is destroyed comes back empty, under another id (P2)."""

    node_id: NodeId
    disks: dict[DiskId, dict[FragmentKey, Held]]
    # Another one for each node that was set up anew under an old name (P2).
    key: str = ""
    identity: _State | None = None
    is_full: bool = False

    @property
    def fragments(self) -> dict[FragmentKey, Held]:
        return {key: held for shelf in self.disks.values() for key, held in shelf.items()}

    def lose_unsynced(self) -> None:
        for disk_id, shelf in self.disks.items():
            self.disks[disk_id] = {key: held for key, held in shelf.items() if held.is_synced}

    def find(self, blob_id: BlobId, index: int) -> list[Held]:
        key = FragmentKey(blob_id, index)
        return [shelf[key] for shelf in self.disks.values() if key in shelf]

    def put(self, held: Held) -> None:
        self.disks[held.stored.disk_id][held.stored.key] = held

    def new_identity(self) -> _State:
        return _State(self.node_id, self.key or f"key of {self.node_id}", ClusterId(""))


class ModelReader:
    """As ``store.reader.FragmentReader``."""

    def __init__(self, held: Held) -> None:
        self.meta = held.origin
        self.key = held.stored.key
        self.path = f"fragment {held.stored.key}"
        self.stored = held.stored
        self.size_bytes = held.stored.size_bytes
        self.fragment_hash = held.stored.fragment_hash
        self.table = held.table
        self.source_size_bytes = held.stored.source_size_bytes
        self.source_hash = held.stored.source_hash
        self.source_table = held.source_table
        self._data = held.data

    def pieces(self, start: int, end: int) -> Generator[memoryview, None, None]:
        yield memoryview(self._data)[start:end]

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        checked_bytes = 0
        for index, block in enumerate(blocks_of(self._data)):
            if checksums.digest(block) != checksums.table_entry(self.table, index):
                raise CorruptDataError(f"block {index} of {self.path} does not match its checksum")
            checked_bytes += len(block)
            if progress is not None:
                progress(checked_bytes)

    def close(self) -> None:
        return None

    def __enter__(self) -> ModelReader:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@dataclass
class Blocks:
    """What comes in of a fragment, block by block."""

    blocks: list[bytes] = field(default_factory=list)
    table: bytes = b""

    def add(self, block: bytes, checksum: bytes) -> None:
        if checksums.digest(block) != checksum:
            raise CorruptDataError("a block does not match its checksum")
        self.blocks.append(block)
        self.table += checksum
