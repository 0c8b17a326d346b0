"""A fragment is made here, by order of the controller: copied, rebuilt, cut from a blob in another form, or fetched
from a backup.

Who lacks something fetches what it is made of, as flow control. Every block that comes is compared with its fragment's
table, and what is made with the hash on record, before anything counts (I5, P9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.codes import MIRROR
from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_core.ids import BlobId, check_random_id
from sdrs_proto import convert
from sdrs_proto.backup_convert import target_from
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.pacing import Background, Pace
from sdrs_storaged.node.transfers import Slots
from sdrs_storaged.rpc.blobs import write_intent_from
from sdrs_storaged.rpc.fragment_streams import FragmentStream, fragment_stream
from sdrs_storaged.rpc.sources import AnySource, BlobFacts, BucketSource, Source, Sources
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentKey, FragmentOrigin, StoredFragment

log = get_log("pull")

_SLOT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Order:
    """``target`` and ``source`` are the same blob, or two of the same content."""

    origin: FragmentOrigin
    target: BlobFacts
    source: BlobFacts
    sources: Sequence[AnySource]
    # Of what is made: the bytes that it is made of are several times as many.
    max_bytes_per_second: int

    def is_same(self, other: _Order) -> bool:
        """Whoever makes the one makes the other; it need not be told from whom."""
        return (self.target, self.source, self._buckets) == (other.target, other.source, other._buckets)

    @property
    def _buckets(self) -> list[AnySource]:
        return [source for source in self.sources if isinstance(source, BucketSource)]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    order: _Order
    pace: Pace
    stored: asyncio.Future[StoredFragment]


class Pulling:
    def __init__(
        self,
        store: FragmentStore,
        sources: Sources,
        metrics: NodeMetrics,
        background: Background,
        *,
        slots: Slots,
        workers: Workers,
    ) -> None:
        self._store = store
        self._sources = sources
        self._metrics = metrics
        self._background = background
        self._slots = slots
        self._workers = workers
        self._under_way: dict[FragmentKey, _UnderWay] = {}

    async def pull(self, request: pb.PullFragmentRequest) -> StoredFragment:
        """Once the order was found to be the controller's."""
        order = _order_from(request)
        known = self._under_way.get(order.origin.key)
        if request.called_off:
            if known:
                known.pace.end("the controller called it off for something more urgent")
            raise UnavailableError(f"the order to make a fragment of blob {order.target.id} is called off")
        if known and known.order.is_same(order):
            # Said again by a controller that wants it faster or slower, or has not heard the answer.
            known.pace.set_limit(order.max_bytes_per_second)
            return await asyncio.shield(known.stored)
        pace = self._background.pace(order.max_bytes_per_second)
        mine = _UnderWay(order, pace, asyncio.ensure_future(self._pulled(order, pace)))
        self._under_way[order.origin.key] = mine
        try:
            return await asyncio.shield(mine.stored)
        finally:
            await asyncio.wait([mine.stored])
            if self._under_way.get(order.origin.key) is mine:
                del self._under_way[order.origin.key]

    def made_bytes(self, key: FragmentKey) -> int | None:
        """How far the fragment is that is being made; None if it is not."""
        known = self._under_way.get(key)
        return known.pace.spent_bytes if known else None

    async def _pulled(self, order: _Order, pace: Pace) -> StoredFragment:
        await self._slots.take(_SLOT_SECONDS)
        try:
            return await self._workers.run_through(self._pull, order, pace)
        finally:
            self._slots.give()

    def _pull(self, order: _Order, pace: Pace) -> StoredFragment:
        stored = self._held(order)
        if stored is None or self._store.is_draining(stored):
            stored = self._make(order, pace)
        self._store.drop_drained(stored)
        return stored

    def _held(self, order: _Order) -> StoredFragment | None:
        """What is here under this name, if it is what is asked for; what is not is set aside."""
        held, target = self._store.lookup(*order.origin.key), order.target
        if held is None:
            return None
        found = BlobFacts(held.blob_id, held.source_size_bytes, held.source_hash, held.code)
        if found == target:
            return held
        self._store.quarantine(
            *order.origin.key,
            f"it is of code {found.code} and of a blob with hash {found.hash}, on record are {target.code} and "
            f"{target.hash}: replaced",
        )
        return None

    def _make(self, order: _Order, pace: Pace) -> StoredFragment:
        if not order.sources:
            raise InvalidArgumentError(f"no node is named to fetch blob {order.source.id} from")
        index, code = order.origin.fragment_index, order.target.code
        with fragment_stream(
            self._sources.open, self._sources.buffers, order.source, order.sources, index, code
        ) as stream:
            stored = self._write(order, stream, pace)
        self._metrics.pulled_bytes.inc(stream.received_bytes)
        if stream.failures:
            log.warning("pulled_in_spite", blob=order.target.id, index=index, failed=sorted(map(str, stream.failures)))
        return stored

    def _write(self, order: _Order, stream: FragmentStream, pace: Pace) -> StoredFragment:
        with self._store.create(order.origin, stream.size_bytes) as writer:
            for _ in range(stream.block_count):
                room = writer.next_block()
                with pace.waiting():
                    size_bytes, digest = stream.fill(room)
                writer.commit_block(size_bytes, digest)
                pace.spent(size_bytes)
                self._background.check_running()
                reach("pull.block")
            # Asked for in any case: of a blob without bytes, too, somebody must have it.
            source_table = stream.source_table
            return writer.finish(
                stream.size_bytes, stream.fragment_hash, source_table=source_table if order.origin.is_coded else b""
            )


def _order_from(request: pb.PullFragmentRequest) -> _Order:
    intent = write_intent_from(request.intent)
    origin = intent.origin
    if origin.is_coded:
        origin = replace(origin, source_size_bytes=intent.size_bytes)
    target = BlobFacts(origin.blob_id, intent.size_bytes, request.hash, origin.code)
    if request.HasField("backup"):
        whole = replace(target, code=MIRROR)
        return _Order(origin, target, whole, [_bucket_source_from(request.backup)], request.max_bytes_per_second)
    source = target
    if request.source_blob_id and request.source_blob_id != target.id:
        source_id = BlobId(check_random_id(request.source_blob_id, "blob id"))
        source = replace(target, id=source_id, code=request.source_code or MIRROR)
    return _Order(origin, target, source, sources_from(request.sources, source), request.max_bytes_per_second)


def _bucket_source_from(message: pb.BackupSource) -> BucketSource:
    place = ObjectPlace(message.object.key, message.object.size_bytes, message.object.data_key_id)
    return BucketSource(target_from(message.target), place, message.table)


def sources_from(messages: Sequence[pb.FragmentSource], blob: BlobFacts) -> list[Source]:
    code = blob.erasure_code
    count = code.total if code else 1
    for message in messages:
        if message.fragment_index >= count:
            raise InvalidArgumentError(f"blob {blob.id} of code {blob.code} has no fragment {message.fragment_index}")
    return [Source(convert.node_from(one.node), one.fragment_index, one.hash) for one in messages]
