"""The fragments of one node, over all of its disks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from sdrs_core.checkpoints import Verdict
from sdrs_core.cluster import Disk as DiskView
from sdrs_core.errors import (
    CorruptDataError,
    DiskFailedError,
    FullError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    SdrsError,
)
from sdrs_core.ids import BlobId, DiskId
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.fragment import FragmentKey, FragmentMeta, FragmentOrigin, StoredFragment
from sdrs_storaged.store.reader import FragmentReader
from sdrs_storaged.store.shelf import Shelf
from sdrs_storaged.store.writer import FragmentWriter

MAX_LIST_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Verification:
    verdict: Verdict
    detail: str = ""


class FragmentStore:
    """Create, open, look up, verify, quarantine, delete and list fragments.

    Fragments are found by the names of their files, so nothing but listings depends on the inventories.
    ``clock`` gives Unix seconds, for the header only: nothing is decided by it (I8).
    """

    def __init__(self, disks: Sequence[Disk], clock: Callable[[], float]) -> None:
        if not disks:
            raise InvalidArgumentError("a node needs at least one data folder")
        self._disks = tuple(disks)
        self._clock = clock
        self._shelf = Shelf(self._disks)

    def create(self, origin: FragmentOrigin, size_hint: int | None = None) -> FragmentWriter:
        """Begin a fragment on the disk with most room; with ``size_hint`` its space is reserved now."""
        refusal: SdrsError | None = None
        open_disks = [disk for disk in self._disks if not disk.draining]
        if not open_disks:
            raise RefusedError("all disks of this node are being drained, it takes nothing new: use another node")
        for disk in sorted(open_disks, key=Disk.room_bytes, reverse=True):
            meta = FragmentMeta(
                **origin.values(),
                cluster_id=disk.identity.cluster_id,
                node_id=disk.identity.node_id,
                disk_id=disk.disk_id,
                created_unix_seconds=self._clock(),
            )
            try:
                return FragmentWriter(disk, self._shelf, meta, size_hint)
            except (FullError, DiskFailedError) as error:
                # A full disk is the better thing to tell: it is what somebody can do something about.
                if refusal is None or isinstance(error, FullError):
                    refusal = error
        assert refusal is not None
        raise refusal

    def open(self, blob_id: BlobId, index: int) -> FragmentReader:
        """The first sound copy; its blocks are checked as they are read."""
        key = FragmentKey(blob_id, index)
        refusal: SdrsError | None = None
        for disk, _ in self._shelf.holders(key):
            try:
                return FragmentReader(disk, key)
            except NotFoundError:
                continue  # deleted since it was seen
            except SdrsError as error:
                refusal = error
        raise refusal or NotFoundError(f"this node has no fragment {index} of blob {blob_id}", blob_id=blob_id)

    def lookup(self, blob_id: BlobId, index: int) -> StoredFragment | None:
        """What is durable here under this name, by its header and footer; what is damaged is not held."""
        if not self._shelf.is_settled(FragmentKey(blob_id, index)):
            return None
        try:
            with self.open(blob_id, index) as reader:
                return reader.stored
        except (NotFoundError, CorruptDataError):
            return None

    def set_draining(self, disk_ids: Set[DiskId]) -> None:
        """Those of the disks that take nothing new from now on; all others do."""
        for disk in self._disks:
            disk.draining = disk.disk_id in disk_ids

    def is_draining(self, stored: StoredFragment) -> bool:
        """Whether it lies on a disk that it has to leave."""
        return any(disk.draining and disk.disk_id == stored.disk_id for disk in self._disks)

    def drop_drained(self, stored: StoredFragment) -> None:
        """Once ``stored`` is elsewhere, its other copies on disks that are being drained have moved."""
        for disk, _ in self._shelf.holders(stored.key):
            if disk.draining and disk.disk_id != stored.disk_id:
                self._shelf.remove(disk, stored.key)

    def delete(self, blob_id: BlobId, index: int) -> bool:
        """Durably gone when this returns; False if it was not there."""
        key = FragmentKey(blob_id, index)
        removed = [self._shelf.remove(disk, key) for disk, _ in self._shelf.holders(key)]
        return any(removed)

    def quarantine(self, blob_id: BlobId, index: int, reason: str) -> bool:
        """Out of use and out of listings, kept for people to look at; False if it was not there."""
        key = FragmentKey(blob_id, index)
        moved = [self._shelf.quarantine(disk, key, reason) for disk, _ in self._shelf.holders(key)]
        return any(moved)

    def verify(
        self,
        blob_id: BlobId,
        index: int,
        expected_hash: str | None = None,
        progress: Callable[[int], None] | None = None,
        compare: Callable[[FragmentReader], None] | None = None,
    ) -> Verification:
        """Read every block of every copy here; one that is damaged is quarantined.

        One that is sound but not the expected blob is told, and stays: either it or who expects another is wrong, and
        nothing is taken away on doubt (I7). ``compare`` looks further at one that is sound, and raises
        CorruptDataError if it is wrong all the same, another error if that cannot be told now.
        """
        key = FragmentKey(blob_id, index)
        result = Verification(Verdict.MISSING, self._absence(key))
        for disk, path in self._shelf.holders(key):
            # Of the file that is about to be read: a repaired one that takes its name meanwhile is not to blame.
            with suppress(FileNotFoundError):
                inode = path.lstat().st_ino
                try:
                    found = self._verify_copy(disk, key, expected_hash, progress, compare)
                except NotFoundError:
                    continue
                except CorruptDataError as error:
                    result = Verification(Verdict.CORRUPT, error.message)
                    # If it cannot be moved it stays in place: its checksums keep it from being served.
                    with suppress(SdrsError):
                        self._shelf.quarantine(disk, key, error.message, inode)
                    continue
                if result.verdict is Verdict.MISSING or found.verdict is not Verdict.OK:
                    result = found
        return result

    def _absence(self, key: FragmentKey) -> str:
        words = f"this node has no fragment {key.fragment_index} of blob {key.blob_id}"
        aside = next(filter(None, (disk.quarantined(key) for disk in self._disks)), None)
        return f"{words} any more: it was damaged, and lies in {aside}" if aside else words

    def _verify_copy(
        self,
        disk: Disk,
        key: FragmentKey,
        expected_hash: str | None,
        progress: Callable[[int], None] | None,
        compare: Callable[[FragmentReader], None] | None,
    ) -> Verification:
        with FragmentReader(disk, key) as reader:
            reader.verify(progress)
            if expected_hash is None or reader.fragment_hash == expected_hash:
                if compare is not None:
                    compare(reader)
                return Verification(Verdict.OK)
            return Verification(
                Verdict.CORRUPT,
                f"{reader.path} is sound, but has hash {reader.fragment_hash} where {expected_hash} is on record for "
                f"blob {key.blob_id}",
            )

    def list(self, after: FragmentKey | None, limit: int) -> list[StoredFragment]:
        """The next durable fragments in the order of their keys; at the end an empty list.

        An inventory that cannot be read is an error: a short list would look like deleted data (I7).
        """
        if not 0 < limit <= MAX_LIST_LIMIT:
            raise InvalidArgumentError(f"a listing has 1 to {MAX_LIST_LIMIT} entries, not {limit}")
        while True:
            pages = [disk.inventory.list(after, limit) for disk in self._disks]
            merged = list(heapq.merge(*pages, key=lambda stored: stored.key))[:limit]
            found: dict[FragmentKey, StoredFragment] = {}
            for stored in filter(self._still_held, merged):
                # Of a fragment that two disks have, the copy that stays is told.
                if stored.key not in found or self.is_draining(found[stored.key]):
                    found[stored.key] = stored
            if found or not merged:
                return list(found.values())
            after = merged[-1].key

    def _still_held(self, stored: StoredFragment) -> bool:
        if not self._shelf.is_settled(stored.key):
            return False
        disk = next(disk for disk in self._disks if disk.disk_id == stored.disk_id)
        if disk.fragment_path(stored.key).exists():
            return True
        self._shelf.drop_stale_row(disk, stored.key)
        return False

    def disks(self) -> Sequence[DiskView]:
        return [disk.view() for disk in self._disks]

    def close(self) -> None:
        for disk in self._disks:
            disk.close()
