"""Groups as they are changed: planned over a pool's nodes, and re-formed under a higher epoch (I3, I4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sdrs_core.cluster import Group
from sdrs_core.failover import Cause, Reform, first_epoch
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_core.placement import plan_homes
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.cluster_map import ClusterMap
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.meta.store import Delete, Op, Put
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.control.tables import ClusterRecord, Tables
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("groups")

# With its event each is two operations, and the layout is one more: well below what a transaction holds.
_MAX_PER_TXN = 50
# For how long a group does without a member that its primary found too slow.
_SHUN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Shun:
    by: NodeId
    until_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A group that was re-formed, and how long the trouble had lasted."""

    group: Group
    cause: str
    duration_seconds: float


class Groups:
    def __init__(
        self,
        records: Records,
        cluster: ClusterRecord,
        tables: Tables,
        events: Events,
        clock: Clock,
        cluster_map: ClusterMap,
    ) -> None:
        self._records = records
        self._incarnation = cluster.incarnation
        self._tables = tables
        self._events = events
        self._clock = clock
        self._map = cluster_map
        self._shunned: dict[tuple[GroupId, NodeId], _Shun] = {}
        # What an operator is moving now.
        self.moving: set[GroupId] = set()
        # Since this controller leads: changes of members, and of primaries with how long the trouble lasted.
        self.reforms_total = 0
        self.promotions_total = 0
        self.promotion_seconds_total = 0.0

    # What is known beside the records

    def shun(self, group_id: GroupId, node_id: NodeId, by: NodeId) -> None:
        """A primary that finds fault with one member after the other is at fault itself: it is cut off from them, or
        slow. Then it is the one that the group does without.
        """
        self.shunned()  # only those that still count
        blamed = [pair for pair, shun in self._shunned.items() if pair[0] == group_id and shun.by == by]
        if any(pair[1] != node_id for pair in blamed):
            for pair in blamed:
                del self._shunned[pair]
            node_id = by
        self._shunned[group_id, node_id] = _Shun(by, self._clock.monotonic_seconds() + _SHUN_SECONDS)

    def forgive(self, node_id: NodeId) -> None:
        """It is down: that explains why it failed its groups, and is over when it returns."""
        self._shunned = {pair: shun for pair, shun in self._shunned.items() if pair[1] != node_id}

    def shunned(self) -> frozenset[tuple[GroupId, NodeId]]:
        now = self._clock.monotonic_seconds()
        self._shunned = {pair: shun for pair, shun in self._shunned.items() if shun.until_seconds > now}
        return frozenset(self._shunned)

    def has_group_of(self, node_id: NodeId) -> bool:
        """Whether the node leads a group of its own in every pool: the answer to making one may have been lost."""
        return all(
            _group_id(name, node_id) in self._tables.groups
            for name, stored in self._tables.pools.items()
            if stored.value.pool.has_node(node_id)
        )

    def move_in_progress(self, group_id: GroupId) -> str:
        return f"group {group_id} is being moved: saves go to others meanwhile" if group_id in self.moving else ""

    # Planning: who belongs where when all is well. The caller holds the change.

    async def plan(self, pools: Iterable[PoolName] | None = None, *, back_home: NodeId | None = None) -> None:
        """Bring the homes of all groups in line with the nodes there are; a node that is new gets a group of its own.

        Members are left alone: those follow their homes by failover's decision, under an epoch of their own.
        ``back_home``: a node that was to leave and stays leads its own groups again.
        """
        for name in list(pools if pools is not None else self._tables.pools):
            changed = [group for group in await self._planned(name, back_home) if self._is_news(group)]
            for start in range(0, len(changed), _MAX_PER_TXN):
                await self._store(name, changed[start : start + _MAX_PER_TXN], [])

    async def _planned(self, name: PoolName, back_home: NodeId | None) -> list[Group]:
        pool = self._tables.pools[name].value.pool
        mine = {node_id: r.value.node for node_id, r in self._tables.nodes.items() if pool.has_node(node_id)}
        # A node that is being drained is in nobody's home, also not in that of its own group.
        domains = {node_id: node.domain for node_id, node in mine.items() if not node.draining}
        owners = {_group_id(name, node_id): node_id for node_id in sorted(mine)}
        current = {g.value.id: g.value.home for g in self._tables.groups.values() if g.value.pool == name}
        if back_home in domains:
            own = _group_id(name, back_home)
            current[own] = (back_home, *(node_id for node_id in current.get(own, ()) if node_id != back_home))
        planned = []
        for group_id, home in sorted(plan_homes(domains, pool.member_count, current, owners).items()):
            known = self._tables.groups.get(group_id)
            if known:
                planned.append(replace(known.value, home=home))
            else:
                planned.append(Group(group_id, name, await self._new_epoch(name), home, home[0], home))
        return planned

    async def _new_epoch(self, pool: PoolName) -> int:
        """Above all that nodes may remember of a group of that name (I3)."""
        floor = await self._records.get(keys.epoch_floor(pool), int)
        return max(first_epoch(self._incarnation), floor.value + 1 if floor else 0)

    async def leave(self, pool: PoolName, node_ids: Iterable[NodeId], extra: Sequence[Op] = ()) -> int:
        """The groups named after these nodes are no more, and ``extra`` is written with that. The caller holds the
        change. The revision at which ``extra`` was written.

        The layout rises in any case: no receipt that was checked before counts from here on (P7). The highest epoch is
        kept: a group that comes under the same name begins above what nodes may remember (I3).
        """
        floor = await self._records.get(keys.epoch_floor(pool), int)
        gone = [self._tables.groups[own] for n in node_ids if (own := _group_id(pool, n)) in self._tables.groups]
        highest = max((floor.value if floor else 0, *(stored.value.epoch for stored in gone)))
        revision = await self._drop_groups(pool, gone[:_MAX_PER_TXN], highest, extra)
        for start in range(_MAX_PER_TXN, len(gone), _MAX_PER_TXN):
            await self._drop_groups(pool, gone[start : start + _MAX_PER_TXN], highest, ())
        return revision

    async def _drop_groups(
        self, pool: PoolName, gone: Sequence[Stored[Group]], highest_epoch: int, extra: Sequence[Op]
    ) -> int:
        layout = self._tables.layouts[pool]
        raised = layout.value.raised()
        writes: list[Op] = [*extra, put(layout.key, raised), *(Delete(stored.key) for stored in gone)]
        if gone:
            writes.append(put(keys.epoch_floor(pool), highest_epoch))
        revision = await self._records.commit([layout.unchanged()], writes)
        self._tables.layouts[pool] = Stored(layout.key, raised, revision)
        for stored in gone:
            del self._tables.groups[stored.value.id]
        return revision

    def _is_news(self, group: Group) -> bool:
        known = self._tables.groups.get(group.id)
        return known is None or known.value != group

    # Re-forming

    async def reform(self, changes: Sequence[Reform], trouble_seconds: Callable[[NodeId], float]) -> list[Group]:
        """Carry out what was decided; what moved since the decision is left to the next one.

        ``trouble_seconds``: how long ago the first sign of trouble with a node was, for the history.
        """
        done: list[Group] = []
        async with self._tables.change():
            for pool in sorted({change.before.pool for change in changes}):
                current = [c for c in changes if c.before.pool == pool and self._is_current(c.before)]
                # P20: one event, one batch of transactions, the layout raised once for each.
                for start in range(0, len(current), _MAX_PER_TXN):
                    done += await self._reform_batch(pool, current[start : start + _MAX_PER_TXN], trouble_seconds)
        self._map.raise_number()
        return done

    async def _reform_batch(
        self, pool: PoolName, changes: Sequence[Reform], trouble_seconds: Callable[[NodeId], float]
    ) -> list[Group]:
        outcomes = []
        history = []
        for change in changes:
            group = change.after
            gone = set(change.before.members) - set(change.members)
            seconds = max(map(trouble_seconds, gone), default=0.0)
            outcomes.append(Outcome(group, str(change.cause), seconds))
            history.append(
                self._events.entry(
                    str(change.cause),
                    _told(change),
                    pool=pool,
                    group_id=group.id,
                    node_id=group.primary,
                    epoch=group.epoch,
                    duration_ms=int(1000 * seconds),
                )
            )
        reach("failover.decided")
        await self._store(pool, [outcome.group for outcome in outcomes], history)
        reach("failover.stored")
        self.reforms_total += len(outcomes)
        for outcome, change in zip(outcomes, changes, strict=True):
            group = outcome.group
            if group.primary != change.before.primary:
                self.promotions_total += 1
                self.promotion_seconds_total += outcome.duration_seconds
            log.info(
                outcome.cause,
                group=group.id,
                node=group.primary,
                members=list(group.members),
                epoch=group.epoch,
                elapsed_ms=int(1000 * outcome.duration_seconds),
                why=change.why,
            )
        return [outcome.group for outcome in outcomes]

    async def move(self, group: Group, kind: str, why: str) -> Group:
        """An operator's change: ``group`` as it shall be, its epoch already raised. The caller holds the change."""
        entry = self._events.entry(
            kind, why, pool=group.pool, group_id=group.id, node_id=group.primary, epoch=group.epoch
        )
        await self._store(group.pool, [group], [entry])
        self._map.raise_number()
        log.info(kind, group=group.id, node=group.primary, members=list(group.members), epoch=group.epoch)
        return group

    def _is_current(self, group: Group) -> bool:
        known = self._tables.groups.get(group.id)
        return known is not None and known.value == group

    async def _store(self, pool: PoolName, groups: Sequence[Group], extra: Sequence[Put]) -> None:
        """Groups change only together with their pool's layout: whoever compares that has compared them (I3, P7)."""
        layout = self._tables.layouts[pool]
        raised = layout.value.raised()
        writes: list[Op] = [put(keys.group(pool, group.id), group) for group in groups]
        revision = await self._records.commit([layout.unchanged()], [*writes, put(layout.key, raised), *extra])
        self._tables.layouts[pool] = Stored(layout.key, raised, revision)
        for group in groups:
            self._tables.groups[group.id] = Stored(keys.group(pool, group.id), group, revision)


def _group_id(pool: PoolName, node_id: NodeId) -> GroupId:
    # A colon is in no name: "a.b" of node "c" and "a" of node "b.c" are two groups.
    return GroupId(f"{pool}:{node_id}")


def _told(change: Reform) -> str:
    """For the history: who leads now if that is another one, why, and who came in for whom that names."""
    leads = f"{change.primary} leads; " if change.primary != change.before.primary else ""
    is_named = change.cause is Cause.RESTORED
    joined = [] if is_named else [node_id for node_id in change.members if node_id not in change.before.members]
    joins = f"; {', '.join(joined)} {'joins' if len(joined) == 1 else 'join'}" if joined else ""
    return f"{leads}{change.why}{joins}"
