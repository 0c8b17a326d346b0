"""Checkpoints that are out of reach, and how an operator gives them up in so many words (I4)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.errors import RefusedError
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.mirroring import twin_of
from sdrs_core.stocks import Stock
from sdrs_core.whereabouts import is_unheard, readable_holders
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.control.stocks import Stocks
from sdrs_storaged.control.strays import Strays
from sdrs_storaged.logs import get_log

log = get_log("losses")


class Losses:
    def __init__(self, records: Records, catalog: Catalog, stocks: Stocks, strays: Strays) -> None:
        self._records = records
        self._catalog = catalog
        self._stocks = stocks
        self._strays = strays

    async def unavailable(self, pool: PoolName, on: Set[NodeId] | None = None) -> list[Stored[Save]]:
        """A fresh and complete look: the readable saves of ``pool`` of which some blob (that one of ``on`` should hold,
        if they are given) cannot be read from those in reach, in any pool, after all who are up were asked.

        RefusedError while it cannot be told, because a node that matters was not heard yet.
        """
        await self._records.check_leading()
        found = []
        async for stored in self._records.all(keys.SAVES, Save):
            save = stored.value
            if save.pool == pool and save.state.is_readable and not await self._is_available(save, on):
                found.append(stored)
        return found

    async def give_up(self, saves: Sequence[Stored[Save]], why: str) -> list[Save]:
        """Into the trash, from where they can be brought back within the grace period. What came into reach again
        meanwhile is kept. Those that were given up are returned.
        """
        self.check_releasable(saves)
        given_up = []
        for stored in saves:
            if not await self._is_available(stored.value):
                given_up.append(await self._catalog.discard(stored, why=why))
                log.error("checkpoint_given_up", job=stored.value.job, step=stored.value.step, why=why)
        return given_up

    def check_releasable(self, saves: Sequence[Stored[Save]]) -> None:
        held = [stored.value.title for stored in saves if stored.value.held]
        if held:
            raise RefusedError(f'{", ".join(held[:8])} is held: release it first with "sdrs ckpt release JOB STEP"')

    async def _is_available(self, save: Save, on: Set[NodeId] | None = None) -> bool:
        if save.evicted:
            return True  # in the backup
        nodes = self._stocks.now()
        async for own in self._records.all(keys.shards(save.save_id), Shard):
            needed = [(own, blob) for blob in own.value.blobs] + await self._catalog.homes.referred(own.value)
            for shard, blob in needed:
                twin = twin_of(shard.value, blob)
                forms = [blob, twin] if twin else [blob]
                if any(readable_holders(form, nodes) for form in forms) or not _lies_on(forms, on):
                    continue
                if any(is_unheard(form, nodes) for form in forms):
                    unheard = {h.node_id for form in forms for h in form.holders if _is_unheard(h.node_id, nodes)}
                    raise RefusedError(
                        f"{save.title} may be lost or not: node {', '.join(sorted(unheard))} was not heard yet by this "
                        f"controller. Wait until it is up, or known to be down"
                    )
                if not await self._strays.adopt([(shard.key, form) for form in forms], nodes):
                    return False
        return True


def _lies_on(forms: Sequence[Blob], nodes: Set[NodeId] | None) -> bool:
    return nodes is None or any(holder.node_id in nodes for form in forms for holder in form.holders)


def _is_unheard(node_id: NodeId, nodes: dict[NodeId, Stock]) -> bool:
    return node_id in nodes and nodes[node_id].liveness is Liveness.UNKNOWN
