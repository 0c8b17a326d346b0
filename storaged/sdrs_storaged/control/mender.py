"""One blob that needs something is seen to: decided anew as things stand, one action after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sdrs_core.balance import Balance
from sdrs_core.checkpoints import Blob, Holder, Save, Shard
from sdrs_core.cluster import Pool
from sdrs_core.errors import DiskFailedError, FullError, SdrsError
from sdrs_core.ids import NodeId
from sdrs_core.remedies import Action, Copy, Forget, Trim
from sdrs_core.reshaping import Make
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.copier import Copier, Leash
from sdrs_storaged.control.holders import HolderRecords, find_blob
from sdrs_storaged.control.jobs import Job
from sdrs_storaged.control.maker import Maker
from sdrs_storaged.control.mirrors import Drop
from sdrs_storaged.control.progress import Meter, RepairTotals
from sdrs_storaged.control.prospects import Prospect, Prospects
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored
from sdrs_storaged.control.stocks import Stocks, View


class Mender:
    def __init__(
        self,
        records: Records,
        stocks: Stocks,
        prospects: Prospects,
        holders: HolderRecords,
        copier: Copier,
        maker: Maker,
        clock: Clock,
    ) -> None:
        self._records = records
        self._stocks = stocks
        self._prospects = prospects
        self._holders = holders
        self._copier = copier
        self._maker = maker
        self._freed = asyncio.Event()
        self.on_freed: Callable[[], None] = lambda: None
        # Where something is being made: one at a time for each.
        self.busy: dict[NodeId, Leash] = {}
        self.totals = RepairTotals()
        self.meter = Meter(clock)

    async def mend(self, job: Job, leash: Leash) -> NodeId | None:
        """The node that it has to wait for, if it has."""
        save = job.save.value
        refusal: SdrsError | None = None
        for _ in range(MAX_TRIES):
            stored = await self._records.get(job.shard_key, Shard)
            blob = find_blob(stored.value, job.blob_id) if stored else None
            if stored is None or blob is None:
                return None
            view = self._stocks.view()
            prospect = self._prospects.of(save, stored.value, blob, view, preferred=job.preferred)
            action = (prospect.action or _move(job, blob, prospect, view)) if prospect else None
            if prospect is None or action is None:
                if refusal:
                    raise refusal
                return None
            if isinstance(action, Copy | Make) and prospect.action and prospect.urgency[0] > job.urgency[0]:
                return None  # less urgent than what there was to do: a later survey says when
            if isinstance(action, Copy) and action.target in self.busy:
                return action.target
            try:
                if not await self._act(save, stored, prospect, action, view, leash):
                    return None
                refusal = None
            except ConflictError:
                continue
            except (FullError, DiskFailedError) as error:
                if not isinstance(action, Copy):
                    raise
                # Another node may have room for it.
                refusal = error
                self._stocks.had_no_room(action.target)
        return None

    async def _act(
        self,
        save: Save,
        stored: Stored[Shard],
        prospect: Prospect,
        action: Action | Drop,
        view: View,
        leash: Leash,
    ) -> bool:
        """False if nobody wants more to be done about it."""
        if isinstance(action, Copy):
            return await self._copy(save, stored, action, prospect.pool, leash)
        if isinstance(action, Make):
            return await self._make(save, stored, action, prospect.pool, view, leash)
        if isinstance(action, Forget):
            await self._holders.forget(stored, action.blob.id, action.holder)
            self._stocks.held.remove(action.blob, action.holder)
            return True
        if isinstance(action, Trim):
            kept = [holder for holder in prospect.decision.live if holder != action.holder]
            await self._copier.trim(stored, action, kept)
            self._trimmed(action.blob, [action.holder])
            return True
        own = next(known for known in stored.value.blobs if known.ordinal == action.blob.ordinal)
        of_own = self._prospects.of(save, stored.value, own, view)
        if of_own is None:
            return False
        self._trimmed(action.blob, await self._maker.drop(stored, action, of_own.decision, view))
        return True

    def _trimmed(self, blob: Blob, holders: list[Holder]) -> None:
        self.totals.trimmed_blobs += len(holders)
        for holder in holders:
            self._stocks.held.remove(blob, holder)

    async def _copy(self, save: Save, stored: Stored[Shard], action: Copy, pool: Pool, leash: Leash) -> bool:
        async with self._reserve(action.target, leash):
            leash.measured = self.meter.begin()
            holder = await self._copier.copy(save, stored, action, pool.name, leash)
        if holder is None:
            return False
        leash.measured.reach(action.size_bytes)
        self._made(action.size_bytes, leash)
        self._stocks.held.add(action.blob, holder)
        return True

    async def _make(
        self, save: Save, stored: Stored[Shard], action: Make, pool: Pool, view: View, leash: Leash
    ) -> bool:
        leash.measured = self.meter.begin()
        made = await self._maker.make(save, stored, action, pool, view, self._reserve, leash)
        if made is None:
            return False
        leash.measured.reach(action.size_bytes)
        self._made(action.size_bytes, leash)
        for holder in made.holders:
            self._stocks.held.add(made, holder)
        if not action.is_mirror:
            for holder in action.blob.holders:
                self._stocks.held.remove(action.blob, holder)
        return True

    def _made(self, size_bytes: int, leash: Leash) -> None:
        """It counts as done from here on, and not as under way."""
        self.totals.made(size_bytes)
        leash.measured = None

    def call_off(self, leash: Leash) -> None:
        """What is on it ends soon, and is found again by a later survey."""
        leash.is_called_off = True
        self._freed.set()

    @asynccontextmanager
    async def _reserve(self, node_id: NodeId, leash: Leash) -> AsyncIterator[None]:
        while node_id in self.busy:
            self._freed.clear()
            await self._freed.wait()
            leash.check()
        self.busy[node_id] = leash
        try:
            yield
        finally:
            del self.busy[node_id]
            self._freed.set()
            self.on_freed()


def _move(job: Job, blob: Blob, prospect: Prospect, view: View) -> Copy | None:
    """To even out how full nodes are, if they still are not: since it was planned, others may have done that. What is
    moved by an old plan would be let go where it was just made, and moved again.
    """
    if job.move is None:
        return None
    return Balance(view.nodes, view.eligible(prospect.pool)).move(blob, prospect.decision)
