"""Reading a fragment's file itself: a node on the same host passes it open over its unix socket."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass, field

from sdrs.memory import round_up
from sdrs.rpc.nodes import NodeCalls
from sdrs.transfer import FragmentRange, OpenRange, Summary
from sdrs.transfer.data_channel import SocketRange, read_ticket, summary_of, ticket_renewable
from sdrs_core.errors import CorruptDataError
from sdrs_proto.channel import PASS_FD, PAYLOAD_OFFSET, receive_answer_with_fd
from sdrs_proto.dial import open_channel
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1.storage_pb2 import BlobSummary


class LocalFileSource:
    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    def open(self, fragment: FragmentRange, stall_seconds: float = STALL_SECONDS) -> OpenRange:
        connection = open_channel(self._calls.node, read_ticket(self._calls, fragment, stall_seconds), PASS_FD)
        try:
            connection.settimeout(stall_seconds)
            with ticket_renewable(self._calls.peer):
                message, fd = receive_answer_with_fd(connection, BlobSummary)
        except BaseException:
            connection.close()
            raise
        if fd is None:
            # The unix socket was gone and TCP served instead: a descriptor cannot travel there, the bytes do.
            return SocketRange(connection, summary_of(message), stall_seconds, self._calls.peer)
        connection.close()
        return FileRange(fd, summary_of(message), PAYLOAD_OFFSET + fragment.offset, self._calls.peer)


@dataclass(slots=True)
class FileRange:
    fd: int
    summary: Summary
    position: int
    peer: str
    last_heard: float = 0.0
    is_direct: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_direct = bool(fcntl.fcntl(self.fd, fcntl.F_GETFL) & os.O_DIRECT)

    def read_into(self, target: memoryview, size_bytes: int, within_seconds: float | None = None) -> bool:
        # O_DIRECT moves whole pages: at the end of a blob some of what follows it in the file comes along.
        wanted = target[: round_up(size_bytes) if self.is_direct else size_bytes]
        filled = 0
        try:
            while filled < size_bytes:
                count = os.preadv(self.fd, [wanted[filled:]], self.position + filled)
                if count == 0:
                    raise CorruptDataError(f"the fragment's file at {self.peer} ends too early: it was cut off")
                filled += count
        except OSError as error:
            # An open file fails to be read for one reason, its disk. The node looks itself when this is reported.
            raise CorruptDataError(f"the fragment's file at {self.peer} cannot be read: {error}") from error
        self.position += size_bytes
        self.last_heard = time.monotonic()
        return True

    def close(self) -> None:
        os.close(self.fd)
