"""What becomes of a blob that a client or a primary begins to send: which kind of intake takes it."""

from __future__ import annotations

from sdrs_core.codes import parse_code
from sdrs_core.errors import InvalidArgumentError
from sdrs_proto.limits import MAX_BLOB_BYTES
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.blobs import BlobStore
from sdrs_storaged.rpc.coded_intake import CodedIntake
from sdrs_storaged.rpc.intake import Intake, MirroredIntake
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.store.buffers import BufferPool

# Memory of stripes that waits for the next blob: that of a few blobs under 4+2.
_MAX_IDLE_BUFFERS = 36


class Intakes:
    def __init__(self, blobs: BlobStore, groups: Groups, replication: Replication) -> None:
        self._blobs = blobs
        self._groups = groups
        self._replication = replication
        self._stripes = BufferPool(_MAX_IDLE_BUFFERS)

    def open(self, intent: WriteIntent) -> Intake:
        """Blocks."""
        if intent.relayed:
            return self.open_alone(intent)
        assignment = self._replication.assign(intent)
        if assignment.code is None:
            relaying = self._replication.relaying(assignment, lambda share: intent)
            return MirroredIntake(self._blobs, intent, relaying)
        return CodedIntake(self._blobs, self._groups, self._replication, intent, assignment, self._stripes)

    def open_alone(self, intent: WriteIntent) -> Intake:
        """For a blob that is stored whole, and passed on in another way, or not at all."""
        return MirroredIntake(self._blobs, intent)


def check_announced(intent: WriteIntent) -> None:
    """Whether it can be what it is said to be: a blob, or one fragment that a primary made of one."""
    origin = intent.origin
    code = parse_code(origin.code)
    if code is None:
        if origin.fragment_index or origin.source_size_bytes:
            raise InvalidArgumentError(f"blob {origin.blob_id} is sent whole: it has no fragment index and no source")
        return
    if not intent.relayed:
        raise InvalidArgumentError(f"blob {origin.blob_id}: send it whole, it is cut into fragments by its primary")
    if not 0 < origin.source_size_bytes <= MAX_BLOB_BYTES or origin.fragment_index >= code.total:
        raise InvalidArgumentError(
            f"{code} has no fragment {origin.fragment_index} of a blob of {origin.source_size_bytes} bytes"
        )
    wanted_bytes = code.fragment_bytes(origin.source_size_bytes, origin.fragment_index)
    if intent.size_bytes != wanted_bytes:
        raise InvalidArgumentError(
            f"fragment {origin.fragment_index} of blob {origin.blob_id} has {wanted_bytes} bytes under {code}, not "
            f"{intent.size_bytes}"
        )
