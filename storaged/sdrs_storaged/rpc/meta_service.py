"""The part of the service ``Control`` that moves, copies and rebuilds the catalog; ``ControlService`` mixes it in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from sdrs_core.errors import ProtocolError
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control.export import Exporter
from sdrs_storaged.control.imports import Importer
from sdrs_storaged.control.rebuild import Rebuilder


class MetaService:
    def __init__(self, exporter: Exporter, importer: Importer, rebuilder: Rebuilder) -> None:
        self._exporter = exporter
        self._importer = importer
        self._rebuilder = rebuilder

    async def export_meta(self, request: pb.ExportMetaRequest) -> AsyncIterator[pb.MetaChunk]:
        if request.seal:
            await self._exporter.seal()
        async with aclosing(self._exporter.export(with_secrets=True)) as pieces:
            async for piece in pieces:
                yield pb.MetaChunk(data=piece)

    async def import_meta(self, chunks: AsyncIterator[pb.MetaChunk]) -> pb.ImportMetaResponse:
        pieces = _pieces(chunks)
        first = await anext(pieces, b"")  # what cannot be read at all is told before anything is looked at
        imported = await self._importer.run(_after(first, pieces))
        return pb.ImportMetaResponse(
            cluster_id=imported.cluster_id, incarnation=imported.incarnation, record_count=imported.record_count
        )

    async def rebuild_meta(self, request: pb.RebuildMetaRequest) -> AsyncIterator[pb.RebuildMetaResponse]:
        async with aclosing(self._rebuilder.run(list(request.node_addresses), request.snapshot)) as steps:
            async for step in steps:
                yield pb.RebuildMetaResponse(
                    stage=step.stage,
                    done_count=step.done_count,
                    total_count=step.total_count,
                    done=step.done,
                    checkpoint_count=step.checkpoint_count,
                    problems=step.problems,
                )


async def _pieces(chunks: AsyncIterator[pb.MetaChunk]) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise ProtocolError(f"the exported catalog stalled for {STALL_SECONDS} s") from None
        if chunk is None:
            return
        yield chunk.data


async def _after(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece
