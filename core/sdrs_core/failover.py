"""Who coordinates when nodes come and go: an immutable view in, changes of groups out (I4). No clock, socket or disk.

A group is re-formed by one transaction, its epoch one higher: whoever acts under a lower one is refused (I3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sdrs_core.cluster import Group, Pool
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.placement import nearness, stable_hash

# A coded save that lost a member on its way is let finish without it, for so long.
BUSY_SECONDS = 30.0


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
    # Also while it is drained: it takes no part in new saves.
    cordoned: bool = False
    draining: bool = False
    flapping: bool = False
    # Since it came up, or went down; a node that has just returned is not given back its groups at once.
    state_seconds: float = 1e9


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
    # Groups that receive a save right now.
    busy: frozenset[GroupId] = frozenset()


class Cause(StrEnum):
    PRIMARY_LOST = "primary_promoted"
    MEMBER_LOST = "member_replaced"
    MEMBER_SHUNNED = "slow_member_replaced"
    RESTORED = "group_restored"
    CORDONED = "cordoned_member_replaced"
    DRAINED = "drained_member_replaced"
    LEFT_POOL = "pool_left_by_member"


@dataclass(frozen=True, slots=True)
class Reform:
    """Re-form ``before`` at its epoch + 1. ``home`` is kept."""

    before: Group
    members: tuple[NodeId, ...]
    primary: NodeId
    cause: Cause
    why: str

    @property
    def after(self) -> Group:
        return replace(self.before, epoch=self.before.epoch + 1, members=self.members, primary=self.primary)


def first_epoch(incarnation: int) -> int:
    """Where epochs begin in a rebuilt or imported cluster: above all that its nodes may remember (P18)."""
    return (incarnation - 1) * 1_000_000_000_000 + 1


def decide_failover(view: View, *, settle_seconds: float) -> list[Reform]:
    """Which groups to re-form now, by group id; applying all of them and deciding again gives none.

    - paused, or moved by an operator right now: left alone. An L1 group is never moved (I4); one that has more than one
      member, because its pool was at a higher level before, goes on with one of them
    - a node that is not judged yet (UNKNOWN) stays what it is: neither lost, nor a spare, nor home
    - a lost member is replaced by a spare. Without enough spares the group goes on with fewer if its pool allows that,
      and a coded one as long as its fragments can be placed so that any one domain may be lost (P10); otherwise it
      stays as it is, and refuses saves: nothing would be gained by moving it
    - a coded group that is receiving a save goes on to its end without the members that it lost, if that leaves enough:
      each costs its fragment, not the save
    - a member that is cordoned, drained, shunned, not in the pool any more or takes no writes is replaced by a spare.
      Without one it stays, unless it keeps saves from going on (it is shunned, or takes no writes) and the pool allows
      fewer copies
    - the primary stays if it can; else the most senior good member follows it. A spare coordinates only if nobody is
      left: it needs no history, because the holders of each blob are recorded (I4)
    - once all of ``home`` have been well for ``settle_seconds``, the group goes home
    """
    if view.paused:
        return []
    memberships = Counter(node for group in view.groups for node in group.members)
    reforms = []
    for group in sorted(view.groups, key=lambda group: group.id):
        reform = _decide_group(group, view, settle_seconds, memberships)
        if reform is not None:
            memberships.subtract(group.members)
            memberships.update(reform.members)
            reforms.append(reform)
    return reforms


def _decide_group(group: Group, view: View, settle_seconds: float, memberships: Mapping[NodeId, int]) -> Reform | None:
    pool = view.pools.get(group.pool)
    if pool is None or group.id in view.moving:
        return None
    if pool.member_count == 1:
        return _alone(group, view) if len(group.members) > 1 else None
    members = _patched(group, pool, view, memberships)
    primary = _primary(group, members, view)
    home = _at_home(group, pool, view, settle_seconds, memberships)
    # A home that is short of members never costs a copy: then those that are impaired stay.
    is_home = home is not None and len(home) >= min(len(members), pool.member_count)
    if home is not None and is_home:
        members, primary = home, group.home[0]
    if primary is None or (members, primary) == (group.members, group.primary):
        return None
    if not _suffices(members, pool, view) or _may_finish(group, primary, pool, view):
        return None
    cause, why = _reason(group, members, view, is_home=is_home)
    return Reform(group, members, primary, cause, why)


def _alone(group: Group, view: View) -> Reform | None:
    order = dict.fromkeys((*group.home[:1], group.primary, *group.members))
    fit = [node for node in order if node in group.members and _is_fit(node, group, view)]
    return Reform(group, (fit[0],), fit[0], Cause.RESTORED, "its pool stores one copy now") if fit else None


def _suffices(members: tuple[NodeId, ...], pool: Pool, view: View) -> bool:
    """Whether a group of these members takes saves."""
    if pool.allow_degraded:
        return bool(members)
    if pool.level is not Level.L3:
        return len(members) >= pool.member_count
    domains = {view.nodes[node].domain for node in members if node in view.nodes}
    return len(domains) >= least_domains(pool)


def least_domains(pool: Pool) -> int:
    """In how many failure domains a group needs members, so that none holds more than can be lost (P10)."""
    if pool.level is not Level.L3:
        return pool.member_count
    return -(-pool.member_count // pool.parity_fragments)


def _may_finish(group: Group, primary: NodeId, pool: Pool, view: View) -> bool:
    """Whether a coded group is left as it is until the save that it is receiving is over."""
    if pool.level is not Level.L3 or group.id not in view.busy or primary != group.primary:
        return False
    lost = [node for node in group.members if _liveness(node, view) is Liveness.DOWN]
    is_recent = all(node in view.nodes and view.nodes[node].state_seconds < BUSY_SECONDS for node in lost)
    staying = [node for node in group.members if node not in lost]
    apart = len({view.nodes[node].domain for node in staying}) == len(staying)
    is_full = len(group.members) == pool.member_count
    return bool(lost) and is_recent and is_full and apart and len(staying) > pool.data_fragments


def _at_home(
    group: Group, pool: Pool, view: View, settle_seconds: float, memberships: Mapping[NodeId, int]
) -> tuple[NodeId, ...] | None:
    """The members once it has gone home, or None if it should not now. A short home is filled up to full size."""
    if not group.home or any(_liveness(node, view) is Liveness.UNKNOWN for node in group.members):
        return None
    for node in group.home:
        if not _is_fit(node, group, view) or view.nodes[node].flapping:
            return None
        if view.nodes[node].state_seconds < settle_seconds:
            return None
    extra = [node for node in group.members if node not in group.home and _is_fit(node, group, view)]
    wanted = {*group.home, *extra[: max(0, pool.member_count - len(group.home))]}
    # Members are in order of seniority: those that are in already come first.
    ordered = [node for node in dict.fromkeys((*group.members, *group.home)) if node in wanted]
    return _filled(ordered, pool.member_count, group, view, memberships)


def _patched(group: Group, pool: Pool, view: View, memberships: Mapping[NodeId, int]) -> tuple[NodeId, ...]:
    """The members without those that are lost, spares taken in for them and then for those that are impaired."""
    present = [node for node in group.members if not _is_lost(node, group, pool, view)]
    members = list(_filled(present, pool.member_count, group, view, memberships))
    for node in present:
        if _liveness(node, view) is Liveness.UNKNOWN or _is_fit(node, group, view):
            continue
        rest = [member for member in members if member != node]
        replaced = _filled(rest, pool.member_count, group, view, memberships)
        if len(replaced) >= min(len(members), pool.member_count):
            members = list(replaced)
    return tuple(members)


def _filled(
    members: list[NodeId], size: int, group: Group, view: View, memberships: Mapping[NodeId, int]
) -> tuple[NodeId, ...]:
    """``members`` and as many spares as are needed and exist; never one that is a member already, for whatever reason.

    Flapping nodes come last, then those in a domain that the group has already; home members first, then the best
    separated, then the least loaded.
    """
    filled = list(members)
    if len(filled) >= size:
        return tuple(filled)
    spares = [node for node in view.nodes if node not in group.members and _is_fit(node, group, view)]
    while len(filled) < size and (left := [node for node in spares if node not in filled]):
        taken = [view.nodes[node].domain for node in filled if node in view.nodes]

        def order(node: NodeId, taken: list[str] = taken) -> tuple[object, ...]:
            facts = view.nodes[node]
            near = nearness(facts.domain, taken)
            tie = stable_hash(f"{group.id} {node}")
            return (facts.flapping, facts.domain in taken, node not in group.home, near, memberships[node], tie, node)

        filled.append(min(left, key=order))
    return tuple(filled)


def _primary(group: Group, members: tuple[NodeId, ...], view: View) -> NodeId | None:
    """Who coordinates; None if that cannot be said before a former member is judged."""
    if members == group.members:
        return group.primary
    former = [node for node in group.members if node in members]
    good = [node for node in former if _is_fit(node, group, view)]
    unknown = [node for node in former if _liveness(node, view) is Liveness.UNKNOWN]
    if group.primary in good or group.primary in unknown:
        return group.primary
    if good:
        return good[0]
    if unknown:
        return None
    able = [node for node in members if view.nodes[node].takes_writes]
    return able[0] if able else None


def _reason(group: Group, members: tuple[NodeId, ...], view: View, *, is_home: bool) -> tuple[Cause, str]:
    gone = [node for node in group.members if node not in members]
    lost = [node for node in gone if _liveness(node, view) is Liveness.DOWN]
    unable = [node for node in gone if node not in lost and not view.nodes[node].takes_writes]
    left = [node for node in gone if not view.pools[group.pool].has_node(node)]
    drained = [node for node in gone if node in view.nodes and view.nodes[node].draining]
    cordoned = [node for node in gone if node in view.nodes and view.nodes[node].cordoned]
    shunned = [node for node in gone if (group.id, node) in view.shunned]
    if lost:
        is_primary_lost = group.primary in lost
        return (Cause.PRIMARY_LOST if is_primary_lost else Cause.MEMBER_LOST), f"{_named(lost)} down"
    if unable:
        is_primary_lost = group.primary in unable
        return (Cause.PRIMARY_LOST if is_primary_lost else Cause.MEMBER_LOST), f"{_named(unable)} out of usable disks"
    if left:
        return Cause.LEFT_POOL, f"{_named(left)} no longer in the pool"
    if drained:
        return Cause.DRAINED, f"{_named(drained)} being drained"
    if cordoned:
        return Cause.CORDONED, f"{_named(cordoned)} cordoned"
    if shunned:
        return Cause.MEMBER_SHUNNED, f"{_named(shunned)} failing or too slow"
    if is_home:
        return Cause.RESTORED, f"home again: {', '.join(group.home)}"
    return Cause.MEMBER_LOST, "filled up"


def _named(nodes: list[NodeId]) -> str:
    return f"{', '.join(nodes)} {'is' if len(nodes) == 1 else 'are'}"


def _liveness(node: NodeId, view: View) -> Liveness:
    """A node that was removed is as lost as one that is down."""
    return view.nodes[node].liveness if node in view.nodes else Liveness.DOWN


def _is_lost(node: NodeId, group: Group, pool: Pool, view: View) -> bool:
    """Whether nothing can be saved together with it."""
    if _liveness(node, view) is not Liveness.UP:
        return _liveness(node, view) is Liveness.DOWN
    return pool.can_shrink and (not view.nodes[node].takes_writes or (group.id, node) in view.shunned)


def _is_fit(node: NodeId, group: Group, view: View) -> bool:
    """Whether it can take part in saves of this group from now on."""
    facts = view.nodes.get(node)
    return (
        facts is not None
        and facts.liveness is Liveness.UP
        and facts.takes_writes
        and not facts.cordoned
        and (group.id, node) not in view.shunned
        and (group.pool not in view.pools or view.pools[group.pool].has_node(node))
    )


def apply(view: View, reforms: Iterable[Reform]) -> View:
    """The view once these are carried out."""
    reformed = {reform.before.id: reform.after for reform in reforms}
    return replace(view, groups=tuple(reformed.get(group.id, group) for group in view.groups))


def refusal_of(group: Group, view: View) -> str:
    """Why the group takes no saves, and what to do; empty if it takes them.

    It does when every member is up and takes writes, because every one of them must acknowledge (I1), and when there
    are as many as the pool asks for, or, where it allows fewer, enough.
    """
    pool = view.pools.get(group.pool)
    if pool is None:
        return f'group {group.id} belongs to pool "{group.pool}", which does not exist'
    down = [node for node in group.members if _liveness(node, view) is Liveness.DOWN]
    unknown = [node for node in group.members if _liveness(node, view) is Liveness.UNKNOWN]
    unable = [node for node in group.members if node not in [*down, *unknown] and not view.nodes[node].takes_writes]
    up_count = len(group.members) - len(down) - len(unknown)
    counted = f"group {group.id} has {up_count} of {pool.member_count} members up"
    if down and pool.member_count == 1:
        return (
            f"group {group.id} is at L1 and {_named(down)} down: start it again; an L1 group is never moved by itself"
        )
    if pool.member_count == 1 and group.primary in view.nodes and view.nodes[group.primary].cordoned:
        if view.nodes[group.primary].draining:
            return (
                f"group {group.id} takes no saves, its node is being drained: sdrs node drain {group.primary} --cancel"
            )
        return f"group {group.id} takes no saves, its node is cordoned: sdrs node uncordon {group.primary}"
    if down and view.paused:
        return f'{counted}, {_named(down)} down and failover is paused: start it again, or "sdrs resume"'
    if unknown:
        return f"{counted}, {_named(unknown)} not heard yet: wait, or look at the network between it and the controller"
    left = tuple(node for node in group.members if node not in down)
    if down and pool.can_shrink and _suffices(left, pool, view):
        return f"{counted}, {_named(down)} down: wait until it is re-formed, or start another node"
    if down or not _suffices(group.members, pool, view):
        needs = f" (it needs {least_domains(pool)} failure domains)" if pool.level is Level.L3 else ""
        return f'{counted}{needs}: start another node, or "sdrs pool set {pool.name} --allow-degraded"'
    if unable:
        return f"group {group.id} cannot write on {', '.join(unable)}: free or replace its disks, or start another node"
    return ""


def problem_of(group: Group, view: View) -> str:
    """As ``refusal_of``, but also why it takes saves below its pool's level; empty if all is well."""
    refusal = refusal_of(group, view)
    if refusal:
        return refusal
    pool = view.pools[group.pool]
    if len(group.members) < pool.member_count:
        if pool.level is Level.L3:
            return (
                f"group {group.id} spreads {pool.member_count} fragments over {len(group.members)} nodes: start another"
            )
        return f"group {group.id} saves {len(group.members)} of {pool.member_count} copies: start another node"
    return ""
