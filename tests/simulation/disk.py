"""What a node keeps when its process dies: its identity, and the fragments that were fsynced.

``ModelStore`` has the interface of ``store.engine.FragmentStore`` that the production code of a node uses, over memory.
What it does is told to the checks at once: nothing that counts can change unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sdrs_core.checkpoints import Verdict
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.cluster import Disk, DiskState
from sdrs_core.errors import AlreadyExistsError, CorruptDataError, FullError, NotFoundError
from sdrs_core.ids import BlobId, ClusterId, DiskId, NodeId
from sdrs_storaged.node.identity import Identity, _State
from sdrs_storaged.store.engine import Verification
from sdrs_storaged.store.fragment import FragmentKey, FragmentOrigin, StoredFragment


@dataclass(frozen=True, slots=True)
class Held:
    stored: StoredFragment
    origin: FragmentOrigin
    data: bytes
    is_synced: bool = True


class Watcher(Protocol):
    """The checks' ears at a disk."""

    def persisted(self, node_id: NodeId, before: _State | None, after: _State) -> None: ...

    def dropped(self, node_id: NodeId, fragment: StoredFragment) -> None: ...

    def answered(self, node_id: NodeId, group_id: str, epoch: int, epoch_then: int) -> None: ...


@dataclass
class Platter:
    """The durable part. A disk that is destroyed comes back empty, under another id (P2)."""

    node_id: NodeId
    disk_id: DiskId
    fragments: dict[FragmentKey, Held] = field(default_factory=dict)
    identity: _State | None = None
    is_full: bool = False

    def lose_unsynced(self) -> None:
        self.fragments = {key: held for key, held in self.fragments.items() if held.is_synced}

    def has(self, blob_id: BlobId, index: int, disk_id: DiskId, fragment_hash: str) -> bool:
        """Whether this very fragment would be there after a power loss."""
        held = self.fragments.get(FragmentKey(blob_id, index))
        return (
            held is not None and held.is_synced and disk_id == self.disk_id and held.stored.blob_hash == fragment_hash
        )


class ModelIdentity(Identity):
    """The production identity; its file is the platter's."""

    def __init__(self, platter: Platter, watcher: Watcher, new: _State) -> None:
        super().__init__(Path(f"/{platter.node_id}/node.json"), platter.identity or new)
        self._platter = platter
        self._watcher = watcher
        if platter.identity is None:
            self._persist(new)

    def _persist(self, state: _State) -> None:
        self._watcher.persisted(self._platter.node_id, self._platter.identity, state)
        self._platter.identity = self._state = state


class ModelStore:
    def __init__(
        self,
        platter: Platter,
        watcher: Watcher,
        clock: Callable[[], float],
        sync_later: Callable[[Callable[[], None]], None],
    ) -> None:
        """``sync_later`` is used only where acknowledgement before fsync is planted."""
        self._platter = platter
        self._watcher = watcher
        self._clock = clock
        self._sync_later = sync_later
        self.acknowledges_before_fsync = False

    def create(self, origin: FragmentOrigin, size_hint: int | None = None) -> ModelWriter:
        if self._platter.is_full:
            raise FullError(f"the disk of node {self._platter.node_id} is full")
        return ModelWriter(self, origin)

    def publish(self, origin: FragmentOrigin, data: bytes, fragment_hash: str) -> StoredFragment:
        """Durable at once: what comes before is lost with the process, what comes after is not."""
        known = self._platter.fragments.get(origin.key)
        if known is not None:
            # P8: a rename never replaces.
            if known.stored.blob_hash != fragment_hash:
                raise AlreadyExistsError(f"blob {origin.blob_id} is here with other content")
            return known.stored
        stored = StoredFragment(
            origin.blob_id,
            origin.fragment_index,
            origin.save_id,
            self._platter.disk_id,
            len(data),
            fragment_hash,
            self._clock(),
        )
        is_synced = not self.acknowledges_before_fsync
        self._platter.fragments[origin.key] = Held(stored, origin, data, is_synced)
        if not is_synced:
            self._sync_later(lambda: self._sync(origin.key))
        return stored

    def _sync(self, key: FragmentKey) -> None:
        held = self._platter.fragments.get(key)
        if held:
            self._platter.fragments[key] = Held(held.stored, held.origin, held.data)

    def open(self, blob_id: BlobId, index: int) -> ModelReader:
        held = self._platter.fragments.get(FragmentKey(blob_id, index))
        if held is None:
            raise NotFoundError(f"node {self._platter.node_id} has no fragment {index} of blob {blob_id}")
        return ModelReader(held)

    def lookup(self, blob_id: BlobId, index: int) -> StoredFragment | None:
        held = self._platter.fragments.get(FragmentKey(blob_id, index))
        return held.stored if held else None

    def list(self, after: FragmentKey | None, limit: int) -> list[StoredFragment]:
        names = sorted(key for key in self._platter.fragments if after is None or key > after)
        return [self._platter.fragments[key].stored for key in names[:limit]]

    def delete(self, blob_id: BlobId, index: int) -> bool:
        held = self._platter.fragments.pop(FragmentKey(blob_id, index), None)
        if held:
            self._watcher.dropped(self._platter.node_id, held.stored)
        return held is not None

    def quarantine(self, blob_id: BlobId, index: int, reason: str) -> bool:
        return self.delete(blob_id, index)

    def verify(
        self,
        blob_id: BlobId,
        index: int,
        expected_hash: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Verification:
        stored = self.lookup(blob_id, index)
        if stored is None:
            return Verification(Verdict.MISSING, "not here")
        is_expected = expected_hash in (None, stored.blob_hash)
        return Verification(Verdict.OK if is_expected else Verdict.CORRUPT)

    def disks(self) -> Sequence[Disk]:
        state = DiskState.FULL if self._platter.is_full else DiskState.OK
        count = len(self._platter.fragments)
        return [Disk(self._platter.disk_id, "/disk", state, 1 << 30, 100 * count, count)]


class ModelWriter:
    def __init__(self, store: ModelStore, origin: FragmentOrigin) -> None:
        self._store = store
        self._origin = origin
        self._blocks: list[bytes] = []

    def append(self, data: bytes, checksum: bytes) -> None:
        if digest(data) != checksum:
            raise CorruptDataError("a block does not match its checksum")
        self._blocks.append(bytes(data))

    def finish(self, size_bytes: int, fragment_hash: str, permit: Callable[[], None] | None = None) -> StoredFragment:
        data = b"".join(self._blocks)
        if len(data) != size_bytes or _hash(self._blocks) != fragment_hash:
            raise CorruptDataError(f"blob {self._origin.blob_id} does not match its hash")
        if permit is not None:
            permit()
        return self._store.publish(self._origin, data, fragment_hash)

    def abort(self) -> None:
        self._blocks = []

    def __enter__(self) -> ModelWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class ModelReader:
    def __init__(self, held: Held) -> None:
        self.meta = held.origin
        self.stored = held.stored
        self.size_bytes = held.stored.size_bytes
        self.blob_hash = held.stored.blob_hash
        self.table = digest(held.data)
        self._data = held.data

    def pieces(self, start: int, end: int) -> Iterator[memoryview]:
        yield memoryview(self._data)[start:end]

    def close(self) -> None:
        return None

    def __enter__(self) -> ModelReader:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _hash(blocks: Sequence[bytes]) -> str:
    return blob_hash(sum(map(len, blocks)), b"".join(map(digest, blocks)))


def new_identity(node_id: NodeId, key: str) -> _State:
    return _State(node_id, key, ClusterId(""))
