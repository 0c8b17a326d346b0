"""The MetaStore in etcd, for controllers on several machines.

Revisions are etcd's own: they rise by more than one when others use the same etcd. What belongs to this cluster lies
under one prefix, which callers never see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from sdrs_core.errors import FullError, InvalidArgumentError, SdrsError, UnavailableError
from sdrs_proto.etcd import etcd_pb2 as pb
from sdrs_storaged.config import EtcdConfig
from sdrs_storaged.control.meta import election, limits
from sdrs_storaged.control.meta.etcd_client import KV, EtcdClient
from sdrs_storaged.control.meta.etcd_errors import LeaseGoneError, TooLargeError
from sdrs_storaged.control.meta.etcd_health import health_of, sentences_of
from sdrs_storaged.control.meta.etcd_messages import LeasedPut, Messages
from sdrs_storaged.control.meta.etcd_seat import Seat
from sdrs_storaged.control.meta.etcd_watch import follow
from sdrs_storaged.control.meta.in_process import PAGE_BYTES
from sdrs_storaged.control.meta.store import (
    LEADER_KEY,
    CompactedError,
    Compare,
    DeletePrefix,
    Entry,
    EventBatch,
    MetaStore,
    Op,
    Page,
    Put,
    Term,
    TxnResult,
)
from sdrs_storaged.logs import get_log

log = get_log("etcd")

_UPKEEP_SECONDS = 10.0
_FIRST_CHUNK_ENTRIES = 64


class EtcdMetaStore(MetaStore):
    """Open it with ``open``; it belongs to the event loop that it was opened on."""

    def __init__(self, config: EtcdConfig, client: EtcdClient) -> None:
        self._config = config
        self._client = client
        self._messages = Messages(config.prefix)
        # etcd limits a page by the number of its entries only. This many are asked for at once: more after small
        # answers, fewer after large ones.
        self._chunk_entries = _FIRST_CHUNK_ENTRIES
        self._compacted = 0
        self._seats: dict[Term, Seat] = {}
        self._upkeep: asyncio.Task[None] | None = None
        self._warnings: tuple[str, ...] = ()

    @classmethod
    async def open(cls, config: EtcdConfig) -> EtcdMetaStore:
        """It connects with the first call, so that a controller may be started before its etcd."""
        return cls(config, EtcdClient(config))

    # Reading and writing

    async def txn(self, compare: Sequence[Compare], then: Sequence[Op]) -> TxnResult:
        limits.check_txn(compare, then)
        request = self._messages.txn(compare, then)
        try:
            response = await self._client.call(KV, "txn", request, repeatable=not then)
        except FullError as error:
            # The change that fills etcd may be made before it is refused (etcd #16659).
            if await self._looks_done(then):
                raise UnavailableError(f"{error.message}; whether the change was made is not known") from None
            raise
        return TxnResult(response.succeeded, response.header.revision)

    async def _looks_done(self, then: Sequence[Op]) -> bool:
        for op in then:
            if isinstance(op, DeletePrefix):
                is_done = not (await self.range(op.prefix, limit=1)).entries
            else:
                entry = await self.get(op.key)
                is_done = (entry.value if entry else None) == (op.value if isinstance(op, Put) else None)
            if not is_done:
                return False
        return bool(then)

    async def get(self, key: str) -> Entry | None:
        limits.check_key(key)
        response = await self._range(pb.RangeRequest(key=self._messages.key(key)))
        return self._messages.entry(response.kvs[0]) if response.kvs else None

    async def revision(self) -> int:
        response = await self._range(pb.RangeRequest(key=self._messages.key(""), count_only=True))
        return response.header.revision

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        response: pb.RangeResponse = await self._client.call(
            KV, "range", request, repeatable=True, needs_leader=not request.serializable
        )
        return response

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        return await self._whole_page(prefix, after, limit, stale=False)

    async def range_stale(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        return await self._whole_page(prefix, after, limit, stale=True)

    async def _whole_page(self, prefix: str, after: str, limit: int, *, stale: bool) -> Page:
        for text in (prefix, after):
            limits.check_prefix(text)
        limits.check_page(limit)
        while True:
            try:
                return await self._page(prefix, after, limit, stale=stale)
            except CompactedError:
                continue  # Between two chunks, which must show the same moment: begin again with the newest.

    async def _page(self, prefix: str, after: str, limit: int, *, stale: bool) -> Page:
        start = max(self._messages.key(prefix), self._messages.key(after) + b"\0" if after else b"")
        end = self._messages.end(prefix)
        entries: list[Entry] = []
        held_bytes = revision = 0
        while True:
            chunk = await self._chunk(start, end, limit - len(entries), revision, stale=stale)
            revision = revision or chunk.header.revision
            for index, found in enumerate(chunk.kvs):
                entries.append(self._messages.entry(found))
                held_bytes += len(found.key) + len(found.value)
                if held_bytes >= PAGE_BYTES or len(entries) == limit:
                    more = chunk.more or index + 1 < len(chunk.kvs)
                    return Page(tuple(entries), revision, more)
            if not chunk.more:
                return Page(tuple(entries), revision, more=False)
            start = chunk.kvs[-1].key + b"\0"

    async def _chunk(self, start: bytes, end: bytes, limit: int, revision: int, *, stale: bool) -> pb.RangeResponse:
        while True:
            asked = min(limit, self._chunk_entries)
            request = pb.RangeRequest(key=start, range_end=end, limit=asked, revision=revision, serializable=stale)
            try:
                response = await self._range(request)
            except TooLargeError:
                # One entry always fits; somebody else may have halved it meanwhile.
                self._chunk_entries = max(1, min(self._chunk_entries, asked // 2))
                continue
            if response.more and response.ByteSize() < PAGE_BYTES // 4 and asked == self._chunk_entries:
                self._chunk_entries = min(2 * asked, limits.MAX_PAGE_ENTRIES)
            return response

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[EventBatch, None]:
        limits.check_prefix(prefix)
        limits.check_from_revision(from_revision)
        return follow(self._client, self._messages, prefix, from_revision)

    async def compact(self, revision: int) -> None:
        newest = await self.revision()
        if revision > newest:
            raise InvalidArgumentError(f"history cannot be compacted to revision {revision}: the newest is {newest}")
        # etcd forgets deletions at the revision that it is compacted to; ours must still be there.
        if (last_forgotten := revision - 1) > self._compacted:
            try:
                request = pb.CompactionRequest(revision=last_forgotten)
                await self._client.call(KV, "compact", request, repeatable=True)
            except CompactedError:
                pass  # by somebody else, and further
            self._compacted = last_forgotten

    # Terms

    async def campaign(self, candidate: str) -> Term:
        self._client.refuse_if_closed()
        taken: Seat | None = None

        async def seat(term: Term) -> Put:
            # Those of earlier tries run out by themselves: only a winner renews its lease.
            nonlocal taken
            taken = await Seat.take(self._client, self._config.lease_seconds)
            return LeasedPut(LEADER_KEY, term.record(), taken.lease_id)

        try:
            while True:
                try:
                    term = await election.campaign(self, candidate, seat)
                    break
                except LeaseGoneError:
                    continue  # it ran out before the record could be written
        except BaseException:
            # Also where nobody knows whether it was elected: without its lease the record goes away.
            if taken:
                await taken.leave()
            raise
        assert taken
        taken.hold()
        self._seats[term] = taken
        if self._upkeep is None or self._upkeep.done():
            self._upkeep = asyncio.create_task(self._keep_up(), name="etcd-upkeep")
        return term

    async def resign(self, term: Term) -> None:
        try:
            await election.resign(self, term)
        finally:
            if seat := self._seats.pop(term, None):
                await seat.leave()

    async def lost(self, term: Term) -> None:
        await election.lost(self, term)

    # Upkeep

    async def _keep_up(self) -> None:
        """The leader's chores, as long as there is one: others need not do them too."""
        while self._seats:
            try:
                await self.look()
                await self.forget_old_history()
            except SdrsError as error:
                log.warning("upkeep_failed", why=error.message)
            await asyncio.sleep(_UPKEEP_SECONDS)

    async def look(self) -> None:
        """Ask every endpoint how it is; ``warnings`` tells."""
        found = await health_of(self._client, self._config.quota_bytes)
        self._warnings = sentences_of(found)

    def warnings(self) -> Sequence[str]:
        return self._warnings

    async def forget_old_history(self) -> None:
        """Compact to the newest ``keep_revisions``: for all users of this etcd, since history is one."""
        if keep := self._config.keep_revisions:
            await self.compact(max(1, await self.revision() - keep + 1))

    async def close(self) -> None:
        if self._client.is_closed:
            return
        if self._upkeep:
            self._upkeep.cancel()
        seats, self._seats = list(self._seats.values()), {}
        for seat in seats:
            await seat.leave()
        await self._client.close()
