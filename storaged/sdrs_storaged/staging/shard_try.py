"""One try to bring a staged shard to the primary of its group: the blobs in a few streams at once, then the seal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sdrs_core.backoff import backoff
from sdrs_core.checkpoints import Blob, Reference, SaveState, Shard, content_of
from sdrs_core.cluster import Node, describe_move
from sdrs_core.errors import AlreadyExistsError, SaveFailedError, SdrsError, StaleEpochError, UnsupportedError
from sdrs_core.ids import BlobId, SaveId, random_id
from sdrs_core.zstd import PackedBlob, in_proportion
from sdrs_proto.convert import group_from, kind_from, node_from, shard_to
from sdrs_proto.v1.control_pb2 import BeginSaveResponse, MapVersion, WatchMapRequest
from sdrs_proto.v1.storage_pb2 import SealShardRequest, WriteIntent
from sdrs_storaged.rpc.controller_client import ControllerClient
from sdrs_storaged.staging.sending import BlockSource, BreakOff, PackedSource, Sending, StagedSource
from sdrs_storaged.staging.work import Work

# Blobs that are sent at once: while one waits for its fsync, another keeps disk and wire busy.
STREAMS = 3
_WATCH_WAIT_MS = 5_000

T = TypeVar("T")
Identify = Callable[[int, str], Awaitable[str]]
Pack = Callable[[int], Awaitable[PackedBlob | None]]


class ExpiredError(SaveFailedError):
    """The save was ended, or a blob of it lost, before it was sealed: it is begun again."""


class ShardTry:
    def __init__(
        self,
        client: ControllerClient,
        sending: Sending,
        work: Work,
        begun: BeginSaveResponse,
        blob_ids: list[str],
        tried: set[str],
        references: Mapping[int, Reference],
        identify: Identify,
        pack: Pack,
    ) -> None:
        """``references``: what need not be sent. ``identify``: what a blob that is sent is recognised by later.
        ``pack``: what it is stored as, if not as it is.
        """
        self._client = client
        self._sending = sending
        self._work = work
        self._begun = begun
        self._blob_ids = blob_ids
        self._tried = tried
        self._references = references
        self._identify = identify
        self._pack = pack
        self._primary: Node = node_from(begun.primary)
        self._break_off = BreakOff()
        self._failure: BaseException | None = None

    async def run(self, durable: Callable[[str], None]) -> SaveState:
        if self._primary.id == self._sending.node_id:
            return await self._send_and_seal(durable)  # this node knows itself when its group moves
        return await self._unless_moved(self._send_and_seal(durable))

    async def _send_and_seal(self, durable: Callable[[str], None]) -> SaveState:
        self._work.restart()
        self._work.passed(sum(reference.size_bytes for reference in self._references.values()))
        try:
            blobs = await self._send(durable)
        except AlreadyExistsError as error:
            raise ExpiredError(error.message, **error.facts) from error
        try:
            return await self._sending.seal(self._primary, self._seal_request(blobs))
        except SaveFailedError as error:
            raise ExpiredError(error.message, **error.facts) from error

    async def _send(self, durable: Callable[[str], None]) -> tuple[Blob, ...]:
        segment = self._work.segment
        assert segment is not None, "a shard that is sent has its bytes"
        blobs: dict[int, Blob] = {}
        ordinals = iter([n for n in range(len(self._blob_ids)) if n not in self._references])

        async def stream() -> None:
            """Send blobs, one after the other, until none is left or one failed."""
            for ordinal in ordinals:  # shared: each stream takes the next
                if self._failure is not None:
                    return
                staged, blob_id = self._work.shard.blobs[ordinal], self._blob_ids[ordinal]
                source: BlockSource = StagedSource(segment, staged)
                packing = ""
                passed: Callable[[int], None] = self._passed
                try:
                    packed = await self._pack(ordinal)
                    if packed is not None:
                        source, packing = PackedSource(packed), str(packed.packing)
                        passed = in_proportion(passed, packed.size_bytes, staged.size_bytes)
                    intent = self._intent(ordinal, source.size_bytes, packing)
                    sent = await self._sending.send(self._primary, intent, source, passed, self._break_off)
                except BaseException as error:
                    self._failure = self._failure or error
                    self._break_off.cut("another blob of the shard failed")
                    raise
                # Who reads the segment gets what was saved.
                table = packed.raw_table if packed is not None else sent.table
                if table is not None:
                    self._work.tables[ordinal] = table
                stored = Blob(BlobId(blob_id), ordinal, source.size_bytes, sent.hash, packing=packing)
                blobs[ordinal] = replace(stored, blake3=await self._identify(ordinal, stored.raw_hash))
                durable(blob_id)
                if packed is not None:
                    packed.release()

        streams = [asyncio.ensure_future(stream()) for _ in self._blob_ids[:STREAMS]]
        try:
            await asyncio.wait(streams)
        finally:
            for task in streams:
                task.cancel()
            # Their threads read the segment: nobody leaves before them.
            await asyncio.gather(*streams, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        return tuple(blobs[ordinal] for ordinal in sorted(blobs))

    def _passed(self, size_bytes: int) -> None:
        """Called by the threads that send."""
        if self._failure is not None:
            raise SaveFailedError("another blob of the shard failed")  # whose failure is the one that is told
        self._break_off.check()
        self._work.passed(size_bytes)

    async def _unless_moved(self, sending: Coroutine[Any, Any, T]) -> T:
        """A primary that is frozen or cut off says nothing; the map tells that its group has moved on."""
        running = asyncio.ensure_future(sending)
        watching = asyncio.ensure_future(self._moved())
        try:
            await asyncio.wait([running, watching], return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and watching.exception() is None and watching.result():
                self._break_off.cut(watching.result())
                raise StaleEpochError(f"{watching.result()}: the transfer was broken off")
            return await running
        finally:
            self._break_off.cut("the try is over")
            running.cancel()
            watching.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)

    async def _moved(self) -> str:
        """What became of the group, as soon as it is another; empty if nobody tells."""
        group = group_from(self._begun.group)
        version = MapVersion()
        pauses = backoff()
        while True:
            request = WatchMapRequest(pool=group.pool, known=version, wait_ms=_WATCH_WAIT_MS)
            try:
                response = await self._client.ask("watch_map", request, _WATCH_WAIT_MS)
            except UnsupportedError:
                return ""
            except SdrsError:
                await asyncio.sleep(next(pauses))
                continue
            if response.version == version:
                await asyncio.sleep(next(pauses))
                continue
            version, pauses = response.version, backoff()
            news = describe_move(group, {found.id: found for found in map(group_from, response.groups)})
            if news:
                return news

    def _seal_request(self, blobs: tuple[Blob, ...]) -> SealShardRequest:
        begun, order = self._begun, self._work.shard.order
        shard = Shard(
            save_id=SaveId(begun.save_id),
            rank=order.rank,
            kind=kind_from(order.kind),
            size_bytes=self._work.total_bytes,
            content_hash=content_of((*blobs, *self._references.values())),
            blobs=blobs,
            references=tuple(self._references.values()),
        )
        return SealShardRequest(
            request_id=random_id(),
            capability=begun.capability,
            job=order.job,
            step=order.step,
            attempt=begun.attempt,
            group_id=begun.group.id,
            epoch=begun.group.epoch,
            shard=shard_to(shard),
            world_size=order.world_size,
        )

    def _intent(self, ordinal: int, size_bytes: int, packing: str) -> WriteIntent:
        begun, order, blob_id = self._begun, self._work.shard.order, self._blob_ids[ordinal]
        is_resent = self._work.is_recovered or blob_id in self._tried
        self._tried.add(blob_id)
        return WriteIntent(
            save_id=begun.save_id,
            blob_id=blob_id,
            ordinal=ordinal,
            size_bytes=size_bytes,
            job=order.job,
            step=order.step,
            attempt=begun.attempt,
            rank=order.rank,
            group_id=begun.group.id,
            epoch=begun.group.epoch,
            world_size=order.world_size,
            kind=order.kind,
            blob_count=len(self._blob_ids),
            pool=order.pool,
            resent=is_resent,
            packing=packing,
        )
