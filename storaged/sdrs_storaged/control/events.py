"""The history of a cluster: what happened to its nodes and groups, newest first (``sdrs history``)."""

from __future__ import annotations

from dataclasses import dataclass

from sdrs_core.errors import SdrsError
from sdrs_core.ids import random_id
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.meta.store import Delete, Put
from sdrs_storaged.control.records import MAX_TXN_RECORDS, PAGE_ENTRIES, Records, put
from sdrs_storaged.logs import get_log

log = get_log("events")

_KEPT = 2000  # I10
_TRIM_EVERY = 100


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    unix_ms: int
    kind: str
    text: str
    pool: str = ""
    group_id: str = ""
    node_id: str = ""
    epoch: int = 0
    duration_ms: int = 0


class Events:
    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._ordinal = 0
        self._trimmed_at = 0

    def entry(
        self,
        kind: str,
        text: str,
        *,
        pool: str = "",
        group_id: str = "",
        node_id: str = "",
        epoch: int = 0,
        duration_ms: int = 0,
    ) -> Put:
        """An event as part of a transaction: it is told exactly if the change happened."""
        now = self._clock.unix_ms()
        event = Event(random_id(), now, kind, text, pool, group_id, node_id, epoch, duration_ms)
        self._ordinal += 1
        return put(keys.event(now, self._ordinal, event.id), event)

    async def record(
        self,
        kind: str,
        text: str,
        *,
        pool: str = "",
        group_id: str = "",
        node_id: str = "",
        epoch: int = 0,
        duration_ms: int = 0,
    ) -> None:
        """What has no transaction of its own. The history is a help, never a reason to fail."""
        write = self.entry(
            kind, text, pool=pool, group_id=group_id, node_id=node_id, epoch=epoch, duration_ms=duration_ms
        )
        try:
            await self._records.commit([], [write])
            if self._ordinal - self._trimmed_at >= _TRIM_EVERY:
                self._trimmed_at = self._ordinal
                await self._trim()
        except SdrsError as error:
            log.warning("event_not_recorded", kind=kind, text=text, why=error.message)

    async def page(self, *, group_id: str, node_id: str, after: str, limit: int) -> tuple[list[Event], str]:
        """Newest first; the token of the next page."""
        events: list[Event] = []
        more = True
        while more and len(events) < limit:
            found, more = await self._records.page(keys.EVENTS, Event, after=after, limit=min(limit, PAGE_ENTRIES))
            for stored in found:
                after = stored.key
                event = stored.value
                if group_id in ("", event.group_id) and node_id in ("", event.node_id):
                    events.append(event)
                if len(events) == limit:
                    break
            else:
                continue
            return events, after
        return events, ""

    async def _trim(self) -> None:
        count = 0
        late: list[str] = []
        async for stored in self._records.all(keys.EVENTS, Event):
            count += 1
            if count > _KEPT:
                late.append(stored.key)
        for start in range(0, len(late), MAX_TXN_RECORDS):
            await self._records.commit([], [Delete(key) for key in late[start : start + MAX_TXN_RECORDS]])
