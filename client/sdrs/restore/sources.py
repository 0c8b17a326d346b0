"""The holders of one shard's blobs: who may be asked, what was found damaged, and who is told of it.

Shared by all ranges of a read. What is bad in one fragment is reported at once (I5), beside the read, which goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from sdrs.process import Process
from sdrs.restore.record import Record, code_of, record_from
from sdrs.restore.staged import StagedCopies
from sdrs.transfer import FragmentRange, OpenRange
from sdrs.views import Report
from sdrs_core.checkpoints import Blob, Holder, Save
from sdrs_core.codes import MIRROR
from sdrs_core.errors import CorruptDataError, NotFoundError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId, NodeId, random_id
from sdrs_core.redundancy import share_of
from sdrs_proto.limits import transfer_seconds
from sdrs_proto.v1.control_pb2 import ListShardsRequest, ListShardsResponse, ReportDamageRequest

# After those that are down: fragments with a bad block elsewhere. Every block is checked, so they serve if nobody else
# does.
TAINTED_TIER = 3

# One fragment.
Key = tuple[BlobId, NodeId, int]

log = logging.getLogger("sdrs")


def key_of(blob: Blob, holder: Holder) -> Key:
    return blob.id, holder.node_id, holder.fragment_index


def shares(blob: Blob, holders: Sequence[Holder]) -> int:
    """How many of the pieces that count ``holders`` have: copies, or different fragments."""
    return len({share_of(holder, blob.code) for holder in holders})


class Sources:
    def __init__(self, process: Process, save: Save, record: ListShardsResponse) -> None:
        self.save = save
        self.book = process.holders
        self._control = process.control
        self._routes = process.routes
        self._reports = process.reports
        self._recalls = process.recalls
        # Replaced as a whole: several threads read by it.
        self.record: Record = record_from(record)
        self.rank = self.record.shard.rank
        self.staged = StagedCopies(process.stage, save, self.rank)
        self._lock = threading.Lock()
        self._damaged: dict[Key, CorruptDataError] = {}
        # Those of which nothing can be read, and single blocks of others: (fragment, its block).
        self._lost: set[Key] = set()
        self._bad_blocks: set[tuple[Key, int]] = set()
        self._told: dict[Key, threading.Event] = {}
        self._mirrors_told: set[BlobId] = set()
        self._recall_lock = threading.Lock()
        self._is_recalled = False
        self._not_recalled: SdrsError | None = None

    # Who may be asked

    def usable(self, blob: Blob, stripe_number: int) -> list[Holder]:
        """Those whose block of this stripe may be good; one that is said to be down may not be."""
        return [
            holder
            for holder in blob.holders
            if not holder.dropping
            and (key := key_of(blob, holder)) not in self._lost
            and (key, stripe_number) not in self._bad_blocks
        ]

    def ranked(self, blob: Blob, stripe_number: int, size_bytes: int) -> list[tuple[int, Holder]]:
        record = self.record
        usable = self.usable(blob, stripe_number)
        ranked = self.book.rank(usable, record.policy, up=record.up, size_bytes=size_bytes, near=record.near)
        tainted = [(TAINTED_TIER, holder) for _, holder in ranked if key_of(blob, holder) in self._damaged]
        return [entry for entry in ranked if key_of(blob, entry[1]) not in self._damaged] + tainted

    def looks_well(self, blob: Blob, stripe_number: int) -> bool:
        """Whether enough of its holders are up, and did not just fail."""
        well = self.record.up - self.book.suspects()
        holders = [holder for holder in self.usable(blob, stripe_number) if holder.node_id in well]
        return shares(blob, holders) >= code_of(blob).data

    def open(self, blob: Blob, holder: Holder, offset: int, size_bytes: int, stall_seconds: float) -> OpenRange:
        node = self.record.nodes.get(holder.node_id)
        if node is None:
            raise UnavailableError(f"node {holder.node_id} is not known to the cluster any more")
        fragment = FragmentRange(blob.id, holder.fragment_index, offset, size_bytes)
        return self._routes.open(node, fragment, stall_seconds)

    def refresh(self) -> None:
        """Repair may have moved blobs, and nodes come and gone, since the record was read."""
        request = ListShardsRequest(save_id=self.save.save_id, rank=self.rank, pool=self.save.pool)
        try:
            record = self._control.call("list_shards", request, patience_seconds=0.0)
        except SdrsError as error:
            log.info("%s: its record cannot be read again: %s", self.save.title, error)
        else:
            if record.shards:
                self.record = record_from(record)

    def recall(self, report: Report) -> SdrsError | None:
        """Have the checkpoint brought back from a backup, once; why that was in vain, if it was. Others wait for it."""
        with self._recall_lock:
            if not self._is_recalled:
                self._is_recalled = True
                try:
                    self._recalls.recall(self.save, report)
                    self.refresh()
                except SdrsError as error:
                    self._not_recalled = error
            return self._not_recalled

    def note_mirror(self, blob: Blob) -> None:
        """Told once for each blob: the checkpoint's own pool cannot serve it."""
        if blob.id not in self._mirrors_told:
            self._mirrors_told.add(blob.id)
            where = f"pool {self.save.mirror_pool}" if self.save.mirror_pool else "another pool"
            log.warning(
                "%s, rank %s: blob %s is read from its mirror in %s, because its own pool %s cannot serve it now",
                self.save.title,
                self.rank,
                blob.ordinal,
                where,
                self.save.pool,
            )

    # What is damaged

    def note_damage(self, blob: Blob, holder: Holder, error: SdrsError, stripe_number: int | None) -> None:
        """``stripe_number``: of the one block that is bad; None if it is the whole fragment."""
        key = key_of(blob, holder)
        with self._lock:
            if stripe_number is None:
                self._lost.add(key)
            else:
                self._bad_blocks.add((key, stripe_number))
            if key in self._damaged:
                return
            self._damaged[key] = self._damage(blob, holder, error)
            self._told[key] = self._report(blob, holder)
        log.warning("%s", self._damaged[key])

    def damaged(self, blobs: Sequence[Blob]) -> dict[Key, CorruptDataError]:
        ids = {blob.id for blob in blobs}
        with self._lock:
            return {key: error for key, error in self._damaged.items() if key[0] in ids}

    def wait_until_told(self, keys: Sequence[Key], seconds: float) -> None:
        """The controller has looked at these, and marked the checkpoint if it is bad."""
        for key in keys:
            self._told[key].wait(seconds)

    def _damage(self, blob: Blob, holder: Holder, error: SdrsError) -> CorruptDataError:
        what = "is missing" if isinstance(error, NotFoundError) else f"is damaged: {error}"
        fragment = "" if blob.code == MIRROR else f"fragment {holder.fragment_index} of "
        return CorruptDataError(
            f"{self.save.title}, rank {self.rank}: {fragment}blob {blob.id} on node {holder.node_id} {what}",
            job=self.save.job,
            step=self.save.step,
            rank=self.rank,
            blob_id=blob.id,
            node_id=holder.node_id,
        )

    def _report(self, blob: Blob, holder: Holder) -> threading.Event:
        """Tell the controller, so that it is known and repaired; the event tells that it has looked."""
        request = ReportDamageRequest(
            request_id=random_id(),
            job=self.save.job,
            step=self.save.step,
            save_id=self.save.save_id,
            rank=self.rank,
            blob_id=blob.id,
            node_id=holder.node_id,
        )
        # The controller has the holder look for itself before it answers: it reads the whole fragment again.
        return self._reports.send(request, wait_ms=int(1000 * transfer_seconds(blob.size_bytes)))
