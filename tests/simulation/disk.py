"""A node's disks as its process sees them.

``ModelStore`` has the interface of ``store.engine.FragmentStore`` that the production code of a node uses, over memory.
What it does is told to the checks at once: nothing that counts can change unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path

from sdrs_core import checksums
from sdrs_core.checkpoints import Verdict
from sdrs_core.cluster import Disk, DiskState
from sdrs_core.errors import AlreadyExistsError, CorruptDataError, FullError, NotFoundError, RefusedError
from sdrs_core.ids import BlobId, DiskId
from sdrs_storaged.node.identity import Identity, _State
from sdrs_storaged.store.engine import Verification
from sdrs_storaged.store.fragment import FragmentKey, FragmentOrigin, StoredFragment, check_tables
from tests.simulation.platter import Blocks, Held, ModelReader, Platter, Watcher

_CAPACITY_BYTES = 1 << 20


class ModelIdentity(Identity):
    """The production identity; its file is the platter's."""

    def __init__(self, platter: Platter, watcher: Watcher) -> None:
        super().__init__(Path(f"/{platter.node_id}/node.json"), platter.identity or platter.new_identity())
        self._platter = platter
        self._watcher = watcher
        if platter.identity is None:
            self._persist(self._state)

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
        self._draining: Set[DiskId] = frozenset()
        self.acknowledges_before_fsync = False

    # Writing

    def create(self, origin: FragmentOrigin, size_hint: int | None = None) -> ModelWriter:
        return ModelWriter(self, origin, self._choose_disk())

    def _choose_disk(self) -> DiskId:
        disks = self._platter.disks
        fit = [disk_id for disk_id in disks if disk_id not in self._draining]
        if not fit:
            raise RefusedError("all disks of this node are being drained, it takes nothing new")
        if self._platter.is_full:
            raise FullError(f"the disks of node {self._platter.node_id} are full")
        return min(fit, key=lambda disk_id: len(disks[disk_id]))

    def publish(self, disk_id: DiskId, origin: FragmentOrigin, came: Blocks, source_table: bytes) -> StoredFragment:
        """Durable at once: what comes before is lost with the process, what comes after is not."""
        data = b"".join(came.blocks)
        fragment_hash = checksums.blob_hash(len(data), came.table)
        for known in self._platter.find(*origin.key):
            if known.stored.disk_id not in self._draining:
                # P8: a rename never replaces.
                if known.stored.fragment_hash != fragment_hash or known.stored.code != origin.code:
                    raise AlreadyExistsError(f"blob {origin.blob_id} is here with other content")
                return known.stored
        if disk_id not in self._platter.disks:
            raise NotFoundError(f"disk {disk_id} is gone")
        source_bytes = origin.source_size_bytes if origin.is_coded else len(data)
        source_hash = checksums.blob_hash(source_bytes, source_table) if origin.is_coded else fragment_hash
        stored = StoredFragment(
            origin.blob_id,
            origin.fragment_index,
            origin.save_id,
            disk_id,
            len(data),
            fragment_hash,
            self._clock(),
            origin.code,
            source_bytes,
            source_hash,
        )
        is_synced = not self.acknowledges_before_fsync
        held = Held(stored, origin, data, came.table, source_table if origin.is_coded else came.table, is_synced)
        self._platter.put(held)
        if not is_synced:
            self._sync_later(lambda: self._sync(held))
        return stored

    def _sync(self, held: Held) -> None:
        if held in self._platter.find(*held.stored.key):
            self._platter.put(replace(held, is_synced=True))

    # Looking

    def _find(self, blob_id: BlobId, index: int) -> Held | None:
        """Of several, the one that stays."""
        found = self._platter.find(blob_id, index)
        return min(found, key=lambda held: held.stored.disk_id in self._draining, default=None)

    def open(self, blob_id: BlobId, index: int) -> ModelReader:
        held = self._find(blob_id, index)
        if held is None:
            raise NotFoundError(f"node {self._platter.node_id} has no fragment {index} of blob {blob_id}")
        return ModelReader(held)

    def lookup(self, blob_id: BlobId, index: int) -> StoredFragment | None:
        held = self._find(blob_id, index)
        return held.stored if held else None

    def list(self, after: FragmentKey | None, limit: int) -> list[StoredFragment]:
        names = sorted(key for key in self._platter.fragments if after is None or key > after)
        return [stored for key in names[:limit] if (stored := self.lookup(*key))]

    def verify(
        self,
        blob_id: BlobId,
        index: int,
        expected_hash: str | None = None,
        progress: Callable[[int], None] | None = None,
        compare: Callable[[ModelReader], None] | None = None,
    ) -> Verification:
        result = Verification(Verdict.MISSING, "not here")
        for held in self._platter.find(blob_id, index):
            reader = ModelReader(held)
            try:
                reader.verify(progress)
                if expected_hash not in (None, reader.fragment_hash):
                    result = Verification(Verdict.CORRUPT, "it is sound, and another one")
                    continue
                if compare is not None:
                    compare(reader)
                result = Verification(Verdict.OK)
            except CorruptDataError as error:
                result = Verification(Verdict.CORRUPT, error.message)
                self._quarantine(held)
        return result

    def disks(self) -> Sequence[Disk]:
        state = DiskState.FULL if self._platter.is_full else DiskState.OK
        return [
            Disk(
                disk_id,
                f"/{disk_id}",
                state,
                _CAPACITY_BYTES,
                sum(held.stored.size_bytes for held in shelf.values()),
                len(shelf),
            )
            for disk_id, shelf in self._platter.disks.items()
        ]

    # Letting go

    def set_draining(self, disk_ids: Set[DiskId]) -> None:
        self._draining = disk_ids

    def is_draining(self, stored: StoredFragment) -> bool:
        return stored.disk_id in self._draining

    def drop_drained(self, stored: StoredFragment) -> None:
        for held in self._platter.find(*stored.key):
            if held.stored.disk_id in self._draining and held.stored.disk_id != stored.disk_id:
                self._remove(held)
                self._watcher.dropped(self._platter.node_id, held)

    def delete(self, blob_id: BlobId, index: int) -> bool:
        found = self._platter.find(blob_id, index)
        for held in found:
            self._remove(held)
        for held in found:
            self._watcher.dropped(self._platter.node_id, held)
        return bool(found)

    def quarantine(self, blob_id: BlobId, index: int, reason: str) -> bool:
        found = self._platter.find(blob_id, index)
        for held in found:
            self._quarantine(held)
        return bool(found)

    def _quarantine(self, held: Held) -> None:
        self._remove(held)
        self._watcher.quarantined(self._platter.node_id, held)

    def _remove(self, held: Held) -> None:
        self._platter.disks[held.stored.disk_id].pop(held.stored.key, None)


