"""Blobs that come in over gRPC, and the tickets for those that come over the data channel.

A client's blob comes to the primary of its group, which sends copies to the other members; what a primary relays is
stored and passed on to nobody. The two have slots and threads of their own (P21).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from google.protobuf.message import DecodeError

from sdrs_core.checksums import BLOCK_BYTES, blob_hash, digest
from sdrs_core.errors import CorruptDataError, ProtocolError
from sdrs_proto.framing import Frame
from sdrs_proto.limits import CALL_SECONDS, STALL_SECONDS
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.transfers import Slots, Tickets, WriteIntent
from sdrs_storaged.rpc.blobs import BlobStore, stored_to, write_intent_from
from sdrs_storaged.rpc.replication import Relays, Replication
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.fragment import StoredFragment
from sdrs_storaged.store.writer import FragmentWriter

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
        self._tickets = tickets
        self._slots = slots
        self._member_slots = member_slots
        self._workers = workers
        self._member_workers = member_workers

    async def open(self, request: pb.OpenWriteRequest) -> pb.OpenWriteResponse:
        intent = write_intent_from(request.intent)
        await self._admit(intent)
        # A look at the disk waits for nobody, whoever asks for it.
        stored = await self._member_workers.run(self._blobs.stored, intent)
        if stored:
            return pb.OpenWriteResponse(already_stored=True, stored=stored_to(stored))
        slots = await self._take(intent)
        return pb.OpenWriteResponse(ticket=self._tickets.issue(intent, slots))

    async def write(self, frames: AsyncIterator[Frame]) -> pb.WriteBlobResponse:
        intent = write_intent_from(_parse(pb.WriteIntent, (await _next_frame(frames)).open))
        await self._admit(intent)
        slots = await self._take(intent)
        try:
            first = await _gather(frames)
            if first[-1].end:
                # A small blob, which most are: one visit to a worker for all of it, and one call to each member.
                stored = await self._write_whole(intent, first)
            else:
                stored = await self._write_stream(intent, first, frames)
        finally:
            slots.give()
        return pb.WriteBlobResponse(stored=stored_to(stored))

    async def _admit(self, intent: WriteIntent) -> None:
        await self._groups.admit(intent.group_id, intent.epoch, as_primary=not intent.relayed)

    async def _take(self, intent: WriteIntent) -> Slots:
        self._tickets.expire()
        slots = self._member_slots if intent.relayed else self._slots
        await slots.take(_MEMBER_SLOT_SECONDS if intent.relayed else _SLOT_SECONDS)
        return slots

    def _workers_for(self, intent: WriteIntent) -> Workers:
        return self._member_workers if intent.relayed else self._workers

    async def _write_whole(self, intent: WriteIntent, frames: list[Frame]) -> StoredFragment:
        workers = self._workers_for(intent)
        if not self._replication.has_members(intent):
            return await workers.run(self._write_local, intent, frames)
        # What is compared before it is passed on is what a member may be blamed for.
        _check(intent, frames)
        relaying = asyncio.ensure_future(self._replication.relay_small(intent, frames))
        try:
            return await workers.run(self._write_local, intent, frames)
        finally:
            await relaying

    def _write_local(self, intent: WriteIntent, frames: list[Frame]) -> StoredFragment:
        with self._blobs.create(intent) as writer:
            for frame in frames[:-1]:
                writer.append(frame.data, frame.digest)
            return self._blobs.finish(writer, intent, *_summary(frames))

    async def _write_stream(
        self, intent: WriteIntent, batch: list[Frame], frames: AsyncIterator[Frame]
    ) -> StoredFragment:
        workers = self._workers_for(intent)
        writer = await workers.opened(self._blobs.create, intent)
        copies = self._replication.relaying(intent)
        try:
            # Entered here, where nobody can hang up in between: what was begun is ended.
            relays = copies.__enter__()
            try:
                while not batch[-1].end:
                    await workers.run(self._receive, writer, intent, relays, batch)
                    batch = await _gather(frames)
                return await workers.run(self._finish, writer, intent, relays, batch)
            finally:
                await workers.run(copies.__exit__, None, None, None)
        finally:
            await workers.run(writer.abort)

    def _receive(self, writer: FragmentWriter, intent: WriteIntent, relays: Relays, frames: list[Frame]) -> None:
        for frame in frames:
            writer.append(frame.data, frame.digest)
            relays.put(frame.digest, frame.data)
        self._blobs.check_wanted(intent)

    def _finish(
        self, writer: FragmentWriter, intent: WriteIntent, relays: Relays, frames: list[Frame]
    ) -> StoredFragment:
        self._receive(writer, intent, relays, frames[:-1])
        size_bytes, whole = _summary(frames)
        writer.check_whole(size_bytes, whole)
        relays.end(pb.BlobSummary(size_bytes=size_bytes, hash=whole))
        try:
            return self._blobs.finish(writer, intent, size_bytes, whole)
        finally:
            relays.settle()


def _summary(frames: list[Frame]) -> tuple[int, str]:
    summary = _parse(pb.BlobSummary, frames[-1].end)
    return summary.size_bytes, summary.hash


def _check(intent: WriteIntent, frames: list[Frame]) -> None:
    table = b""
    for frame in frames[:-1]:
        if digest(frame.data) != frame.digest:
            raise CorruptDataError(
                f"a block of blob {intent.origin.blob_id} does not match the checksum that came with it: send it again"
            )
        table += frame.digest
    size_bytes, whole = _summary(frames)
    if size_bytes != sum(len(frame.data) for frame in frames) or whole != blob_hash(size_bytes, table):
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
