"""A blob that is cut into the fragments of a code while it comes in, each on its way to the member that stores it.

A member that fails or lags costs its fragment, not the blob, as long as what is durable survives the loss of any one
failure domain (P10), or can at least be read where the pool says that this will do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

from sdrs_core.checksums import Buffer
from sdrs_core.errors import RefusedError, StaleEpochError, UnavailableError
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.assignment import Assignment
from sdrs_storaged.rpc.blobs import BlobStore
from sdrs_storaged.rpc.intake import Intake
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.rpc.striping import CutBlob, Striping
from sdrs_storaged.store.buffers import BufferPool

# A group that lost too many members is about to be re-formed: what it then keeps need not be sent again (P11).
_MOVE_SECONDS = 5.0


class CodedIntake(Intake):
    def __init__(
        self,
        blobs: BlobStore,
        groups: Groups,
        replication: Replication,
        intent: WriteIntent,
        assignment: Assignment,
        buffers: BufferPool,
    ) -> None:
        code = assignment.code
        assert code is not None, "a blob that is stored whole is not cut"
        self._blobs = blobs
        self._groups = groups
        self._replication = replication
        self._intent = intent
        self._assignment = assignment
        self._lock = threading.RLock()
        self._is_open = True
        self._check_enough(assignment.places)
        new = assignment.new
        origin = intent.origin
        self._intents = {
            share: replace(
                intent,
                origin=replace(origin, fragment_index=share, code=str(code), source_size_bytes=intent.size_bytes),
                size_bytes=code.fragment_bytes(intent.size_bytes, share),
            )
            for share in new
        }
        with ExitStack() as opened:
            self._striping = Striping(origin.blob_id, code, intent.size_bytes, buffers, self._put, new.keys())
            opened.callback(self._striping.close)
            own = [share for share, node in new.items() if node == assignment.group.primary]
            self._writers = {share: opened.enter_context(blobs.create(self._intents[share])) for share in own}
            # Closed first: the fragments are sent from the stripes' buffers.
            relays = replication.relaying(assignment, self._intents.__getitem__)
            self._relays = opened.enter_context(relays)
            self._ending = opened.pop_all()
        self._by_share = {relay.share: relay for relay in self._relays}

    def next_block(self) -> memoryview:
        with self._lock:
            self._check_open()
            return self._striping.next_block()

    def commit_block(self, size_bytes: int, digest: bytes | None) -> bytes:
        with self._lock:
            self._check_open()
            return self._striping.commit_block(size_bytes, digest)

    def append(self, block: Buffer, digest: bytes) -> None:
        with self._lock:
            self._check_open()
            self._striping.append(block, digest)

    def _put(self, share: int, digest: bytes, block: memoryview) -> None:
        if share in self._writers:
            self._writers[share].append(block, digest)
        elif share in self._by_share:
            self._by_share[share].put(digest, block)

    def check_wanted(self) -> None:
        self._blobs.check_wanted(self._intent)
        if any(relay.is_lost for relay in self._relays):
            self._check_enough(self._assignment.places.keys() - self._lost())

    def finish(self, summary: pb.BlobSummary) -> pb.StoredBlob:
        with self._lock:
            self._check_open()
            cut = self._striping.finish(summary.size_bytes, summary.hash)
            reach("coded.cut")
            self._relays.end(lambda share: _summary(cut, share))
            try:
                disk_id = self._finish_own(cut)
            finally:
                self._relays.settle()
            reach("coded.settled")
            # What is there of another content is nothing of this blob.
            strange = self._assignment.held.keys() if self._intent.held_hash != cut.hash else ()
            self._check_enough(self._assignment.places.keys() - self._lost() - set(strange))
            return pb.StoredBlob(
                blob_id=self._intent.origin.blob_id, size_bytes=cut.size_bytes, hash=cut.hash, disk_id=disk_id
            )

    def _finish_own(self, cut: CutBlob) -> str:
        """The disk of one of them. A failure of this node's own disk fails the write, as that of any primary."""
        disk_id = ""
        stale: StaleEpochError | None = None
        for share, writer in self._writers.items():
            try:
                disk_id = self._blobs.finish(writer, self._intents[share], _summary(cut, share)).disk_id
            except StaleEpochError as error:
                stale = error  # all that this node has is kept, if anything is (P8)
        if stale is not None:
            raise stale
        return disk_id

    def _lost(self) -> set[int]:
        """What was to be sent to a member, and did not come there."""
        sent = self._intents.keys() - self._writers.keys()
        return {share for share in sent if share not in self._by_share or self._by_share[share].is_lost}

    def _check_enough(self, shares: Iterable[int]) -> None:
        present = list(shares)
        if self._assignment.suffices(present):
            return
        self._check_open()
        group = self._assignment.group
        if not self._replication.lacks_room(group):
            self._groups.block_until(lambda: not self._groups.is_current(group), _MOVE_SECONDS)
        self._groups.check(group.id, group.epoch, as_primary=True)
        raise UnavailableError(
            f"only {len(present)} of {self._assignment.form.total} fragments of blob {self._intent.origin.blob_id} "
            f"can be stored so that losing a failure domain leaves enough: members of group {group.id} fail; try again"
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise RefusedError(f"the write of blob {self._intent.origin.blob_id} is over")

    def close(self) -> None:
        self._is_open = False
        for relay in self._relays:
            relay.give_up()  # whoever waits for a member goes on
        with self._lock:
            self._ending.close()


def _summary(cut: CutBlob, share: int) -> pb.BlobSummary:
    return pb.BlobSummary(
        size_bytes=cut.fragment_bytes(share),
        hash=cut.fragment_hash(share),
        source_size_bytes=cut.size_bytes,
        source_hash=cut.hash,
        source_table=cut.table,
    )