class ModelWriter:
    def __init__(self, store: ModelStore, origin: FragmentOrigin, disk_id: DiskId) -> None:
        self.meta = origin
        self._store = store
        self._disk_id = disk_id
        self._came = Blocks()
        self._room = bytearray(checksums.BLOCK_BYTES)

    def next_block(self) -> memoryview:
        return memoryview(self._room)

    def commit_block(self, size_bytes: int, digest: bytes) -> None:
        self._came.add(bytes(self._room[:size_bytes]), digest)

    def append(self, block: bytes | memoryview, digest: bytes) -> None:
        self._came.add(bytes(block), digest)

    def check_whole(self, size_bytes: int, fragment_hash: str) -> None:
        came_bytes = sum(map(len, self._came.blocks))
        if came_bytes != size_bytes or checksums.blob_hash(size_bytes, self._came.table) != fragment_hash:
            raise CorruptDataError(f"blob {self.meta.blob_id} does not match its hash")

    def finish(
        self,
        size_bytes: int,
        fragment_hash: str,
        permit: Callable[[], None] | None = None,
        source_table: bytes = b"",
    ) -> StoredFragment:
        self.check_whole(size_bytes, fragment_hash)
        if self.meta.is_coded:
            check_tables(self.meta, size_bytes, self._came.table, source_table)
        if permit is not None:
            permit()
        return self._store.publish(self._disk_id, self.meta, self._came, source_table)

    def abort(self) -> None:
        self._came = Blocks()

    def __enter__(self) -> ModelWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()
