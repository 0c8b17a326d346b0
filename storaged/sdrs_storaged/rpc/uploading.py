"""A blob goes into a bucket, by order of the controller: read from whoever holds it, every block compared (I5, P9).

It runs in slots and threads of its own, at a pace that leaves saves alone, and nobody who waits for a save ever waits
for a bucket. Hanging up does not end it: the same order given again joins it, at the pace that is said then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from blake3 import blake3

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target
from sdrs_core.codes import MIRROR
from sdrs_core.errors import InvalidArgumentError, PermissionDeniedError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId, check_random_id
from sdrs_proto import backup_convert
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log
from sdrs_storaged.lone_threads import in_lone_thread
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.pacing import Background, Pace
from sdrs_storaged.node.transfers import Slots
from sdrs_storaged.rpc.fragment_streams import FragmentStream, fragment_stream
from sdrs_storaged.rpc.pulling import sources_from
from sdrs_storaged.rpc.sources import BlobFacts, Source, Sources
from sdrs_storaged.rpc.workers import Workers

if TYPE_CHECKING:
    from sdrs_storaged.bucket.probing import Step

log = get_log("upload")

_SLOT_SECONDS = 60.0
_PROGRESS_SECONDS = 0.5
# What tells the controller that a blob could not be read, as opposed to the bucket that could not be written.
SOURCE_FACT = "source"


@dataclass(frozen=True, slots=True)
class _Order:
    blob: BlobFacts
    target: Target
    place: ObjectPlace
    blake3: str


@dataclass(slots=True)
class _UnderWay:
    order: _Order
    sources: list[Source]
    pace: Pace
    done_bytes: int = 0
    sent_bytes: int = 0
    ended: asyncio.Future[None] = field(init=False)


class Uploading:
    def __init__(
        self,
        sources: Sources,
        metrics: NodeMetrics,
        background: Background,
        *,
        slots: Slots,
        readers: Workers,
        looks: Workers,
    ) -> None:
        """``readers``: threads for what reads a whole blob; ``looks``: for what reads a table or tries a target."""
        self._sources = sources
        self._metrics = metrics
        self._background = background
        self._slots = slots
        self._readers = readers
        self._looks = looks
        self._under_way: dict[str, _UnderWay] = {}
        # The same ones: what goes up and what comes down share memory (I10).
        self._buckets = sources.buckets

    async def describe(self, request: pb.DescribeBlobRequest) -> pb.DescribeBlobResponse:
        blob = _blob_from(request)
        sources = sources_from(request.sources, blob)
        if not request.wants_blake3:
            return pb.DescribeBlobResponse(table=await self._looks.run(self._table, blob, sources))
        await self._slots.take(_SLOT_SECONDS)
        try:
            table, identity = await self._readers.run_through(self._identity, blob, sources)
        finally:
            self._slots.give()
        return pb.DescribeBlobResponse(table=table, blake3=identity)

    async def upload(self, request: pb.UploadBlobRequest) -> AsyncGenerator[pb.UploadBlobResponse, None]:
        """Once the order was found to be the controller's."""
        blob = _blob_from(request)
        place = ObjectPlace(request.object.key, request.object.size_bytes, request.object.data_key_id)
        order = _Order(blob, backup_convert.target_from(request.target), place, request.blake3)
        known = self._under_way.get(place.key)
        if request.called_off:
            if known:
                known.pace.end("the controller called it off")
            raise UnavailableError(f"the order to upload blob {blob.id} is called off")
        if known and known.order != order:
            raise UnavailableError(f"another order for {place.key} is under way here: it has to end first")
        if known is None:
            pace = self._background.pace(request.max_bytes_per_second)
            known = self._under_way[place.key] = _UnderWay(order, sources_from(request.sources, blob), pace)
            known.ended = asyncio.ensure_future(self._uploaded(known))
            known.ended.add_done_callback(lambda ended: self._forget(place.key, ended))
        known.pace.set_limit(request.max_bytes_per_second)
        while not known.ended.done():
            await asyncio.wait([known.ended], timeout=_PROGRESS_SECONDS)
            yield pb.UploadBlobResponse(done_bytes=known.done_bytes, sent_bytes=known.sent_bytes)
        known.ended.result()
        yield pb.UploadBlobResponse(done_bytes=blob.size_bytes, sent_bytes=known.sent_bytes, is_done=True)

    def _forget(self, key: str, ended: asyncio.Future[None]) -> None:
        del self._under_way[key]
        if not ended.cancelled():
            ended.exception()  # heard, also if everybody hung up

    async def _uploaded(self, work: _UnderWay) -> None:
        await self._slots.take(_SLOT_SECONDS)
        # A store that hangs holds a slot, and nothing else: neither other work nor the end of this process.
        await in_lone_thread("upload", partial(self._upload, work), self._slots.give)

    def _upload(self, work: _UnderWay) -> None:
        # Only where there are backups: what speaks with buckets takes long to load.
        from sdrs_storaged.bucket.uploading import upload

        order = work.order

        def progress(done_bytes: int, sent_bytes: int) -> None:
            self._metrics.uploaded_bytes.inc(sent_bytes - work.sent_bytes)
            work.done_bytes, work.sent_bytes = done_bytes, sent_bytes
            reach("upload.progress")

        bucket = self._buckets.get(order.target)
        try:
            with self._stream(order.blob, work.sources) as stream:
                upload(
                    bucket,
                    order.place,
                    _plain(stream, order.blob),
                    blake3=order.blake3,
                    progress=progress,
                    pace=work.pace,
                    check=self._background.check_running,
                )
        except PermissionDeniedError:
            self._buckets.forget(order.target)
            raise

    def _stream(self, blob: BlobFacts, sources: list[Source]) -> FragmentStream:
        if not sources:
            raise InvalidArgumentError(f"no node is named to read blob {blob.id} from")
        # As a whole copy would be made, of fragments too.
        return fragment_stream(self._sources.open, self._sources.buffers, blob, sources, 0, MIRROR)

    def _table(self, blob: BlobFacts, sources: list[Source]) -> bytes:
        with self._stream(blob, sources) as stream, _of_source(blob):
            return stream.source_table

    def _identity(self, blob: BlobFacts, sources: list[Source]) -> tuple[bytes, str]:
        """All of it is read for that."""
        hasher, pace = blake3(), self._background.pace()
        with self._stream(blob, sources) as stream:
            for block in _plain(stream, blob):
                hasher.update(block)
                pace.spent(len(block))
                self._background.check_running()
            with _of_source(blob):
                return stream.source_table, hasher.hexdigest()

    async def probe(self, request: pb.ProbeTargetRequest) -> AsyncGenerator[pb.ProbeTargetResponse, None]:
        steps = await self._looks.run(_probed, backup_convert.target_from(request.target))
        while (step := await self._looks.run(next, steps, None)) is not None:
            yield pb.ProbeTargetResponse(step=step.name, ok=step.ok, detail=step.detail)


def _plain(stream: FragmentStream, blob: BlobFacts) -> Iterator[memoryview]:
    """Its blocks, each valid until the next."""
    with _of_source(blob):
        for _, block in stream.blocks():
            yield block


@contextmanager
def _of_source(blob: BlobFacts) -> Iterator[None]:
    """What goes wrong in here is about the blob, not about the bucket."""
    try:
        yield
    except SdrsError as error:
        error.facts[SOURCE_FACT] = blob.id
        raise


def _blob_from(request: pb.DescribeBlobRequest | pb.UploadBlobRequest) -> BlobFacts:
    blob_id = BlobId(check_random_id(request.blob_id, "blob id"))
    return BlobFacts(blob_id, request.size_bytes, request.hash, request.code)


def _probed(target: Target) -> Iterator[Step]:
    from sdrs_storaged.bucket.probing import probe

    return probe(target)
