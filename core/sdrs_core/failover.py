"""Who coordinates when nodes come and go: an immutable view in, changes of groups out (I4). No clock, socket or disk.

A group is re-formed by one transaction, its epoch one higher: whoever acts under a lower one is refused (I3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sdrs_core.cluster import Group, Pool
from sdrs_core.ids import GroupId, NodeId, PoolName


class Liveness(StrEnum):
    """UNKNOWN: not heard yet by this controller, and not for long enough to be judged (P20)."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    id: NodeId
    domain: str
    liveness: Liveness
    takes_writes: bool = True
    cordoned: bool = False
    flapping: bool = False
    # Since it was last seen coming up; a node that has just returned is not given back its groups at once.
    up_for_seconds: float = 1e9


@dataclass(frozen=True, slots=True)
class View:
    """What is known of the cluster at one moment."""

    nodes: Mapping[NodeId, NodeFacts]
    pools: Mapping[PoolName, Pool]
    groups: tuple[Group, ...]
    # An operator paused automatic failover.
    paused: bool = False
    # Members that their primary found failing or too slow, though they are up: avoided by that group for a while.
    shunned: frozenset[tuple[GroupId, NodeId]] = frozenset()
    # Groups that an operator is moving right now: left alone.
    moving: frozenset[GroupId] = frozenset()


class Cause(StrEnum):
    PRIMARY_LOST = "primary_promoted"
    MEMBER_LOST = "member_replaced"
    MEMBER_SHUNNED = "slow_member_replaced"
    RESTORED = "group_restored"
    CORDONED = "cordoned_member_replaced"


@dataclass(frozen=True, slots=True)
class Reform:
    """Re-form ``before`` at its epoch + 1. ``home`` is kept."""

    before: Group
    members: tuple[NodeId, ...]
    primary: NodeId
    cause: Cause
    why: str


def first_epoch(incarnation: int) -> int:
    """Where epochs begin in a rebuilt or imported cluster: above all that its nodes may remember (P18)."""
    return (incarnation - 1) * 1_000_000_000 + 1


def decide_failover(view: View, *, settle_seconds: float) -> list[Reform]:
    """Which groups to re-form now, at most one Reform for each; sorted by group id."""
    raise NotImplementedError


def apply(view: View, reforms: Iterable[Reform]) -> View:
    """The view once these are carried out."""
    raise NotImplementedError


def can_save(group: Group, view: View) -> bool:
    """Whether it may take saves now; ``refusal_of`` says why not."""
    return not refusal_of(group, view)


def refusal_of(group: Group, view: View) -> str:
    """Why the group takes no saves, and what to do; empty if it takes them."""
    raise NotImplementedError


def problem_of(group: Group, view: View) -> str:
    """As ``refusal_of``, but also why it takes saves below its pool's level; empty if all is well."""
    raise NotImplementedError
