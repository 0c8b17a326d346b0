"""Checkpoints that are out of reach, and how an operator gives them up in so many words (I4)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.errors import RefusedError
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.repair import Patience, Stock, decide_repair
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
        if they are given) has no copy in reach, after all who are up were asked for one.

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
        held = [stored.value.title for stored in saves if stored.value.held]
        if held:
            raise RefusedError(f'{", ".join(held[:8])} is held: release it first with "sdrs ckpt release JOB STEP"')
        given_up = []
        for stored in saves:
            if not await self._is_available(stored.value):
                given_up.append(await self._catalog.discard(stored, why=why))
                log.error("checkpoint_given_up", job=stored.value.job, step=stored.value.step, why=why)
        return given_up

    async def _is_available(self, save: Save, on: Set[NodeId] | None = None) -> bool:
        nodes = self._stocks.now()
        async for shard in self._records.all(keys.shards(save.save_id), Shard):
            for blob in shard.value.blobs:
                decision = decide_repair(blob, nodes, wanted=1, eligible=frozenset(), patience=Patience())
                if decision.readable or not _lies_on(blob, on):
                    continue
                if decision.undecided:
                    unheard = [h.node_id for h in blob.holders if _is_unheard(h.node_id, nodes)]
                    raise RefusedError(
                        f"{save.title} may be lost or not: node {', '.join(unheard)} was not heard yet by this "
                        f"controller. Wait until it is up, or known to be down"
                    )
                if not await self._strays.adopt([(shard.key, blob)], nodes):
                    return False
        return True


def _lies_on(blob: Blob, nodes: Set[NodeId] | None) -> bool:
    return nodes is None or any(holder.node_id in nodes for holder in blob.holders)


def _is_unheard(node_id: NodeId, nodes: dict[NodeId, Stock]) -> bool:
    return node_id in nodes and nodes[node_id].liveness is Liveness.UNKNOWN
