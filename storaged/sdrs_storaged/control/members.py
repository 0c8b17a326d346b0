"""Who belongs to the cluster, as the controller sees it now: nodes, pools and groups, and how nodes join."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sdrs_core.cluster import Authority, Disk, DiskState, Group, Node, NodeState, Order, Pool, Staging
from sdrs_core.errors import NotFoundError, PermissionDeniedError, RefusedError
from sdrs_core.failover import Liveness, NodeFacts, View, problem_of, refusal_of
from sdrs_core.ids import DiskId, GroupId, NodeId, PoolName, SaveId, check_name
from sdrs_proto.signing import shared_secret
from sdrs_storaged.control import keys
from sdrs_storaged.control.cluster_map import ClusterMap
from sdrs_storaged.control.detector import Detector
from sdrs_storaged.control.groups import Groups
from sdrs_storaged.control.meta.store import Compare, Op
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.control.tables import ClusterRecord, Layout, NodeRecord, Tables
from sdrs_storaged.control.terms import Terms
from sdrs_storaged.logs import get_log

log = get_log("members")

_MOMENT_SECONDS = 0.05
# The daemon of a node that was removed finds that out within a beat, and is not to join again before it is stopped.
_TURNED_AWAY_SECONDS = 60.0


class Members:
    def __init__(
        self,
        records: Records,
        cluster: ClusterRecord,
        tables: Tables,
        groups: Groups,
        detector: Detector,
        cluster_map: ClusterMap,
        terms: Terms,
    ) -> None:
        self._records = records
        self._terms = terms
        self.cluster = cluster
        self._tables = tables
        self._groups = groups
        self._detector = detector
        self._map = cluster_map
        self._taking_saves: tuple[object, dict[PoolName, tuple[list[Group], dict[NodeId, Node]]]] = (None, {})
        # Pools that are being deleted: no save begins in them.
        self.leaving: set[PoolName] = set()
        # One operation that takes nodes out of use at a time: two that are each fine may together leave too few.
        self.shrinking = asyncio.Lock()
        self._removed: dict[NodeId, tuple[str, float]] = {}
        # Which groups receive saves now; who knows that is wired later.
        self.busy_groups: Callable[[], frozenset[GroupId]] = frozenset
        # This controller has seen to it that the groups are those of its nodes.
        self._is_planned = False

    async def settle_doubt(self) -> None:
        await self._tables.settle_doubt()

    def authority(self) -> Authority:
        return Authority(
            self.cluster.incarnation, self._records.term.number, self._records.written_revision, self._terms.own_id
        )

    async def order(self, node_id: NodeId) -> Order:
        """What a command to this node carries; NotFoundError if it was removed meanwhile."""
        return Order(self.authority(), self.record(node_id).secret)

    # Nodes

    async def register(self, node: Node, node_key: str, *, seen: Authority) -> None:
        """A node says where it is. A name belongs to the node that first used it, by its key.

        ``seen``: the highest authority that it has obeyed.
        """
        check_name(node.id, "node id")
        async with self._tables.change():
            is_news = await self._register(node, node_key, seen)
        if is_news:
            self._map.raise_number()

    async def _register(self, node: Node, node_key: str, seen: Authority) -> bool:
        """Whether anything changed. Mostly it has not: all nodes register anew with each new controller, and then
        thousands must not cost a transaction, a plan and a new map each (P20).
        """
        secret = shared_secret(node_key)
        known = self._tables.nodes.get(node.id)
        # A record that came out of a copy has no secret (P19): it takes the first key that comes with its name.
        if known and known.value.secret and not hmac.compare_digest(known.value.secret, secret):
            raise PermissionDeniedError(
                f'node id "{node.id}" belongs to another node of this cluster: give this one an id of its own, '
                "or start it on the data_dir that it had before. If that is lost for good, remove the node that had it "
                f"(sdrs node remove {node.id}) and add a new one"
            )
        if known is None:
            self._check_not_removed(node.id, secret)
        # After that: a stranger under a known name must not be able to stop the cluster.
        await self._notice_time_travel(node.id, seen)
        joined = replace(node, state=NodeState.DOWN, disks=(), staging=None)
        joined = replace(joined, cordoned=False, cordoned_because="", draining=False, flapping=False)
        record = NodeRecord(joined, secret)
        if known:
            kept = known.value
            joined = replace(
                joined,
                cordoned=kept.node.cordoned,
                cordoned_because=kept.node.cordoned_because,
                draining=kept.node.draining,
            )
            record = replace(kept, node=joined, secret=secret)
        is_news = known is None or known.value != record
        has_moved = known is None or known.value.node.domain != node.domain
        # Before it is stored: the answer to that may be lost, and then it is planned when the node comes again.
        self._is_planned &= not has_moved and self._groups.has_group_of(node.id)
        if is_news:
            await self.store_node(record)
        if not self._is_planned:
            await self._groups.plan()
            self._is_planned = is_news = True
        log.info("node_registered", node=node.id, address=node.endpoints.grpc, pid=node.pid)
        return is_news

    def _check_not_removed(self, node_id: NodeId, secret: str) -> None:
        removed, until = self._removed.get(node_id, ("", 0.0))
        if removed == secret and self._detector.now_seconds() < until:
            raise RefusedError(
                f"node {node_id} was removed from this cluster: stop it. Started again later it joins as a new one",
                node=node_id,
            )
        self._removed.pop(node_id, None)

    async def store_node(self, record: NodeRecord, extra: Sequence[Op] = ()) -> None:
        """The caller holds the change."""
        key = keys.node(record.node.id)
        known = self._tables.nodes.get(record.node.id)
        compare = [known.unchanged() if known else Compare.absent(key)]
        revision = await self._records.commit(compare, [put(key, record), *extra])
        self._tables.nodes[record.node.id] = Stored(key, record, revision)

    def raise_map(self) -> None:
        """Nodes and clients are told."""
        self._map.raise_number()

    def plan_again(self) -> None:
        """The homes of groups are not those of the nodes there are: if nobody else plans them, the next node that
        registers does.
        """
        self._is_planned = False

    async def set_cordon(self, node_id: NodeId, *, cordoned: bool, because: str) -> None:
        async with self._tables.change():
            record = self.record(node_id)
            node = replace(record.node, cordoned=cordoned, cordoned_because=because if cordoned else "")
            await self.store_node(replace(record, node=node))
        self._map.raise_number()

    def forget(self, record: NodeRecord) -> None:
        """Its record is gone; whoever still runs under its name is turned away for a while."""
        node_id = record.node.id
        self._tables.nodes.pop(node_id, None)
        self._removed[node_id] = (record.secret, self._detector.now_seconds() + _TURNED_AWAY_SECONDS)
        self._detector.forget(node_id)
        self._map.raise_number()

    async def _notice_time_travel(self, node_id: NodeId, seen: Authority) -> None:
        # P18: this node followed another history than the one we know. Going on would commit and collect against the
        # past.
        ours = await self._records.store.revision()
        incarnation = self.cluster.incarnation
        is_later = seen.incarnation > incarnation or (seen.incarnation == incarnation and seen.revision > ours)
        if is_later or await self._terms.is_of_another_history(seen):
            self._records.frozen_because = (
                f"node {node_id} has seen a state of this cluster (incarnation {seen.incarnation}, term {seen.term}, "
                f"revision {seen.revision}) that is not in the controller's past ({incarnation}, "
                f"{self._records.term.number}, {ours}): the metadata was rolled back. Nothing is changed or collected "
                "until the newer metadata is put back"
            )
            log.error("metadata_rolled_back", node=node_id, seen_revision=seen.revision, own_revision=ours)
            raise RefusedError(self._records.frozen_because)

    def capability(self, save_id: SaveId) -> str:
        """Derived, so that every rank of a save gets the same one and none has to be stored (P5)."""
        return hmac.new(self.cluster.secret.encode(), save_id.encode(), hashlib.sha256).hexdigest()

    def check_capability(self, save_id: SaveId, capability: str) -> None:
        # As bytes: text beyond ASCII cannot be compared in constant time, and would be an error of another kind.
        if not hmac.compare_digest(capability.encode(), self.capability(save_id).encode()):
            raise PermissionDeniedError(f"the capability does not belong to save {save_id}: begin the save again")

    def authenticate(self, node_id: NodeId, node_key: str) -> None:
        known = self._tables.nodes.get(node_id)
        if known is None:
            raise NotFoundError(f"node {node_id} is not registered: register first", node=node_id)
        if not hmac.compare_digest(known.value.secret, shared_secret(node_key)):
            raise PermissionDeniedError(f"this is not node {node_id}: its key does not match")

    def beat(
        self,
        node_id: NodeId,
        disks: tuple[Disk, ...],
        stream: object,
        epochs: Mapping[GroupId, int] | None = None,
        staging: Staging | None = None,
    ) -> None:
        self._detector.beat(node_id, disks, stream, epochs, staging)

    def stream_ended(self, node_id: NodeId, stream: object) -> None:
        if node_id in self._tables.nodes:
            self._detector.stream_ended(self.node(node_id), stream)

    def record(self, node_id: NodeId) -> NodeRecord:
        known = self._tables.nodes.get(node_id)
        if known is None:
            names = ", ".join(sorted(self._tables.nodes)) or "none yet"
            raise NotFoundError(f'node "{node_id}" does not exist; known nodes: {names}', node=node_id)
        return known.value

    def retired_disks(self, node_id: NodeId) -> frozenset[DiskId]:
        """Those that will not come back, by an operator's word."""
        return frozenset(self.record(node_id).retired_disks)

    def draining_disks(self, node_id: NodeId) -> tuple[DiskId, ...]:
        return self.record(node_id).draining_disks

    def node(self, node_id: NodeId) -> Node:
        known = self.record(node_id)
        return replace(
            known.node,
            state=NodeState.UP if self._detector.is_up(node_id) else NodeState.DOWN,
            disks=tuple(_as_recorded(disk, known) for disk in self._detector.disks(node_id)),
            last_seen_unix_ms=self._detector.last_seen_unix_ms(node_id),
            flapping=self._detector.is_flapping(node_id),
            staging=self._detector.staging(node_id),
        )

    def domains(self) -> dict[NodeId, str]:
        return {node_id: stored.value.node.domain for node_id, stored in self._tables.nodes.items()}

    def node_ids(self) -> list[NodeId]:
        return sorted(self._tables.nodes)

    def nodes(self) -> list[Node]:
        return [self.node(node_id) for node_id in sorted(self._tables.nodes)]

    # Pools and groups

    def pool(self, name: str) -> Pool:
        known = self._tables.pools.get(PoolName(name))
        if known is None or name in self.leaving:
            names = ", ".join(sorted(self._tables.pools)) or "none yet"
            raise NotFoundError(
                f'pool "{name}" does not exist; known pools: {names}. See sdrs pool create --help',
                pool=name,
            )
        return known.value.pool

    def pools(self) -> list[Pool]:
        return [self._tables.pools[name].value.pool for name in sorted(self._tables.pools)]

    def layout(self, name: PoolName) -> Stored[Layout]:
        self.pool(name)
        return self._tables.layouts[name]

    def layouts(self) -> dict[PoolName, Stored[Layout]]:
        return dict(self._tables.layouts)

    def group(self, group_id: GroupId) -> Group:
        known = self._tables.groups.get(group_id)
        if known is None:
            names = ", ".join(sorted(self._tables.groups)[:8]) or "none yet"
            raise NotFoundError(f'group "{group_id}" does not exist; known groups: {names}', group=group_id)
        return known.value

    def groups(self, *, pool: str = "", node_id: str = "") -> list[Group]:
        found = (stored.value for stored in self._tables.groups.values())
        return sorted(
            (g for g in found if (not pool or g.pool == pool) and (not node_id or node_id in g.members)),
            key=lambda g: g.id,
        )

    def paused_because(self) -> str:
        return self._tables.automatic.value.paused_because

    def view(self) -> View:
        """All that a decision about groups looks at."""
        facts = {}
        for node in self.nodes():
            facts[node.id] = NodeFacts(
                id=node.id,
                domain=node.domain,
                liveness=self._detector.liveness(node.id),
                takes_writes=any(disk.state.takes_writes for disk in node.disks),
                cordoned=node.cordoned or node.draining,
                draining=node.draining,
                flapping=node.flapping,
                state_seconds=self._detector.state_seconds(node.id),
            )
        return View(
            nodes=facts,
            pools={pool.name: pool for pool in self.pools()},
            groups=tuple(self.groups()),
            paused=bool(self.paused_because()),
            shunned=self._groups.shunned(),
            moving=frozenset(self._groups.moving),
            busy=self.busy_groups(),
        )

    def is_moving(self, group_id: GroupId) -> bool:
        """Whether an operator moves it right now."""
        return group_id in self._groups.moving

    def is_unheard(self, node_id: NodeId) -> bool:
        """Whether this controller cannot tell yet if the node is alive."""
        return self._detector.liveness(node_id) is Liveness.UNKNOWN

    def shunned(self) -> frozenset[tuple[GroupId, NodeId]]:
        """Members that the primary of their group found failing or too slow."""
        return self._groups.shunned()

    def groups_taking_saves(self, pool: PoolName) -> tuple[list[Group], dict[NodeId, Node]]:
        """A pool's groups, each with the reason why it takes none now, if there is one; and all nodes."""
        # Every save asks, and a thousand ranks at once: what was true a moment ago is good enough to choose by.
        moment = (self._map.number, int(self._detector.now_seconds() / _MOMENT_SECONDS), frozenset(self._groups.moving))
        if self._taking_saves[0] != moment:
            self._taking_saves = (moment, {})
        known = self._taking_saves[1]
        if pool not in known:
            view = self.view()
            groups = [
                replace(g, problem=self._groups.move_in_progress(g.id) or refusal_of(g, view))
                for g in self.groups(pool=pool)
            ]
            known[pool] = groups, {node.id: node for node in self.nodes()}
        return known[pool]

    def with_problems(self, groups: list[Group]) -> list[Group]:
        """As operators see them: each with what is wrong with it."""
        view = self.view()
        return [replace(group, problem=problem_of(group, view)) for group in groups]


def _as_recorded(disk: Disk, record: NodeRecord) -> Disk:
    """The record says whether it is drained; its node reports that too, as it was told last."""
    is_closed = disk.id in record.draining_disks or disk.id in record.retired_disks
    if is_closed and disk.state is not DiskState.FAILED:
        return replace(disk, state=DiskState.DRAINING)
    if not is_closed and disk.state is DiskState.DRAINING:
        return replace(disk, state=DiskState.OK)
    return disk
