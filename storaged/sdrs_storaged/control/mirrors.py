"""Which checkpoints have a mirror in another pool, which mirrors are to go, and what the catalog says of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Save
from sdrs_core.cluster import Pool
from sdrs_core.errors import NotFoundError
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId, PoolName, SaveId
from sdrs_core.mirroring import age_order, choose_mirrored, newest_first
from sdrs_core.redundancy import Standing
from sdrs_core.remedies import Decision
from sdrs_core.soundness import counted
from sdrs_core.stocks import Stock
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.logs import get_log

log = get_log("mirrors")

_MAX_CANDIDATES = 10_000  # I10: no pool mirrors more checkpoints than that


@dataclass(frozen=True, slots=True)
class Drop:
    """Let a whole mirror go: it is not wanted any more."""

    blob: Blob


@dataclass(slots=True)
class MirrorStanding:
    """Of one checkpoint, as its blobs are looked at."""

    is_full: bool = True
    is_readable: bool = True


class Mirrors:
    def __init__(self, records: Records, members: Members, catalog: Catalog) -> None:
        self._records = records
        self._members = members
        self._catalog = catalog
        # As the last survey found.
        self._chosen: dict[PoolName, frozenset[SaveId]] = {}

    async def choose(self) -> None:
        """Anew, from all that is in the catalog now."""
        ratios = {pool.name: pool.mirror_ratio for pool in self._members.pools() if pool.mirror_pool}
        newest: dict[PoolName, list[tuple[tuple[int, SaveId], Save]]] = {name: [] for name in ratios}
        total_bytes = Counter[PoolName]()
        if ratios:
            async for stored in self._records.all(keys.SAVES, Save):
                save = stored.value
                if save.pool not in newest or not save.state.is_readable:
                    continue
                total_bytes[save.pool] += save.stored_bytes
                heapq.heappush(newest[save.pool], (age_order(save), save))
                if len(newest[save.pool]) > _MAX_CANDIDATES:
                    heapq.heappop(newest[save.pool])
        self._chosen = {
            name: self._with_homes(newest_first(save for _, save in newest[name]), ratio, total_bytes[name])
            for name, ratio in ratios.items()
        }

    def _with_homes(self, saves: list[Save], ratio: float, total_bytes: int) -> frozenset[SaveId]:
        """A checkpoint is whole in the other pool only if what it refers to is there too. So the saves that have that
        are mirrored as well, on top of the proportion.
        """
        chosen = choose_mirrored(saves, ratio, total_bytes=total_bytes)
        return chosen.union(*(save.homes for save in saves if save.save_id in chosen))

    def wants(self, save: Save) -> bool:
        return save.save_id in self._chosen.get(save.pool, frozenset()) and bool(self._pool_of(save).mirror_pool)

    def pool_for(self, save: Save) -> Pool | None:
        """Where its mirror is kept; None if it has none, or one that nobody knows any more."""
        name = self._pool_of(save).mirror_pool or save.mirror_pool
        try:
            return self._members.pool(name) if name else None
        except NotFoundError:
            return None

    def _pool_of(self, save: Save) -> Pool:
        return self._members.pool(save.pool)

    def is_unknown(self, save: Save) -> bool:
        """It should have one in a pool that does not exist: nothing is done about it, neither made nor let go (I7)."""
        return bool(self._pool_of(save).mirror_pool) and self.pool_for(save) is None

    def to_drop(self, save: Save, mirror: Blob, own: Decision, stocks: Mapping[NodeId, Stock]) -> Drop | None:
        """``own``: about the checkpoint's own blob, which has to do without."""
        is_begun = bool(mirror.holders) and not counted(mirror)
        if not is_begun and (self.wants(save) or self.is_unknown(save)):
            return None
        # I7: what makes it dispensable is the checkpoint itself, as good as it was promised.
        if own.standing < (Standing.READABLE if is_begun else Standing.SAFE):
            return None
        # Who is down is asked when it is back.
        can_go_on = not is_begun or any(_can_be_let_go(holder.node_id, stocks) for holder in mirror.holders)
        return Drop(mirror) if can_go_on else None

    async def record(self, stored: Stored[Save], found: MirrorStanding) -> Save | None:
        """What the catalog says of it: that it is there once all of it is, and no longer once it goes or is lost (P4).
        The save, if that was news.
        """
        save = stored.value
        name = save.mirror_pool
        if not self.wants(save) or not found.is_readable:
            name = "" if not self.is_unknown(save) else name
        elif found.is_full:
            name = self._pool_of(save).mirror_pool
        if name == save.mirror_pool:
            return None
        log.info("mirror_recorded", job=save.job, step=save.step, mirror_pool=name or "none")
        return await self._catalog.amend(stored.key, save.save_id, lambda known: replace(known, mirror_pool=name))


def _can_be_let_go(node_id: NodeId, stocks: Mapping[NodeId, Stock]) -> bool:
    """A node that is up drops it, and one that is no more has dropped it."""
    return node_id not in stocks or stocks[node_id].liveness is Liveness.UP
