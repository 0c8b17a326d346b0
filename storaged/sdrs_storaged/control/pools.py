"""Pools: made, changed and deleted, each by transaction together with its layout and groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from sdrs_core.cluster import DEFAULT_POOL, Pool, check_pool
from sdrs_core.departures import shortage_without
from sdrs_core.errors import AlreadyExistsError, RefusedError
from sdrs_core.failover import decide_failover
from sdrs_core.ids import GroupId, PoolName, random_id
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange, amended, check_mirror, check_nodes, in_mib, needs_more_domains, reshapes
from sdrs_storaged.control import keys
from sdrs_storaged.control.cluster_map import ClusterMap
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.groups import Groups
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare, Delete, DeletePrefix, Op
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.control.tables import Layout, PoolRecord, Tables
from sdrs_storaged.logs import get_log

log = get_log("pools")


class Pools:
    def __init__(
        self,
        records: Records,
        tables: Tables,
        members: Members,
        groups: Groups,
        events: Events,
        cluster_map: ClusterMap,
    ) -> None:
        self._records = records
        self._tables = tables
        self._members = members
        self._groups = groups
        self._events = events
        self._map = cluster_map

    async def make_default(self) -> None:
        if DEFAULT_POOL not in self._tables.pools:
            await self.create(Pool(DEFAULT_POOL, Level.L1), request_id=random_id())

    async def create(self, pool: Pool, request_id: str) -> Pool:
        check_pool(pool)
        async with self._tables.change():
            made = await self._create(pool, request_id)
        self._map.raise_number()
        return made

    async def _create(self, pool: Pool, request_id: str) -> Pool:
        known = self._tables.pools.get(pool.name)
        if known:
            if known.value.request_id == request_id:
                # Its groups are made by transactions of their own, which may have been missed.
                await self._groups.plan([pool.name])
                return known.value.pool
            raise AlreadyExistsError(
                f'pool "{pool.name}" exists already: change it with "sdrs pool set", or choose another name'
            )
        check_nodes(pool.node_ids, self._tables.nodes)
        check_mirror(pool, self._pools())
        self._check_domains(pool)
        record, layout = PoolRecord(pool, request_id), Layout(1)
        key, layout_key = keys.pool(pool.name), keys.layout(pool.name)
        event = self._events.entry("pool_created", f"{_told(pool)}, by an operator", pool=pool.name)
        writes = [put(key, record), put(layout_key, layout), event]
        revision = await self._records.commit([Compare.absent(key)], writes)
        self._tables.pools[pool.name] = Stored(key, record, revision)
        self._tables.layouts[pool.name] = Stored(layout_key, layout, revision)
        await self._groups.plan([pool.name])
        log.info("pool_created", pool=pool.name, fault_level=str(pool.level), stores=_told(pool))
        return pool

    def _check_domains(self, pool: Pool) -> None:
        nodes = [r.value.node for node_id, r in self._tables.nodes.items() if pool.has_node(node_id)]
        shortage = needs_more_domains(pool, [node.domain for node in nodes if not node.draining])
        if shortage:
            raise RefusedError(shortage, pool=pool.name)

    def _pools(self) -> dict[PoolName, Pool]:
        return {name: stored.value.pool for name, stored in self._tables.pools.items()}

    # Changing

    async def update(self, name: str, change: PoolChange) -> Pool:
        """What moves groups is followed by them at once, before saves go on; data follows in the background."""
        async with self._members.shrinking:
            before = self._members.pool(name)
            planned = amended(before, change, self._tables.nodes)
            is_reshaped = reshapes(before, planned)
            if is_reshaped and change.remove_nodes:
                self._check_leaving(planned.name, change)
            with self._kept_waiting(planned.name) if is_reshaped else nullcontext(frozenset[GroupId]()) as waiting:
                async with self._tables.change():
                    changed = await self._update(self._members.pool(name), change)
                    # Also if nothing is new: a former try may have been interrupted before this.
                    await self._groups.plan([changed.name])
                if is_reshaped:
                    await self._follow(changed.name, waiting)
        self._map.raise_number()
        log.info("pool_changed", pool=name, changed=str(changed))
        return changed

    def _check_leaving(self, name: PoolName, change: PoolChange) -> None:
        shortage = shortage_without(self._members.view(), set(change.remove_nodes), {name})
        if shortage:
            raise RefusedError(shortage, pool=name)

    async def _update(self, pool: Pool, change: PoolChange) -> Pool:
        known = self._tables.pools[pool.name]
        changed = amended(pool, change, self._tables.nodes)
        check_mirror(changed, self._pools())
        if changed == pool:
            return changed
        event = self._events.entry("pool_changed", f"{_difference(pool, changed)}, by an operator", pool=pool.name)
        if not reshapes(pool, changed):
            record = PoolRecord(changed, known.value.request_id)
            revision = await self._records.commit([known.unchanged()], [put(known.key, record), event])
            self._tables.pools[pool.name] = Stored(known.key, record, revision)
            return changed
        self._check_domains(changed)
        record = PoolRecord(changed, known.value.request_id)
        left = [node_id for node_id in self._tables.nodes if pool.has_node(node_id) and not changed.has_node(node_id)]
        # P7: the layout rises with the policy, so that no receipt counts that was checked against the former one.
        revision = await self._groups.leave(pool.name, left, [put(known.key, record), event])
        self._tables.pools[pool.name] = Stored(known.key, record, revision)
        return changed

    @contextmanager
    def _kept_waiting(self, name: PoolName) -> Iterator[frozenset[GroupId]]:
        """Saves that begin meanwhile wait for a moment, rather than being refused by a group that is about to grow."""
        mine = frozenset(group.id for group in self._members.groups(pool=name)) - self._groups.moving
        self._groups.moving |= mine
        try:
            yield mine
        finally:
            self._groups.moving -= mine

    async def _follow(self, name: PoolName, waiting: frozenset[GroupId]) -> None:
        """The groups take their new form now, also while failover is paused: an operator asked for it. What cannot be
        done yet is failover's, as after a restart.
        """
        view = self._members.view()
        view = replace(view, paused=False, moving=view.moving - waiting)
        reforms = [r for r in decide_failover(view, settle_seconds=0) if r.before.pool == name]
        if reforms:
            await self._groups.reform(reforms, lambda _: 0.0)

    # Deleting

    async def delete(self, name: str, *, checkpoint_count: int, mirror_count: int = 0) -> None:
        """``mirror_count``: checkpoints of other pools that have their mirror in it."""
        mirrored = sorted(pool.name for pool in self._members.pools() if pool.mirror_pool == name)
        if mirrored:
            raise RefusedError(
                f'pool "{name}" mirrors pool "{mirrored[0]}": end that first with "sdrs pool set {mirrored[0]} '
                '--mirror-ratio 0"'
            )
        if checkpoint_count:
            raise RefusedError(
                f'pool "{name}" still holds {checkpoint_count} checkpoints or pending saves: delete those first'
            )
        if mirror_count:
            raise RefusedError(
                f'pool "{name}" still holds mirrors of {mirror_count} checkpoints of other pools: they are dropped '
                'by themselves, see "sdrs repair status"'
            )
        pool = self._members.pool(name)
        # From here on no save begins in it; one that is just beginning was in the count.
        self._members.leaving.add(pool.name)
        try:
            async with self._tables.change():
                await self._delete(pool.name)
        finally:
            self._members.leaving.discard(pool.name)
        self._map.raise_number()
        log.info("pool_deleted", pool=name)

    async def _delete(self, name: PoolName) -> None:
        if name not in self._tables.pools:
            return  # by an earlier try, whose answer was lost
        known, layout = self._tables.pools[name], self._tables.layouts[name]
        groups = [stored for stored in self._tables.groups.values() if stored.value.pool == name]
        floor = await self._records.get(keys.epoch_floor(name), int)
        highest = max((floor.value if floor else 0, *(stored.value.epoch for stored in groups)))
        # The layout goes with the pool, so a commit that was validated against it cannot pass any more (P7).
        writes: list[Op] = [Delete(known.key), Delete(layout.key), DeletePrefix(keys.groups_of(name))]
        writes.append(put(keys.epoch_floor(name), highest))
        writes.append(self._events.entry("pool_deleted", f'pool "{name}" is no more, by an operator', pool=name))
        await self._records.commit([known.unchanged(), layout.unchanged()], writes)
        del self._tables.pools[name], self._tables.layouts[name]
        for stored in groups:
            del self._tables.groups[stored.value.id]


def _told(pool: Pool) -> str:
    stores = f"{pool.code} erasure code" if pool.code else f"{pool.member_count} copies"
    return f"{pool.level}, {'one copy' if pool.member_count == 1 else stores}"


def _difference(before: Pool, after: Pool) -> str:
    """For the history: what is another one than before."""
    words = [f"from {_told(before)} to {_told(after)}"] if _told(before) != _told(after) else []
    if before.node_ids != after.node_ids:
        words.append(f"its nodes are {', '.join(after.node_ids)}")
    if (before.mirror_pool, before.mirror_ratio) != (after.mirror_pool, after.mirror_ratio):
        mirrored = f"the newest {100 * after.mirror_ratio:g} % are mirrored to {after.mirror_pool}"
        words.append(mirrored if after.mirror_pool else "it is mirrored to no other pool")
    if before.quota_bytes != after.quota_bytes:
        words.append(f"its quota is {in_mib(after.quota_bytes)}" if after.quota_bytes else "it has no quota")
    if (before.retention, before.allow_degraded, before.read_policy) != (
        after.retention,
        after.allow_degraded,
        after.read_policy,
    ):
        words.append("its policy is another one")
    return "; ".join(words)
