"""Nodes, pools and groups: held in memory, changed by transaction (P3)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from sdrs_core.cluster import (
    DEFAULT_POOL,
    Authority,
    Disk,
    Group,
    Node,
    NodeState,
    Order,
    Pool,
    check_level,
    check_pool,
)
from sdrs_core.errors import AlreadyExistsError, NotFoundError, PermissionDeniedError, RefusedError, UnavailableError
from sdrs_core.ids import ClusterId, GroupId, NodeId, PoolName, SaveId, check_name, random_id
from sdrs_core.levels import Level
from sdrs_proto.signing import shared_secret
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.meta.store import Compare, Delete, DeletePrefix, Op
from sdrs_storaged.control.records import MAX_TXN_RECORDS, ConflictError, Records, Stored, put
from sdrs_storaged.logs import get_log

log = get_log("members")


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    id: ClusterId
    incarnation: int
    # Capabilities of saves are derived from it (P5); it never leaves the controller.
    secret: str


@dataclass(frozen=True, slots=True)
class NodeRecord:
    node: Node
    secret: str  # shared with the node alone; it signs what the node is told to destroy


@dataclass(frozen=True, slots=True)
class PoolRecord:
    pool: Pool
    # Whoever repeats the request that made it (its answer was lost) gets the pool, not an error.
    request_id: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A pool's layout number: it rises with each change of its groups (P7)."""

    number: int


@dataclass(slots=True)
class _Beat:
    disks: tuple[Disk, ...]
    seen_monotonic_seconds: float
    seen_unix_ms: int
    stream: object


