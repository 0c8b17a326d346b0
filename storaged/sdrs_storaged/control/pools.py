"""Pools: made, changed and deleted, each by transaction together with its layout and groups."""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.cluster import DEFAULT_POOL, Pool, ReadPolicy, check_pool
from sdrs_core.errors import AlreadyExistsError, RefusedError, UnsupportedError
from sdrs_core.ids import PoolName, random_id
from sdrs_core.levels import Level
from sdrs_storaged.control import keys
from sdrs_storaged.control.cluster_map import ClusterMap
from sdrs_storaged.control.groups import Groups
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare, Delete, DeletePrefix, Op
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.control.tables import Layout, PoolRecord, Tables
from sdrs_storaged.logs import get_log

log = get_log("pools")


class Pools:
    def __init__(
        self, records: Records, tables: Tables, members: Members, groups: Groups, cluster_map: ClusterMap
    ) -> None:
        self._records = records
        self._tables = tables
        self._members = members
        self._groups = groups
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
        self._check_domains(pool)
        record, layout = PoolRecord(pool, request_id), Layout(1)
        key, layout_key = keys.pool(pool.name), keys.layout(pool.name)
        revision = await self._records.commit([Compare.absent(key)], [put(key, record), put(layout_key, layout)])
        self._tables.pools[pool.name] = Stored(key, record, revision)
        self._tables.layouts[pool.name] = Stored(layout_key, layout, revision)
        await self._groups.plan([pool.name])
        log.info("pool_created", pool=pool.name, fault_level=str(pool.level), mirrors=pool.mirrors)
        return pool

    def _check_domains(self, pool: Pool) -> None:
        domains = {stored.value.node.domain for stored in self._tables.nodes.values()}
        missing = pool.copies - len(domains)
        if pool.copies > 1 and missing > 0:
            fewer = f" or use --mirrors {len(domains)}" if len(domains) > 1 else ""
            raise RefusedError(
                f'pool "{pool.name}" needs {pool.copies} failure domains for {pool.mirrors} mirrors, the cluster has '
                f"{len(domains)}: add {missing} {'node' if missing == 1 else 'nodes'} with a node.domain of "
                f"{'its' if missing == 1 else 'their'} own{fewer}"
            )

    async def update(
        self,
        name: str,
        *,
        retention: dict[str, int],
        level: Level | None = None,
        mirrors: int | None = None,
        allow_degraded: bool | None = None,
        read_policy: ReadPolicy | None = None,
    ) -> Pool:
        async with self._tables.change():
            pool = self._members.pool(name)
            known = self._tables.pools[pool.name]
            level = pool.level if level is None else level
            default_mirrors = max(2, pool.mirrors) if level is Level.L2 else pool.mirrors
            changed = check_pool(
                replace(
                    pool,
                    level=level,
                    mirrors=default_mirrors if mirrors is None else mirrors,
                    allow_degraded=pool.allow_degraded if allow_degraded is None else allow_degraded,
                    read_policy=read_policy or pool.read_policy,
                    retention=replace(pool.retention, **retention),
                )
            )
            if changed.copies < pool.copies:
                raise UnsupportedError(
                    f'pool "{name}" keeps {pool.copies} copies: fewer are not possible yet. Make another pool, or let '
                    "saves go on with fewer copies while nodes are missing: --allow-degraded"
                )
            self._check_domains(changed)
            record = replace(known.value, pool=changed)
            revision = await self._records.commit([known.unchanged()], [put(known.key, record)])
            self._tables.pools[pool.name] = Stored(known.key, record, revision)
            if changed.copies != pool.copies:
                await self._groups.plan([pool.name])
        self._map.raise_number()
        log.info("pool_changed", pool=name, changed=str(changed))
        return changed

    async def delete(self, name: str, *, checkpoint_count: int) -> None:
        if checkpoint_count:
            raise RefusedError(
                f'pool "{name}" still holds {checkpoint_count} checkpoints or pending saves: delete those first'
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
        # The layout goes with the pool, so a commit that was validated against it cannot pass any more (P7).
        writes: list[Op] = [Delete(known.key), Delete(layout.key), DeletePrefix(keys.groups_of(name))]
        floor = max((stored.value.epoch for stored in groups), default=0)
        writes.append(put(keys.epoch_floor(name), floor))
        await self._records.commit([known.unchanged(), layout.unchanged()], writes)
        del self._tables.pools[name], self._tables.layouts[name]
        for stored in groups:
            del self._tables.groups[stored.value.id]
