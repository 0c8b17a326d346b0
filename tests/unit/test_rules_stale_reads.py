"""P17: what is told while the MetaStore is out of reach is labelled, and nothing is changed by it."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.errors import NotFoundError, UnavailableError
from sdrs_core.ids import JobName
from sdrs_storaged.control.meta.store import Entry, Page
from tests.support.control import JOB, FaultyStore, Harness


class CutOffStore(FaultyStore):
    """A replica that is cut off from the others answers with what it has, and to nobody else."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut_off = False

    def _check(self) -> None:
        if self.is_cut_off:
            raise UnavailableError("the store is out of reach")

    async def get(self, key: str) -> Entry | None:
        self._check()
        return await super().get(key)

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        self._check()
        return await super().range(prefix, after=after, limit=limit)

    async def range_stale(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        return await FaultyStore.range(self, prefix, after=after, limit=limit)


def test_reads_are_fresh_then_stale_then_fresh_again() -> None:
    async def run() -> None:
        store = CutOffStore()
        harness = Harness(store=store)
        await harness.start()
        save = await harness.save(10)
        reads = harness.controller.stale_reads
        found, is_stale = await reads.read(lambda catalog: catalog.get(JOB, 10))
        assert (found.value.save_id, is_stale) == (save.save_id, False)
        store.is_cut_off = True
        (saves, _), is_stale = await reads.read(lambda c: c.page(JOB, all_states=False, after="", limit=10))
        assert ([one.step for one in saves], is_stale) == ([10], True)
        shard, is_stale = await reads.read(lambda catalog: catalog.shard(save.save_id, 0))
        assert (shard.save_id, is_stale) == (save.save_id, True)
        with pytest.raises(NotFoundError):
            await reads.read(lambda catalog: catalog.get(JobName("nobody"), 10))
        store.is_cut_off = False
        harness.clock.advance(10)
        _, is_stale = await reads.read(lambda catalog: catalog.get(JOB, 10))
        assert not is_stale

    asyncio.run(run())