class Members:
    def __init__(self, records: Records, clock: Clock, cluster: ClusterRecord, *, suspect_after_seconds: float) -> None:
        self._records = records
        self._clock = clock
        self.cluster = cluster
        self._suspect_after_seconds = suspect_after_seconds
        self._nodes: dict[NodeId, Stored[NodeRecord]] = {}
        self._pools: dict[PoolName, Stored[PoolRecord]] = {}
        self._layouts: dict[PoolName, Stored[Layout]] = {}
        self._groups: dict[GroupId, Stored[Group]] = {}
        self._beats: dict[NodeId, _Beat] = {}
        self._changing = asyncio.Lock()
        self._in_doubt = False
        self._leaving: set[PoolName] = set()

    @staticmethod
    async def found_cluster(records: Records) -> ClusterRecord:
        """The cluster's own record, made on the first start."""
        known = await records.get(keys.CLUSTER, ClusterRecord)
        if known:
            return known.value
        cluster = ClusterRecord(ClusterId(random_id()), incarnation=1, secret=random_id())
        await records.commit([Compare.absent(keys.CLUSTER)], [put(keys.CLUSTER, cluster)])
        return cluster

    async def load(self, *, default_pool: bool) -> None:
        await self._read()
        if default_pool and DEFAULT_POOL not in self._pools:
            await self.create_pool(Pool(DEFAULT_POOL, Level.L1), request_id=random_id())

    async def _read(self) -> None:
        nodes = {r.value.node.id: r async for r in self._records.all(keys.NODES, NodeRecord)}
        pools = {r.value.pool.name: r async for r in self._records.all(keys.POOLS, PoolRecord)}
        groups = {r.value.id: r async for r in self._records.all(keys.GROUPS, Group)}
        layouts = {r.key.removeprefix(keys.LAYOUTS): r async for r in self._records.all(keys.LAYOUTS, Layout)}
        self._nodes, self._pools, self._groups = nodes, pools, groups
        self._layouts = {name: layouts[name] for name in pools}

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time, so that what is in memory is what the next one compares."""
        async with self._changing:
            if self._in_doubt:
                await self._read()
                self._in_doubt = False
            try:
                yield
            except ConflictError as error:
                self._in_doubt = True
                raise UnavailableError("the records of the cluster changed in between: try again") from error
            except (UnavailableError, asyncio.CancelledError):
                # The change may have happened, and what is in memory be the past.
                self._in_doubt = True
                raise

    async def settle_doubt(self) -> None:
        """Read everything again, if the store left a change unanswered."""
        if self._in_doubt:
            async with self._change():
                pass

    async def authority(self) -> Authority:
        revision = await self._records.store.revision()
        return Authority(self.cluster.incarnation, self._records.term.number, revision)

    async def order(self, node_id: NodeId) -> Order:
        """What a command to this node carries."""
        return Order(await self.authority(), self._nodes[node_id].value.secret)

    # Nodes

    async def register(self, node: Node, node_key: str, *, incarnation: int, revision: int) -> None:
        """A node says where it is. A name belongs to the node that first used it, by its key."""
        check_name(node.id, "node id")
        async with self._change():
            await self._register(node, node_key, incarnation, revision)

    async def _register(self, node: Node, node_key: str, incarnation: int, seen_revision: int) -> None:
        await self._notice_time_travel(node.id, incarnation, seen_revision)
        secret = shared_secret(node_key)
        known = self._nodes.get(node.id)
        # A record that came out of a copy has no secret (P19): it takes the first key that comes with its name.
        if known and known.value.secret and not hmac.compare_digest(known.value.secret, secret):
            raise PermissionDeniedError(
                f'node id "{node.id}" belongs to another node of this cluster: give this one an id of its own, '
                "or start it on the data_dir that it had before"
            )
        record = NodeRecord(replace(node, state=NodeState.DOWN, disks=()), secret)
        missing = [name for name in self._pools if not self._has_group(name, node.id)]
        compare = [known.unchanged() if known else Compare.absent(keys.node(node.id))]
        revision = await self._records.commit(compare, [put(keys.node(node.id), record)])
        self._nodes[node.id] = Stored(keys.node(node.id), record, revision)
        for name in missing:
            await self._add_groups(name, [node.id])
        log.info("node_registered", node=node.id, address=node.endpoints.grpc, pid=node.pid)

    async def _notice_time_travel(self, node_id: NodeId, incarnation: int, revision: int) -> None:
        # P18: this node followed a later history than the one we know. Going on would commit and collect against the
        # past.
        ours = await self._records.store.revision()
        if incarnation > self.cluster.incarnation or (incarnation == self.cluster.incarnation and revision > ours):
            self._records.frozen_because = (
                f"node {node_id} has seen a later state of this cluster (incarnation {incarnation}, revision "
                f"{revision}) than the "
                f"controller knows ({self.cluster.incarnation}, {ours}): the metadata was rolled back. Nothing "
                f"is changed or "
                "collected until the newer metadata is put back"
            )
            log.error("metadata_rolled_back", node=node_id, seen_revision=revision, own_revision=ours)
            raise RefusedError(self._records.frozen_because)

    def capability(self, save_id: SaveId) -> str:
        """Derived, so that every rank of a save gets the same one and none has to be stored (P5)."""
        return hmac.new(self.cluster.secret.encode(), save_id.encode(), hashlib.sha256).hexdigest()

    def check_capability(self, save_id: SaveId, capability: str) -> None:
        # As bytes: text beyond ASCII cannot be compared in constant time, and would be an error of another kind.
        if not hmac.compare_digest(capability.encode(), self.capability(save_id).encode()):
            raise PermissionDeniedError(f"the capability does not belong to save {save_id}: begin the save again")

    def authenticate(self, node_id: NodeId, node_key: str) -> None:
        known = self._nodes.get(node_id)
        if known is None:
            raise NotFoundError(f"node {node_id} is not registered: register first", node=node_id)
        if not hmac.compare_digest(known.value.secret, shared_secret(node_key)):
            raise PermissionDeniedError(f"this is not node {node_id}: its key does not match")

    def beat(self, node_id: NodeId, disks: tuple[Disk, ...], stream: object) -> None:
        self._beats[node_id] = _Beat(disks, self._clock.monotonic_seconds(), self._clock.unix_ms(), stream)

    def stream_ended(self, node_id: NodeId, stream: object) -> None:
        """Only the newest stream speaks for its node: an old one may end after the node came back."""
        beat = self._beats.get(node_id)
        if beat and beat.stream is stream:
            beat.stream = None
            log.warning("node_lost", node=node_id)

    def node(self, node_id: NodeId) -> Node:
        known = self._nodes.get(node_id)
        if known is None:
            names = ", ".join(sorted(self._nodes)) or "none yet"
            raise NotFoundError(f'node "{node_id}" does not exist; known nodes: {names}', node=node_id)
        beat = self._beats.get(node_id)
        if beat is None:
            return known.value.node
        silent_seconds = self._clock.monotonic_seconds() - beat.seen_monotonic_seconds
        is_up = beat.stream is not None and silent_seconds <= self._suspect_after_seconds
        state = NodeState.UP if is_up else NodeState.DOWN
        return replace(known.value.node, state=state, disks=beat.disks, last_seen_unix_ms=beat.seen_unix_ms)

    def nodes(self) -> list[Node]:
        return [self.node(node_id) for node_id in sorted(self._nodes)]

    # Pools and groups

    def pool(self, name: str) -> Pool:
        known = self._pools.get(PoolName(name))
        if known is None or name in self._leaving:
            names = ", ".join(sorted(self._pools)) or "none yet"
            raise NotFoundError(
                f'pool "{name}" does not exist; known pools: {names}. Make it with: sdrs pool create {name} --level L1',
                pool=name,
            )
        return known.value.pool

    def pools(self) -> list[Pool]:
        return [self._pools[name].value.pool for name in sorted(self._pools)]

    def layout(self, name: PoolName) -> Stored[Layout]:
        self.pool(name)
        return self._layouts[name]

    def layouts(self) -> dict[PoolName, Stored[Layout]]:
        return dict(self._layouts)

    def group(self, group_id: GroupId) -> Group:
        known = self._groups.get(group_id)
        if known is None:
            raise NotFoundError(f'group "{group_id}" does not exist', group=group_id)
        return known.value

    def groups(self, *, pool: str = "", node_id: str = "") -> list[Group]:
        found = (stored.value for stored in self._groups.values())
        return sorted(
            (g for g in found if (not pool or g.pool == pool) and (not node_id or node_id in g.members)),
            key=lambda g: g.id,
        )

    async def create_pool(self, pool: Pool, request_id: str) -> Pool:
        check_pool(pool)
        async with self._change():
            return await self._create_pool(pool, request_id)

    async def _create_pool(self, pool: Pool, request_id: str) -> Pool:
        known = self._pools.get(pool.name)
        if known:
            if known.value.request_id == request_id:
                # Its groups are made by transactions of their own, which may have been missed.
                await self._add_groups(pool.name, [n for n in self._nodes if not self._has_group(pool.name, n)])
                return known.value.pool
            raise AlreadyExistsError(
                f'pool "{pool.name}" exists already: change it with "sdrs pool set", or choose another name'
            )
        record, layout = PoolRecord(pool, request_id), Layout(1)
        key, layout_key = keys.pool(pool.name), keys.layout(pool.name)
        revision = await self._records.commit([Compare.absent(key)], [put(key, record), put(layout_key, layout)])
        self._pools[pool.name] = Stored(key, record, revision)
        self._layouts[pool.name] = Stored(layout_key, layout, revision)
        await self._add_groups(pool.name, list(self._nodes))
        log.info("pool_created", pool=pool.name, fault_level=str(pool.level))
        return pool

    async def update_pool(self, name: str, *, level: Level | None, retention: dict[str, int]) -> Pool:
        if level is not None:
            check_level(level)
        async with self._change():
            pool = self.pool(name)
            known = self._pools[pool.name]
            changed = replace(pool, retention=replace(pool.retention, **retention))
            record = replace(known.value, pool=changed)
            revision = await self._records.commit([known.unchanged()], [put(known.key, record)])
            self._pools[pool.name] = Stored(known.key, record, revision)
        log.info("pool_changed", pool=name, retention=str(changed.retention))
        return changed

    async def delete_pool(self, name: str, *, checkpoint_count: int) -> None:
        if checkpoint_count:
            raise RefusedError(
                f'pool "{name}" still holds {checkpoint_count} checkpoints or pending saves: delete those first'
            )
        pool = self.pool(name)
        # From here on no save begins in it; one that is just beginning was in the count.
        self._leaving.add(pool.name)
        try:
            async with self._change():
                await self._delete_pool(pool.name)
        finally:
            self._leaving.discard(pool.name)
        log.info("pool_deleted", pool=name)

    async def _delete_pool(self, name: PoolName) -> None:
        if name not in self._pools:
            return  # by an earlier try, whose answer was lost
        known, layout = self._pools[name], self._layouts[name]
        # The layout goes with the pool, so a commit that was validated against it cannot pass any more (P7).
        drops: list[Op] = [Delete(known.key), Delete(layout.key), DeletePrefix(keys.groups_of(name))]
        await self._records.commit([known.unchanged(), layout.unchanged()], drops)
        del self._pools[name], self._layouts[name]
        for group in self.groups(pool=name):
            del self._groups[group.id]

    def _has_group(self, pool: PoolName, node_id: NodeId) -> bool:
        return any(stored.value.pool == pool and stored.value.primary == node_id for stored in self._groups.values())

    async def _add_groups(self, pool: PoolName, node_ids: list[NodeId]) -> None:
        """Each node is first in a group of its own; at L1 also its only member."""
        for start in range(0, len(node_ids), MAX_TXN_RECORDS):
            layout = self._layouts[pool]
            raised = Layout(layout.value.number + 1)
            # A colon is in no name: "a.b" of node "c" and "a" of node "b.c" are two groups.
            groups = [
                Group(GroupId(f"{pool}:{node_id}"), pool, 1, (node_id,), node_id)
                for node_id in node_ids[start : start + MAX_TXN_RECORDS]
            ]
            writes = [put(keys.group(pool, group.id), group) for group in groups]
            revision = await self._records.commit([layout.unchanged()], [*writes, put(layout.key, raised)])
            self._layouts[pool] = Stored(layout.key, raised, revision)
            for group in groups:
                self._groups[group.id] = Stored(keys.group(pool, group.id), group, revision)
