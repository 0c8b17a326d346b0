"""Whether nodes can do without one of them: for a while (stopped), or for good (drained, removed, destroyed).

Pure decisions over what is known at one moment. What cannot be told is refused like what is unsafe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, replace
from math import inf

from sdrs_core.failover import Cause, Liveness, Reform, View, apply, decide_failover, refusal_of
from sdrs_core.ids import DiskId, NodeId
from sdrs_core.pools import needs_more_domains

_MAX_NAMED = 5


def is_good(view: View, node_id: NodeId) -> bool:
    """Whether it takes part in new saves."""
    facts = view.nodes.get(node_id)
    return facts is not None and facts.liveness is Liveness.UP and facts.takes_writes and not facts.cordoned


def shortage_without(view: View, leaving: Set[NodeId], pool_names: Set[str] | None = None) -> str:
    """Which pool would be left with too few nodes that take saves, and what to do; empty if none would.

    Nodes that take no part anyway are not missed.
    """
    missed = sorted(node_id for node_id in leaving if is_good(view, node_id))
    if not missed:
        return ""
    for name in sorted(view.pools):
        pool = view.pools[name]
        mine = [node_id for node_id in view.nodes if pool.has_node(node_id)]
        lost = [node_id for node_id in missed if node_id in mine]
        if (pool_names is not None and name not in pool_names) or not lost:
            continue
        staying = [node_id for node_id in mine if node_id not in leaving and is_good(view, node_id)]
        shortage = needs_more_domains(pool, [view.nodes[node_id].domain for node_id in staying], without=lost)
        unheard = [node_id for node_id in mine if view.nodes[node_id].liveness is Liveness.UNKNOWN]
        if shortage and unheard:
            return f"{_names(unheard)} not heard yet by this controller: wait until it is up, or known to be down"
        if shortage:
            return shortage
    return ""


@dataclass(frozen=True, slots=True)
class Without:
    """What a complete look at the catalog found that would be without one node or disk.

    Titles of checkpoints, the first few; counts are of all.
    """

    # Blobs that have a fragment on record there.
    held_blobs: int = 0
    held_bytes: int = 0
    # Not readable then, though they are now.
    unreadable: tuple[str, ...] = ()
    unreadable_count: int = 0
    # With less redundancy than their pool asks for.
    short: tuple[str, ...] = ()
    short_count: int = 0
    # Saves under way that have a shard there.
    pending: tuple[str, ...] = ()
    pending_count: int = 0
    # Of which nobody else, be it up or down, has enough.
    only_here: tuple[str, ...] = ()
    only_here_count: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """``why`` is a sentence either way."""

    is_safe: bool
    why: str


def is_ok_to_stop(node_id: NodeId, view: View, without: Without) -> Answer:
    """With the node down every checkpoint stays readable, and every pool takes saves."""
    undecided = _undecided(node_id, view)
    if undecided:
        return Answer(False, undecided)
    if without.unreadable_count:
        named = some(without.unreadable, without.unreadable_count)
        return Answer(False, f"without node {node_id} {without.unreadable_count} checkpoints cannot be read: {named}")
    stopped = replace(view.nodes[node_id], liveness=Liveness.DOWN)
    after = replace(view, nodes={**view.nodes, node_id: stopped}, busy=frozenset())
    after = apply(after, decide_failover(after, settle_seconds=inf))
    for name in sorted(view.pools):
        refusals = [refusal_of(group, after) for group in after.groups if group.pool == name]
        if refusals and all(refusals):
            return Answer(False, f'without node {node_id} pool "{name}" takes no saves: {refusals[0]}')
    return Answer(True, f"node {node_id} may be stopped: every checkpoint stays readable, and every pool takes saves")


def is_safe_to_destroy(node_id: NodeId, view: View, without: Without) -> Answer:
    """Every blob has all its redundancy without the node."""
    undecided = _undecided(node_id, view)
    if undecided:
        return Answer(False, undecided)
    if without.pending:
        named = some(without.pending, without.pending_count)
        return Answer(False, f"saves under way have shards on node {node_id}: {named}. Wait until they are committed")
    if without.short_count:
        named = some(without.short, without.short_count)
        return Answer(
            False,
            f"without node {node_id} {without.short_count} checkpoints have less redundancy than their pools ask for: "
            f"{named}. Move what it holds first: sdrs node drain {node_id}",
        )
    return Answer(True, f"node {node_id} may be destroyed: all that it holds has full redundancy on other nodes")


def is_removable(node_id: NodeId, view: View, without: Without, *, accept_data_loss: bool) -> Answer:
    """Nothing on record is on the node; or it is down, and all that it had is as it should be on others, or given up in
    so many words (I4).
    """
    liveness = view.nodes[node_id].liveness
    undecided = _undecided(node_id, view)
    if liveness is Liveness.UNKNOWN:
        undecided = f"node {node_id} was not heard yet by this controller: wait until it is up, or known to be down"
    if undecided:
        return Answer(False, undecided)
    if without.pending_count:
        named = some(without.pending, without.pending_count)
        return Answer(False, f"saves under way have shards on node {node_id}: {named}. Wait until they are committed")
    if liveness is Liveness.UP and without.held_blobs:
        return Answer(
            False,
            f"node {node_id} still holds fragments of {without.held_blobs} blobs: move them first with "
            f'"sdrs node drain {node_id}"; how far that is tells "sdrs node show {node_id}"',
        )
    if without.only_here_count and not accept_data_loss:
        named, count = some(without.only_here, without.only_here_count), without.only_here_count
        return Answer(
            False,
            f"{count} checkpoints are on node {node_id} alone: {named}. They come back with it; to give them up: "
            f"sdrs node remove {node_id} --accept-data-loss",
        )
    if without.short_count and not accept_data_loss:
        named = some(without.short, without.short_count)
        return Answer(
            False,
            f"without node {node_id} {without.short_count} checkpoints have less redundancy than their pools ask for: "
            f'{named}. What it held is made anew on others, see "sdrs repair status": wait for that',
        )
    return Answer(True, f"nothing is on node {node_id} that others do not have")


def hand_over(view: View, leaving: NodeId) -> list[Reform]:
    """Who leads the groups of one member that ``leaving`` leads in another node's stead, once it is removed: the node
    that each is named after, else whoever leads the fewest. Only an operator's word moves them (I4).
    """
    led = Counter(group.primary for group in view.groups)
    reforms = []
    for group in sorted(view.groups, key=lambda group: group.id):
        pool = view.pools.get(group.pool)
        own = NodeId(group.id.removeprefix(f"{group.pool}:"))
        if pool is None or pool.member_count > 1 or group.members != (leaving,) or own == leaving:
            continue
        fit = [node for node in view.nodes if node != leaving and pool.has_node(node) and is_good(view, node)]
        if fit:
            target = min(fit, key=lambda node: (node != own, led[node], node))
            led[target] += 1
            reforms.append(Reform(group, (target,), target, Cause.DRAINED, f"{leaving} is removed, by an operator"))
    return reforms


def is_dispensable(disk_id: DiskId, without: Without, *, accept_data_loss: bool) -> Answer:
    """All that was on a dead disk can be brought back without it, or is given up in so many words (I4)."""
    if without.only_here_count and not accept_data_loss:
        named, count = some(without.only_here, without.only_here_count), without.only_here_count
        return Answer(
            False,
            f"without disk {disk_id} too little is left of {count} checkpoints: {named}. They come back with it; "
            f"to give them up: sdrs disk replace {disk_id[:8]} --accept-data-loss",
        )
    return Answer(True, f"nothing was on disk {disk_id} alone")


def _undecided(node_id: NodeId, view: View) -> str:
    unheard = sorted(n for n, facts in view.nodes.items() if facts.liveness is Liveness.UNKNOWN and n != node_id)
    if unheard:
        return f"cannot be told yet: {_names(unheard)} not heard yet by this controller. Wait, and ask again"
    return ""


def _names(node_ids: list[NodeId]) -> str:
    return f"{', '.join(node_ids)} {'is' if len(node_ids) == 1 else 'are'}"


def some(titles: tuple[str, ...], count: int) -> str:
    """The first few names, and how many there are besides."""
    named = ", ".join(titles[:_MAX_NAMED])
    return f"{named} and {count - _MAX_NAMED} more" if count > _MAX_NAMED else named
