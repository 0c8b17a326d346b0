"""Blobs that come in over gRPC, and the tickets for those that come over the data channel.

A client's blob comes to the primary of its group, which sends copies or fragments to the other members; what a primary
relays is stored and passed on to nobody. The two have slots and threads of their own (P21).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError

from sdrs_core.checksums import BLOCK_BYTES, blob_hash, digest
from sdrs_core.errors import CorruptDataError, ProtocolError
from sdrs_proto.framing import Frame
from sdrs_proto.limits import CALL_SECONDS, STALL_SECONDS
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.transfers import Admission, HeavySlot, Slots, Tickets, WriteIntent
from sdrs_storaged.rpc.assignment import Assignment
from sdrs_storaged.rpc.blobs import BlobStore, stored_to, write_intent_from
from sdrs_storaged.rpc.intake import Intake
from sdrs_storaged.rpc.intakes import Intakes, check_announced
from sdrs_storaged.rpc.recall import Recall
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.rpc.workers import Workers

_SLOT_SECONDS = CALL_SECONDS / 2
# Less than a primary waits for a member's answer, so that it hears that the member is busy.
_MEMBER_SLOT_SECONDS = 2.0
_MAX_BATCH_FRAMES = 64


class Writing:
    def __init__(
        self,
        blobs: BlobStore,
        groups: Groups,
        replication: Replication,
        intakes: Intakes,
        recall: Recall,
        tickets: Tickets,
        *,
        slots: Slots,
        member_slots: Slots,
        workers: Workers,
        member_workers: Workers,
    ) -> None:
        self._blobs = blobs
        self._groups = groups
        self._replication = replication
        self._intakes = intakes
        self._recall = recall
        self._tickets = tickets
        self._slots = slots
        self._member_slots = member_slots
        self._workers = workers
        self._member_workers = member_workers

    async def open(self, request: pb.OpenWriteRequest) -> pb.OpenWriteResponse:
        intent = write_intent_from(request.intent)
        await self._admit(intent)
        intent, stored = await self._look(intent)
        if stored:
            return pb.OpenWriteResponse(already_stored=True, stored=stored)
        slots = await self._take(intent)
        return pb.OpenWriteResponse(ticket=self._tickets.issue(intent, slots))

    async def take_in(self, message: pb.WriteIntent, fill: Callable[[Intake], pb.BlobSummary]) -> pb.StoredBlob:
        """A blob that this daemon has itself, staged: as one of a client, without a socket. ``fill`` runs in a thread,
        and raises if it is not to go on; who is cancelled waits for it.
        """
        intent = write_intent_from(message)
        await self._admit(intent)
        intent, stored = await self._look(intent)
        if stored:
            return stored
        slots = await self._take(intent)
        try:
            return await self._workers.run_through(self._fill, intent, fill)
        finally:
            slots.give()

    def _fill(self, intent: WriteIntent, fill: Callable[[Intake], pb.BlobSummary]) -> pb.StoredBlob:
        with self._intakes.open(intent) as intake:
            return intake.finish(fill(intake))

    async def _look(self, intent: WriteIntent) -> tuple[WriteIntent, pb.StoredBlob | None]:
        """What is there of it already."""
        if self._recall.is_spread(intent):
            return await self._recall.look(intent) if intent.resent else (intent, None)
        # A look at the disk waits for nobody, whoever asks for it.
        stored = await self._member_workers.run(self._blobs.stored, intent)
        return intent, stored_to(stored) if stored else None

    async def write(self, frames: AsyncIterator[Frame]) -> pb.WriteBlobResponse:
        intent = write_intent_from(_parse(pb.WriteIntent, (await _next_frame(frames)).open))
        await self._admit(intent)
        if intent.resent and self._recall.is_spread(intent):
            intent, _ = await self._recall.look(intent)
        slots = await self._take(intent)
        try:
            first = await _gather(frames)
            assignment = None if intent.relayed else self._replication.assign(intent)
            if first[-1].end and (assignment is None or assignment.code is None):
                # A small blob, which most are: one visit to a worker for all of it, and one call to each member.
                stored = await self._write_whole(intent, assignment, first)
            else:
                stored = await self._write_stream(intent, first, frames)
        finally:
            slots.give()
        return pb.WriteBlobResponse(stored=stored)

    async def _admit(self, intent: WriteIntent) -> None:
        check_announced(intent)
        await self._groups.admit(intent.group_id, intent.epoch, as_primary=not intent.relayed)

    async def _take(self, intent: WriteIntent) -> Admission:
        self._tickets.expire()
        if intent.relayed:
            await self._member_slots.take(_MEMBER_SLOT_SECONDS)
            return self._member_slots
        weight = self._weight(intent)
        await self._slots.take(_SLOT_SECONDS, weight)
        return HeavySlot(self._slots, weight)

    def _weight(self, intent: WriteIntent) -> int:
        """P21: a write that goes on to many members holds so many slots that a primary never asks for more members'
        slots than it has itself. If all nodes save at once, none then waits for long for another that waits for it.
        """
        relays = self._replication.relay_count(intent)
        return min(self._slots.count, max(1, -(-self._slots.count * relays // self._member_slots.count)))

    def _workers_for(self, intent: WriteIntent) -> Workers:
        return self._member_workers if intent.relayed else self._workers

    async def _write_whole(
        self, intent: WriteIntent, assignment: Assignment | None, frames: list[Frame]
    ) -> pb.StoredBlob:
        workers = self._workers_for(intent)
        if assignment is None or not assignment.others:
            return await workers.run(self._write_local, intent, frames)
        # What is compared before it is passed on is what a member may be blamed for.
        _check(intent, frames)
        relaying = asyncio.ensure_future(self._replication.relay_small(assignment, intent, frames))
        try:
            return await workers.run(self._write_local, intent, frames)
        finally:
            await relaying

    def _write_local(self, intent: WriteIntent, frames: list[Frame]) -> pb.StoredBlob:
        with self._intakes.open_alone(intent) as intake:
            for frame in frames[:-1]:
                intake.append(frame.data, frame.digest)
            return intake.finish(_summary(frames))

    async def _write_stream(
        self, intent: WriteIntent, batch: list[Frame], frames: AsyncIterator[Frame]
    ) -> pb.StoredBlob:
        workers = self._workers_for(intent)
        intake = await workers.opened(self._intakes.open, intent)
        try:
            while not batch[-1].end:
                await workers.run(_receive, intake, batch)
                batch = await _gather(frames)
            return await workers.run(_finish, intake, batch)
        finally:
            await workers.run(intake.close)


def _receive(intake: Intake, frames: list[Frame]) -> None:
    for frame in frames:
        intake.append(frame.data, frame.digest)
    intake.check_wanted()


def _finish(intake: Intake, frames: list[Frame]) -> pb.StoredBlob:
    _receive(intake, frames[:-1])
    return intake.finish(_summary(frames))


def _summary(frames: list[Frame]) -> pb.BlobSummary:
    return _parse(pb.BlobSummary, frames[-1].end)


def _check(intent: WriteIntent, frames: list[Frame]) -> None:
    table = b""
    for frame in frames[:-1]:
        if digest(frame.data) != frame.digest:
            raise CorruptDataError(
                f"a block of blob {intent.origin.blob_id} does not match the checksum that came with it: send it again"
            )
        table += frame.digest
    summary = _summary(frames)
    size_bytes = sum(len(frame.data) for frame in frames)
    if summary.size_bytes != size_bytes or summary.hash != blob_hash(size_bytes, table):
        raise CorruptDataError(f"blob {intent.origin.blob_id} does not match the hash that came with it: send it again")


async def _gather(frames: AsyncIterator[Frame]) -> list[Frame]:
    """The next frames: up to the last one, or about a block's worth, so that a worker is visited once for several."""
    batch: list[Frame] = []
    size_bytes = 0
    while size_bytes < BLOCK_BYTES and len(batch) < _MAX_BATCH_FRAMES:
        frame = await _next_frame(frames)
        batch.append(frame)
        size_bytes += len(frame.data)
        if frame.end:
            break
    return batch


async def _next_frame(frames: AsyncIterator[Frame]) -> Frame:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await anext(frames)
    except StopAsyncIteration:
        raise ProtocolError("the stream of frames ended before its last frame") from None
    except TimeoutError:
        raise ProtocolError(f"the stream of frames stalled for {STALL_SECONDS} s") from None


M = TypeVar("M", pb.WriteIntent, pb.BlobSummary)


def _parse(kind: type[M], payload: bytes) -> M:
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise ProtocolError(f"a {kind.__name__} cannot be read") from error
