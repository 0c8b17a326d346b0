"""What a cluster is made of, as immutable values: nodes and their disks, pools, groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sdrs_core.errors import InvalidArgumentError, UnsupportedError
from sdrs_core.ids import DiskId, GroupId, NodeId, PoolName, check_name
from sdrs_core.levels import Level

DEFAULT_POOL = PoolName("default")


class DiskState(StrEnum):
    OK = "ok"
    NEAR_FULL = "near_full"
    FULL = "full"
    FAILED = "failed"

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
class Node:
    id: NodeId
    endpoints: Endpoints
    domain: str
    pid: int
    version: str
    state: NodeState = NodeState.DOWN
    disks: tuple[Disk, ...] = ()
    last_seen_unix_ms: int = 0

    @property
    def takes_writes(self) -> bool:
        return self.state is NodeState.UP and any(disk.state.takes_writes for disk in self.disks)


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


@dataclass(frozen=True, slots=True)
class Group:
    id: GroupId
    pool: PoolName
    epoch: int
    members: tuple[NodeId, ...]
    primary: NodeId


@dataclass(frozen=True, slots=True)
class Authority:
    """Who commands: a controller's term, and how much history it knows. Nodes refuse a lower one (P14, P18)."""

    incarnation: int = 0
    term: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """What makes one node obey: who commands, and the secret that only the two share, to sign the command with."""

    authority: Authority
    secret: str


def check_pool(pool: Pool) -> Pool:
    """Refuse what cannot be kept; L2 and L3 are refused until they exist."""
    check_name(pool.name, "pool")
    check_level(pool.level)
    if pool.mirrors > 1 or pool.data_fragments > 1 or pool.parity_fragments:
        raise InvalidArgumentError(
            f'pool "{pool.name}" at L1 stores one copy: leave out --mirrors and --ec, or choose the level that '
            f"uses them"
        )
    return pool


def check_level(level: Level) -> Level:
    if level is Level.NONE:
        raise InvalidArgumentError("a pool needs a level: use --level L1")
    if level > Level.L1:
        raise UnsupportedError(
            f"level {level} does not exist in this version: only L1 (one copy) can be promised; use --level L1"
        )
    return level


def choose_group(
    groups: list[Group], nodes: dict[NodeId, Node], *, rank: int, host: str, avoid: frozenset[NodeId]
) -> Group | None:
    """The group that a rank should save to: its own host's, then spread by rank; only primaries that take writes.

    Ranks of one host with several nodes are spread too, so that all disks work.
    """
    usable = [g for g in groups if g.primary not in avoid and g.primary in nodes and nodes[g.primary].takes_writes]
    if not usable:
        return None
    local = [g for g in usable if host and nodes[g.primary].endpoints.host == host]
    candidates = sorted(local or usable, key=lambda g: g.id)
    return candidates[rank % len(candidates)]
