"""The service ``Storage``: clients, and the controller's commands."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError

from sdrs_core.checkpoints import MIRROR, Blob, Holder, Shard
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    ProtocolError,
    SaveFailedError,
    UnavailableError,
)
from sdrs_core.ids import BlobId, GroupId, check_random_id
from sdrs_proto import convert
from sdrs_proto.framing import Frame
from sdrs_proto.limits import CALL_SECONDS, MAX_BLOBS_PER_SHARD, STALL_SECONDS
from sdrs_proto.signing import signature
from sdrs_proto.v1 import membership_pb2
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.receipts import ReceiptQueue
from sdrs_storaged.node.transfers import Slots, Tickets, WriteIntent
from sdrs_storaged.rpc.blobs import BlobStore, read_intent_from, stored_to, summary_of, write_intent_from
from sdrs_storaged.rpc.edge import page_size
from sdrs_storaged.store.engine import FragmentStore, Verification
from sdrs_storaged.store.fragment import FragmentKey, StoredFragment
from sdrs_storaged.store.reader import FragmentReader
from sdrs_storaged.store.writer import FragmentWriter

T = TypeVar("T")
C = TypeVar("C", FragmentReader, FragmentWriter)

_SLOT_SECONDS = CALL_SECONDS / 2
_VERIFY_SLOT_SECONDS = 60.0
_PROGRESS_SECONDS = 0.2
_MAX_BATCH_FRAMES = 64


class StorageService:
    def __init__(
        self,
        store: FragmentStore,
        blobs: BlobStore,
        identity: Identity,
        receipts: ReceiptQueue,
        tickets: Tickets,
        *,
        writes: Slots,
        reads: Slots,
        verifies: Slots,
        workers: Executor,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._identity = identity
        self._receipts = receipts
        self._tickets = tickets
        self._writes = writes
        self._reads = reads
        self._verifies = verifies
        self._workers = workers

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        """Blocking work, off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, partial(work, *args))

    async def _run_through(self, work: Callable[..., T], *args: object) -> T:
        """As ``_run``, but who is cancelled waits until the thread is done, and may then clean up after it."""
        running = asyncio.ensure_future(self._run(work, *args))
        try:
            return await asyncio.shield(running)
        finally:
            await asyncio.wait([running])

    async def _take(self, slots: Slots) -> None:
        self._tickets.expire()
        await slots.take(_SLOT_SECONDS)

    async def _opened(self, work: Callable[..., C], *args: object) -> C:
        """As ``_run``; if the caller hangs up meanwhile, what comes of it is closed again."""
        opening = asyncio.ensure_future(self._run(work, *args))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_late)
            raise

    def _close_late(self, opening: asyncio.Future[C]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._workers.submit(opening.result().__exit__, None, None, None)

    # Bytes

    async def open_write(self, request: pb.OpenWriteRequest) -> pb.OpenWriteResponse:
        intent = write_intent_from(request.intent)
        stored = await self._run(self._blobs.stored, intent)
        if stored:
            return pb.OpenWriteResponse(already_stored=True, stored=stored_to(stored))
        await self._take(self._writes)
        return pb.OpenWriteResponse(ticket=self._tickets.issue(intent, self._writes))

    async def open_read(self, request: pb.OpenReadRequest) -> pb.OpenReadResponse:
        intent = read_intent_from(request)
        await self._take(self._reads)
        return pb.OpenReadResponse(ticket=self._tickets.issue(intent, self._reads))

    async def write_blob(self, frames: AsyncIterator[Frame]) -> pb.WriteBlobResponse:
        intent = write_intent_from(_parse(pb.WriteIntent, (await _next_frame(frames)).open))
        await self._take(self._writes)
        try:
            first = await _gather(frames)
            if first[-1].end:
                # A small blob, which most are: one visit to a worker for all of it.
                stored = await self._run(self._write_whole, intent, first)
            else:
                stored = await self._write_stream(intent, first, frames)
        finally:
            self._writes.give()
        return pb.WriteBlobResponse(stored=stored_to(stored))

    def _write_whole(self, intent: WriteIntent, frames: list[Frame]) -> StoredFragment:
        with self._blobs.create(intent) as writer:
            return self._finish(writer, intent, frames)

    async def _write_stream(
        self, intent: WriteIntent, batch: list[Frame], frames: AsyncIterator[Frame]
    ) -> StoredFragment:
        writer = await self._opened(self._blobs.create, intent)
        try:
            while not batch[-1].end:
                await self._run(_append, writer, batch)
                batch = await _gather(frames)
            return await self._run(self._finish, writer, intent, batch)
        finally:
            await self._run(writer.abort)

    def _finish(self, writer: FragmentWriter, intent: WriteIntent, batch: list[Frame]) -> StoredFragment:
        _append(writer, batch[:-1])
        summary = _parse(pb.BlobSummary, batch[-1].end)
        return self._blobs.finish(writer, intent, summary.size_bytes, summary.hash)

    async def read_blob(self, request: pb.ReadBlobRequest) -> AsyncIterator[Frame]:
        intent = read_intent_from(request)
        await self._take(self._reads)
        try:
            reader = await self._opened(self._blobs.open, intent)
            with reader:
                yield Frame(open=summary_of(reader).SerializeToString())
                end = intent.offset + intent.length if intent.length else reader.size_bytes
                pieces = reader.pieces(intent.offset, end)
                try:
                    while (piece := await self._run_through(next, pieces, None)) is not None:
                        # A frame is made into bytes before the next one is asked for, so the piece need not be copied.
                        for start in range(0, len(piece), BLOCK_BYTES):
                            yield Frame(data=piece[start : start + BLOCK_BYTES])
                finally:
                    await self._run(pieces.close)
                self._blobs.count_sent(end - intent.offset)
        finally:
            self._reads.give()

    # Receipts

    async def seal_shard(self, request: pb.SealShardRequest) -> pb.SealShardResponse:
        shard = convert.shard_from(request.shard)
        if not 1 <= len(shard.blobs) <= MAX_BLOBS_PER_SHARD:
            raise InvalidArgumentError(f"a shard has 1 to {MAX_BLOBS_PER_SHARD} blobs, not {len(shard.blobs)}")
        held = await self._run(self._with_holders, shard, GroupId(request.group_id), request.epoch)
        receipt = membership_pb2.Receipt(
            capability=request.capability,
            job=request.job,
            step=request.step,
            attempt=request.attempt,
            group_id=request.group_id,
            epoch=request.epoch,
            shard=convert.shard_to(held),
        )
        state = await self._receipts.register(receipt)
        await self._run(self._identity.learn_epoch, GroupId(request.group_id), request.epoch)
        return pb.SealShardResponse(state=convert.save_state_to(state))

    def _with_holders(self, shard: Shard, group_id: GroupId, epoch: int) -> Shard:
        """I1, P5: the node vouches for what it finds durable on its own disks, not for what a client names."""
        self._identity.check_epoch(group_id, epoch)
        blobs = []
        for blob in shard.blobs:
            check_random_id(blob.id, "blob id")
            found = self._store.lookup(blob.id, 0)
            if found is None or (found.save_id, found.size_bytes, found.blob_hash) != (
                shard.save_id,
                blob.size_bytes,
                blob.hash,
            ):
                raise SaveFailedError(
                    f"blob {blob.id} of rank {shard.rank} is not durable on node {self._identity.node_id}: send "
                    f"it again"
                )
            holder = Holder(self._identity.node_id, found.disk_id, 0, found.blob_hash)
            blobs.append(Blob(blob.id, blob.ordinal, blob.size_bytes, blob.hash, MIRROR, (holder,)))
        return replace(shard, size_bytes=sum(blob.size_bytes for blob in blobs), blobs=tuple(blobs))

    # Commands

    async def verify_fragment(self, request: pb.VerifyFragmentRequest) -> AsyncIterator[pb.VerifyFragmentResponse]:
        blob_id = BlobId(check_random_id(request.blob_id, "blob id"))
        checked_bytes = 0
        is_wanted = True

        def progress(count: int) -> None:
            nonlocal checked_bytes
            checked_bytes = count
            if not is_wanted:
                raise UnavailableError("nobody waits for this verification any more")

        await self._verifies.take(_VERIFY_SLOT_SECONDS)
        work = asyncio.ensure_future(
            self._run(self._store.verify, blob_id, request.fragment_index, request.expected_hash or None, progress)
        )
        # Until the reading has ended, which is later than this call if its caller hangs up.
        work.add_done_callback(self._verified)
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_PROGRESS_SECONDS)
                yield pb.VerifyFragmentResponse(checked_bytes=checked_bytes)
        finally:
            is_wanted = False
        found = work.result()
        yield pb.VerifyFragmentResponse(
            checked_bytes=checked_bytes, verdict=convert.verdict_to(found.verdict), detail=found.detail
        )

    def _verified(self, work: asyncio.Future[Verification]) -> None:
        self._verifies.give()
        if not work.cancelled():
            work.exception()  # heard, also if nobody asks for it

    async def list_fragments(self, request: pb.ListFragmentsRequest) -> pb.ListFragmentsResponse:
        limit = page_size(request.page_size)
        after = _page_token(request.page_token)
        found = await self._run(self._store.list, after, limit)
        fragments = [
            pb.FragmentInfo(
                blob_id=stored.blob_id,
                fragment_index=stored.fragment_index,
                save_id=stored.save_id,
                size_bytes=stored.size_bytes,
                created_unix_ms=int(stored.created_unix_seconds * 1000),
            )
            for stored in found
        ]
        token = f"{found[-1].blob_id}.{found[-1].fragment_index}" if found else ""
        return pb.ListFragmentsResponse(fragments=fragments, next_page_token=token)

    async def drop_fragments(self, request: pb.DropFragmentsRequest) -> pb.DropFragmentsResponse:
        if not hmac.compare_digest(request.signature, signature(self._identity.secret, request)):
            raise PermissionDeniedError(f"only the controller may have node {self._identity.node_id} drop fragments")
        await self._run(self._identity.obey, convert.authority_from(request.authority))
        for name in request.fragments:
            check_random_id(name.blob_id, "blob id")
            await self._run(self._store.delete, BlobId(name.blob_id), name.fragment_index)
        return pb.DropFragmentsResponse(dropped=request.fragments)


def _page_token(token: str) -> FragmentKey | None:
    if not token:
        return None
    blob_id, _, index = token.partition(".")
    # A token that is not ours would begin another listing, which looks complete (I7).
    if not (index.isascii() and index.isdigit() and len(index) < 10):
        raise InvalidArgumentError(f"{token[:80]!r} is not a page token of a listing of fragments")
    return FragmentKey(BlobId(check_random_id(blob_id, "blob id")), int(index))


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


def _append(writer: FragmentWriter, frames: list[Frame]) -> None:
    for frame in frames:
        writer.append(frame.data, frame.digest)


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
