"""One staged blob to the primary of its group: into this node's own intake, or to another node as a client would.

Blocks are copied out of the segment and hashed there: that hash is the source (P12).
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sdrs_core.checkpoints import SaveState
from sdrs_core.checksums import BLOCK_BYTES, blob_hash, block_spans, digest
from sdrs_core.cluster import Node
from sdrs_core.errors import CorruptDataError, PermissionDeniedError, StaleEpochError, UnavailableError
from sdrs_core.ids import NodeId, random_id
from sdrs_core.packing import sampled_chunks
from sdrs_core.zstd import Kept, PackedBlob, Skipped, pack
from sdrs_proto.convert import save_state_from
from sdrs_proto.dial import DataPortUnreachableError, open_channel
from sdrs_proto.framing import Frame
from sdrs_proto.limits import CALL_SECONDS, SEAL_SECONDS, STALL_SECONDS, transfer_seconds
from sdrs_proto.services import STORAGE, Stub
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_proto.v1.staging_pb2 import StagedBlob
from sdrs_storaged.logs import get_log
from sdrs_storaged.rpc.channels import Channels, call
from sdrs_storaged.rpc.intake import Intake
from sdrs_storaged.rpc.peers import CopyChannel
from sdrs_storaged.rpc.sealing import Sealing
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.rpc.writing import Writing
from sdrs_storaged.staging.segment import Segment

log = get_log("staging")

Passed = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Sent:
    """``table``: the checksums of its blocks; None if an earlier try had stored it."""

    hash: str
    table: bytes | None = None


class BlockSource(Protocol):
    """What a blob is stored as. Its blocks are asked for in order; a new reader begins at the first."""

    @property
    def size_bytes(self) -> int: ...

    def read_into(self, block: memoryview, start: int) -> None: ...


class StagedSource:
    """A blob of a segment, as it is."""

    def __init__(self, segment: Segment, blob: StagedBlob) -> None:
        self.size_bytes = blob.size_bytes
        self._segment = segment
        self._offset = blob.offset

    def read_into(self, block: memoryview, start: int) -> None:
        self._segment.read_into(block, self._offset + start)


class PackedSource:
    """What became of it when it was packed."""

    def __init__(self, packed: PackedBlob) -> None:
        self.size_bytes = packed.size_bytes
        self._packed = packed
        self._segments: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")

    def read_into(self, block: memoryview, start: int) -> None:
        if start == 0:
            self._segments, self._rest = self._packed.segments(), memoryview(b"")
        filled = 0
        while filled < len(block):
            self._rest = self._rest or next(self._segments)
            piece = self._rest[: len(block) - filled]
            block[filled : filled + len(piece)] = piece
            self._rest = self._rest[len(piece) :]
            filled += len(piece)


class BreakOff:
    """Of one try: whoever learns that it is in vain wakes the threads that wait for the other node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: set[CopyChannel] = set()
        self._why = ""

    def cut(self, why: str) -> None:
        with self._lock:
            self._why = self._why or why
            for copy in self._copies:
                copy.shut()

    def check(self) -> None:
        if self._why:
            raise StaleEpochError(f"{self._why}: the transfer was broken off")

    @contextmanager
    def breaking(self, copy: CopyChannel) -> Any:
        with self._lock:
            self.check()
            self._copies.add(copy)
        try:
            yield
        except Exception as error:
            if self._why:
                raise StaleEpochError(f"{self._why}: the transfer was broken off") from error
            raise
        finally:
            with self._lock:
                self._copies.discard(copy)


