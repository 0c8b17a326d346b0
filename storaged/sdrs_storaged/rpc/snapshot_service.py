"""The part of the service ``Storage`` that keeps copies of the catalog (P19); ``StorageService`` mixes it in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from sdrs_core.cluster import Node
from sdrs_core.errors import DeadlineExceededError, ProtocolError, UnavailableError
from sdrs_proto import convert
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.snapshots import SnapshotShelf, SnapshotWriter
from sdrs_storaged.seeing_through import see_through

T = TypeVar("T")

# P21: whoever drips may not keep others from storing theirs.
_STORE_SECONDS = 1800.0


class SnapshotService:
    def __init__(self, shelf: SnapshotShelf, identity: Identity, describe: Callable[[], Node | None]) -> None:
        self._shelf = shelf
        self._identity = identity
        self._describe = describe
        # One at a time: they come from one controller, and the disk has other work.
        self._storing = asyncio.Lock()

    async def store_snapshot(self, chunks: AsyncIterator[pb.SnapshotChunk]) -> pb.StoreSnapshotResponse:
        first = await _next(chunks)
        if first is None or not first.HasField("id"):
            raise ProtocolError("the first chunk of a snapshot carries its id")
        try:
            async with asyncio.timeout(_STORE_SECONDS), self._storing:
                writer = await _in_thread(self._shelf.create, convert.snapshot_id_from(first.id))
                try:
                    await self._fill(writer, first, chunks)
                    await _in_thread(self._shelf.prune)
                finally:
                    await _in_thread(writer.discard)
        except TimeoutError:
            raise DeadlineExceededError(f"the snapshot took more than {_STORE_SECONDS} s") from None
        return pb.StoreSnapshotResponse()

    async def _fill(
        self, writer: SnapshotWriter, chunk: pb.SnapshotChunk | None, chunks: AsyncIterator[pb.SnapshotChunk]
    ) -> None:
        while chunk is not None:
            await _in_thread(writer.append, chunk.data)
            chunk = await _next(chunks)
        await _in_thread(writer.finish)

    async def list_snapshots(self, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        node = self._describe()
        if node is None:
            raise UnavailableError("the node is still starting: try again in a moment")
        found = await _in_thread(self._shelf.snapshots)
        return pb.ListSnapshotsResponse(
            snapshots=[convert.snapshot_id_to(snapshot) for snapshot in found],
            cluster_id=self._identity.cluster_id,
            node=convert.node_to(node),
            authority=convert.authority_to(self._identity.authority),
        )

    async def read_snapshot(self, request: pb.ReadSnapshotRequest) -> AsyncIterator[pb.SnapshotChunk]:
        pieces = self._shelf.read(convert.snapshot_id_from(request.id))
        try:
            chunk = pb.SnapshotChunk(id=request.id)
            while (piece := await _in_thread(next, pieces, None)) is not None:
                chunk.data = piece
                yield chunk
                chunk = pb.SnapshotChunk()
        finally:
            await _in_thread(pieces.close)


async def _in_thread(work: Callable[..., T], *args: object) -> T:
    """Who is cancelled waits until the thread is done, and may then close what it used."""
    return await see_through(asyncio.to_thread(work, *args))


async def _next(chunks: AsyncIterator[pb.SnapshotChunk]) -> pb.SnapshotChunk | None:
    """None at the end of the stream."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        raise ProtocolError(f"the snapshot stalled for {STALL_SECONDS} s") from None
