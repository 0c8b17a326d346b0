"""Reading a blob from the memory that it was staged in: a daemon on this host passes it open, for reading only."""

from __future__ import annotations

from google.rpc.status_pb2 import Status

from sdrs.save.stage_session import connect
from sdrs.transfer import OpenRange, Summary
from sdrs.transfer.local_file import FileRange
from sdrs_core.checkpoints import Blob
from sdrs_core.cluster import Node
from sdrs_core.errors import ProtocolError, UnavailableError
from sdrs_core.ids import SaveId
from sdrs_proto.staging import receive_message, send_message
from sdrs_proto.status import from_status
from sdrs_proto.v1.staging_pb2 import ReadStaged, StageEvent, StageRequest

# A daemon that hangs, which shows when it is greeted, is not waited for: disks have the same bytes. Its answer may take
# longer than that if it has to make the checksums first.
GREETING_SECONDS = 0.5
ANSWER_SECONDS = 2.0


def open_staged(node: Node, save_id: SaveId, rank: int, blob: Blob, start: int) -> OpenRange:
    """From ``start`` of ``blob`` on; raises why the node does not have it.

    Its owner may overwrite it at any time: only what was verified after it was read counts (I5).
    """
    request = StageRequest(number=1, read=ReadStaged(save_id=save_id, rank=rank, ordinal=blob.ordinal))
    with connect(node.endpoints.unix, GREETING_SECONDS) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            send_message(connection, request)
        except OSError as error:
            raise UnavailableError(f"node {node.id} took no request: {error}") from error
        received = receive_message(connection, StageEvent)
    if received is None:
        raise UnavailableError(f"node {node.id} closed the staging connection")
    event, fd = received
    if event.status:
        raise from_status(Status.FromString(event.status))
    if fd is None:
        raise ProtocolError(f"node {node.id} has the blob staged, but passed no file")
    summary = Summary.of_copy(event.size_bytes, blob.hash, event.table)
    return FileRange(fd, summary, event.offset + start, f"node {node.id}")