class Sending:
    def __init__(
        self, node_id: NodeId, writing: Writing, sealing: Sealing, channels: Channels, workers: Workers
    ) -> None:
        """``workers``: threads that wait for other nodes."""
        self.node_id = node_id
        self._writing = writing
        self._sealing = sealing
        self._channels = channels
        self._workers = workers

    async def send(
        self,
        primary: Node,
        intent: pb.WriteIntent,
        blob: BlockSource,
        passed: Passed,
        break_off: BreakOff,
    ) -> Sent:
        """Durable when this returns."""
        if primary.id == self.node_id:
            table: bytes | None = None

            def fill(intake: Intake) -> pb.BlobSummary:
                nonlocal table
                table = _fill(intake, blob, passed)
                return pb.BlobSummary(size_bytes=blob.size_bytes, hash=blob_hash(blob.size_bytes, table))

            stored = await self._writing.take_in(intent, fill)
            if table is None:
                passed(blob.size_bytes)  # from an earlier try (P11)
            return Sent(stored.hash, table)
        request = pb.OpenWriteRequest(request_id=random_id(), intent=intent)
        opened = await call(self._stub(primary).open_write, request, _title(primary), CALL_SECONDS)
        if opened.already_stored:
            passed(blob.size_bytes)
            return Sent(opened.stored.hash)
        try:
            return await self._workers.run_through(self._copy, primary, opened.ticket, blob, passed, break_off)
        except DataPortUnreachableError as error:
            log.warning("data_port_unreachable", node=primary.id, why=error.message)
        return await self._stream(primary, intent, blob, passed)

    def _copy(self, node: Node, ticket: str, blob: BlockSource, passed: Passed, break_off: BreakOff) -> Sent:
        with (
            mmap.mmap(-1, BLOCK_BYTES) as memory,
            memoryview(memory) as buffer,
            CopyChannel(open_channel(node, ticket), _title(node), STALL_SECONDS) as copy,
            break_off.breaking(copy),
        ):
            table = bytearray()
            for start, end in block_spans(0, blob.size_bytes):
                with buffer[: end - start] as block:
                    blob.read_into(block, start)
                    checksum = digest(block)
                    copy.send_block(checksum, block)
                table += checksum
                passed(end - start)
            whole = blob_hash(blob.size_bytes, table)
            try:
                stored = copy.finish(pb.BlobSummary(size_bytes=blob.size_bytes, hash=whole))
            except PermissionDeniedError as error:
                # The ticket was fine when we got it: the node was restarted, and gives another one.
                raise UnavailableError(f"{_title(node)}: {error.message}") from error
        return Sent(_check(stored, whole, node), bytes(table))

    async def _stream(self, node: Node, intent: pb.WriteIntent, blob: BlockSource, passed: Passed) -> Sent:
        """Over gRPC alone, where just that port can be reached."""
        table = bytearray()

        async def frames() -> AsyncIterator[Frame]:
            yield Frame(open=intent.SerializeToString())
            for start, end in block_spans(0, blob.size_bytes):
                block = bytearray(end - start)
                await self._workers.run_through(blob.read_into, memoryview(block), start)
                checksum = digest(block)
                table.extend(checksum)
                yield Frame(digest=checksum, data=memoryview(block))
                passed(end - start)
            summary = pb.BlobSummary(size_bytes=blob.size_bytes, hash=blob_hash(blob.size_bytes, table))
            yield Frame(end=summary.SerializeToString())

        timeout_seconds = transfer_seconds(blob.size_bytes)
        response = await call(self._stub(node).write_blob, frames(), _title(node), timeout_seconds)
        return Sent(_check(response.stored, blob_hash(blob.size_bytes, table), node), bytes(table))

    async def seal(self, primary: Node, request: pb.SealShardRequest) -> SaveState:
        if primary.id == self.node_id:
            return await self._sealing.seal(request)
        timeout_seconds = transfer_seconds(request.shard.size_bytes, SEAL_SECONDS)
        response = await call(self._stub(primary).seal_shard, request, _title(primary), timeout_seconds)
        return save_state_from(response.state)

    def _stub(self, node: Node) -> Stub:
        return self._channels.stub(node.endpoints.grpc, STORAGE)


def _fill(intake: Intake, blob: BlockSource, passed: Passed) -> bytes:
    table = bytearray()
    for start, end in block_spans(0, blob.size_bytes):
        # Copied first, then hashed: the block is ours, the segment is still mapped by the process that filled it.
        blob.read_into(intake.next_block()[: end - start], start)
        table += intake.commit_block(end - start, None)
        intake.check_wanted()
        passed(end - start)
    return bytes(table)


def pack_blob(segment: Segment, blob: StagedBlob, kept: Kept, check: Callable[[], None]) -> PackedBlob | Skipped:
    def samples() -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(BLOCK_BYTES, blob.size_bytes)))
        for number in sampled_chunks(blob.size_bytes):
            start = number * BLOCK_BYTES
            block = buffer[: blob.size_bytes - start]
            segment.read_into(block, blob.offset + start)
            yield block

    return pack(blob.size_bytes, lambda: segment.blocks(blob), samples(), kept, check)


def hash_blob(segment: Segment, blob: StagedBlob) -> str:
    """What it would be stored as."""
    return blob_hash(blob.size_bytes, segment.table(blob))


def _check(stored: pb.StoredBlob, expected_hash: str, node: Node) -> str:
    """I1: only a blob whose hash the node found the same counts."""
    if stored.hash != expected_hash:
        raise CorruptDataError(f"{_title(node)} stored blob {stored.blob_id} with another hash")
    return stored.hash


def _title(node: Node) -> str:
    return f"node {node.id} at {node.endpoints.grpc}"
