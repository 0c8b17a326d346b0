"""What a cluster is made of, as immutable values: nodes and their disks, pools, groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sdrs_core.codes import Code, check_code
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import DiskId, GroupId, NodeId, PoolName, check_name
from sdrs_core.levels import Level

DEFAULT_POOL = PoolName("default")


class DiskState(StrEnum):
    OK = "ok"
    NEAR_FULL = "near_full"
    FULL = "full"
    FAILED = "failed"
    # An operator's word: what it holds moves elsewhere, and nothing new comes.
    DRAINING = "draining"

    @property
    def takes_writes(self) -> bool:
        return self in (DiskState.OK, DiskState.NEAR_FULL)


@dataclass(frozen=True, slots=True)
class Disk:
    id: DiskId
    path: str
    state: DiskState
    capacity_bytes: int
    used_bytes: int
    fragment_count: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a node can be reached; ``unix`` works for callers on ``host`` only."""

    grpc: str
    data: str
    unix: str
    metrics: str
    host: str


class NodeState(StrEnum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Staging:
    """Saves of processes of a node's host, in its memory."""

    budget_bytes: int
    taken_bytes: int = 0
    # Of these, what processes that are gone left: stored by now, kept to be read, and the first to go for others.
    kept_bytes: int = 0
    # Sealed, and not stored yet; and for how long the oldest of them is.
    waiting_count: int = 0
    oldest_waiting_ms: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    id: NodeId
    endpoints: Endpoints
    domain: str
    pid: int
    version: str
    state: NodeState = NodeState.DOWN
    disks: tuple[Disk, ...] = ()
    last_seen_unix_ms: int = 0
    # An operator's word: it takes no part in new saves.
    cordoned: bool = False
    # In their words, if they gave any; goes with the cordon.
    cordoned_because: str = ""
    # An operator's word: what it holds moves elsewhere, so that it can be removed.
    draining: bool = False
    # It went away too often of late; told to readers, never stored.
    flapping: bool = False
    # As it told last, never stored; None: it stages nothing.
    staging: Staging | None = None

    @property
    def takes_writes(self) -> bool:
        return self.state is NodeState.UP and any(disk.state.takes_writes for disk in self.disks)


class ReadPolicy(StrEnum):
    """From which of its holders a blob is read first."""

    ROUND_ROBIN = "round_robin"
    LEAST_RESPONSE_TIME = "least_response_time"
    WEIGHTED_RESPONSE_TIME = "weighted_response_time"


@dataclass(frozen=True, slots=True)
class Retention:
    """Zero turns a rule off; with no rule on, everything is kept."""

    keep_last: int = 0
    keep_every_steps: int = 0
    max_age_seconds: int = 0

    @property
    def keeps_all(self) -> bool:
        return not (self.keep_last or self.max_age_seconds)


@dataclass(frozen=True, slots=True)
class Pool:
    name: PoolName
    level: Level
    mirrors: int = 1
    data_fragments: int = 1
    parity_fragments: int = 0
    retention: Retention = field(default_factory=Retention)
    # Saves go on with fewer copies when too few nodes are left; the level reached then says so (I6).
    allow_degraded: bool = False
    read_policy: ReadPolicy = ReadPolicy.ROUND_ROBIN

    # The newest checkpoints are mirrored whole in another pool, up to this proportion of the bytes of this one (L3).
    mirror_pool: str = ""
    mirror_ratio: float = 0.0
    # Whose disks it uses; empty: every node's.
    node_ids: tuple[NodeId, ...] = ()
    # Of the bytes of its checkpoints, without their redundancy; 0: no limit but the disks'.
    quota_bytes: int = 0

    @property
    def code(self) -> Code | None:
        return Code(self.data_fragments, self.parity_fragments) if self.level is Level.L3 else None

    @property
    def member_count(self) -> int:
        """How many members a full group has, each with a copy or a fragment of its own."""
        if self.level is Level.L3:
            return self.data_fragments + self.parity_fragments
        return self.mirrors if self.level is Level.L2 else 1

    @property
    def can_shrink(self) -> bool:
        """Whether saves go on with fewer members than a full group has."""
        return self.allow_degraded or self.level is Level.L3

    def has_node(self, node_id: NodeId) -> bool:
        return not self.node_ids or node_id in self.node_ids


@dataclass(frozen=True, slots=True)
class Group:
    """The unit of primary and replicas. Members are in the order in which they joined: who is earlier holds more."""

    id: GroupId
    pool: PoolName
    epoch: int
    members: tuple[NodeId, ...]
    primary: NodeId
    # Who its members are when all is well; the first is its preferred primary.
    home: tuple[NodeId, ...] = ()
    # Why it takes no saves, or not at full level; told to readers, never stored.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Authority:
    """Who commands: a controller's term, and how much history it knows. Nodes refuse a lower one (P14, P18)."""

    incarnation: int = 0
    term: int = 0
    # The highest that this term itself has written, or found when it began.
    revision: int = 0
    # Two terms of the same number, of a catalog that was put back to the past, are told apart by it.
    term_id: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What makes one node obey: who commands, and the secret that only the two share, to sign the command with."""

    authority: Authority
    secret: str


MAX_MIRRORS = 8


def check_pool(pool: Pool) -> Pool:
    """Refuse what cannot be kept."""
    check_name(pool.name, "pool")
    if pool.level is Level.NONE:
        raise InvalidArgumentError("a pool needs a level: use --level L1, L2 or L3")
    if pool.level is Level.L3:
        return _check_coded(pool)
    if pool.data_fragments > 1 or pool.parity_fragments:
        raise InvalidArgumentError(
            f'pool "{pool.name}" at {pool.level} stores whole copies: leave out --ec, which belongs to L3'
        )
    if pool.mirror_pool or pool.mirror_ratio:
        raise InvalidArgumentError(
            f'pool "{pool.name}" at {pool.level} is not mirrored to another pool: leave out --mirror-pool and '
            "--mirror-ratio, which belong to L3"
        )
    if pool.level is Level.L1 and pool.mirrors > 1:
        raise InvalidArgumentError(
            f'pool "{pool.name}" at L1 stores one copy: leave out --mirrors, or use --level L2 --mirrors {pool.mirrors}'
        )
    if pool.level is Level.L1 and pool.allow_degraded:
        raise InvalidArgumentError(
            f'pool "{pool.name}" at L1 has no level to fall below: leave out --allow-degraded, or use --level L2'
        )
    if pool.level is Level.L2 and not 2 <= pool.mirrors <= MAX_MIRRORS:
        raise InvalidArgumentError(
            f'pool "{pool.name}" at L2 stores 2 to {MAX_MIRRORS} copies, not {pool.mirrors}: use --mirrors 2'
        )
    return pool


def _check_coded(pool: Pool) -> Pool:
    if not pool.parity_fragments:
        raise InvalidArgumentError(f'pool "{pool.name}" at L3 needs an erasure code: use --ec 4+2')
    check_code(pool.data_fragments, pool.parity_fragments)
    if pool.mirrors > 1:
        raise InvalidArgumentError(
            f'pool "{pool.name}" at L3 stores fragments of a code: leave out --mirrors, or use --level L2'
        )
    if bool(pool.mirror_pool) != bool(pool.mirror_ratio):
        raise InvalidArgumentError(f'pool "{pool.name}": --mirror-pool and --mirror-ratio go together')
    if not 0 <= pool.mirror_ratio <= 1:
        raise InvalidArgumentError(
            f'pool "{pool.name}": mirror_ratio {pool.mirror_ratio:g} is not a proportion: use 0 to 1, 0.25 for example'
        )
    if pool.mirror_pool == pool.name:
        raise InvalidArgumentError(f'pool "{pool.name}" cannot be its own mirror: name another pool')
    return pool


def choose_group(
    groups: list[Group],
    nodes: dict[NodeId, Node],
    *,
    rank: int,
    host: str,
    avoid: frozenset[NodeId],
    shunned: frozenset[tuple[GroupId, NodeId]] = frozenset(),
    prefer: NodeId | None = None,
) -> Group | None:
    """The group that a rank should save to: its own host's, then spread by rank; only those that take saves now.

    Ranks of one host with several nodes are spread too, so that all disks work. ``shunned``: members that their primary
    found failing or too slow. ``prefer``: the node that has the rank's bytes already, before any other of its host.
    """
    usable = [g for g in groups if not g.problem and g.primary not in avoid and _takes_saves(g, nodes)]
    if not usable:
        return None
    local = [g for g in usable if host and nodes[g.primary].endpoints.host == host]
    # One whose members are all fine comes before one that is about to be re-formed, or would be if it could.
    doubtful = {group_id for group_id, _ in shunned.intersection((g.id, m) for g in usable for m in g.members)}
    whole = [g for g in usable if avoid.isdisjoint(g.members) and g.id not in doubtful]
    near = [g for g in whole if g in local]
    candidates = sorted(near or whole or local or usable, key=lambda g: g.id)
    own = [g for g in candidates if g.primary == prefer]
    fitting = own or candidates
    return fitting[rank % len(fitting)]


def _takes_saves(group: Group, nodes: dict[NodeId, Node]) -> bool:
    return group.primary in nodes and nodes[group.primary].takes_writes


def describe_move(group: Group, groups: Mapping[GroupId, Group]) -> str:
    """What became of ``group`` by the map; empty if it is as it was.

    A lower epoch is an older map's: of a controller that was just replaced, or one that has not heard yet.
    """
    now = groups.get(group.id)
    if now is None:
        return f"group {group.id} is no longer in the map"
    if now.epoch > group.epoch or (now.epoch == group.epoch and now.primary != group.primary):
        return f"group {group.id} is at epoch {now.epoch} with primary {now.primary} now, not at {group.epoch}"
    return ""
