"""I4: what holds of every decision, over random views."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdrs_core.cluster import Group, Pool
from sdrs_core.failover import (
    Liveness,
    NodeFacts,
    View,
    apply,
    decide_failover,
    least_domains,
    problem_of,
    refusal_of,
)
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_core.levels import Level

SETTLE = 30.0
NODES = [NodeId(name) for name in "abcdefgh"]
POOLS = [
    Pool(PoolName("l1"), Level.L1),
    Pool(PoolName("two"), Level.L2, mirrors=2),
    Pool(PoolName("three"), Level.L2, mirrors=3, allow_degraded=True),
    Pool(PoolName("four"), Level.L2, mirrors=4),
    Pool(PoolName("coded"), Level.L3, data_fragments=3, parity_fragments=2),
    Pool(PoolName("few"), Level.L2, mirrors=2, node_ids=tuple(NODES[:4])),
]

# A busy machine is slow to draw views and to judge them: that is no failure.
patient = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

rarely = st.integers(min_value=0, max_value=4).map(lambda number: number == 0)
liveness = st.sampled_from([Liveness.UP, Liveness.UP, Liveness.UP, Liveness.DOWN, Liveness.UNKNOWN])


@st.composite
def views(draw: st.DrawFn) -> View:
    existing = draw(st.lists(st.sampled_from(NODES), unique=True, max_size=len(NODES)))
    nodes = {
        node: NodeFacts(
            id=node,
            domain=draw(st.sampled_from(["h1/r1", "h2/r1", "h3/r2", f"{node}/r3", node])),
            liveness=draw(liveness),
            takes_writes=not draw(rarely),
            cordoned=draw(rarely),
            flapping=draw(rarely),
            state_seconds=draw(st.sampled_from([0.0, 1e9, 1e9])),
        )
        for node in existing
    }
    some = st.lists(st.sampled_from(NODES), unique=True, min_size=1, max_size=5).map(tuple)
    groups = []
    for number in range(draw(st.integers(min_value=1, max_value=4))):
        members = draw(some)
        groups.append(
            Group(
                GroupId(f"g{number}"),
                draw(st.sampled_from(POOLS)).name,
                draw(st.integers(min_value=1, max_value=9)),
                members,
                draw(st.sampled_from(members)),
                draw(st.one_of(some, st.just(()), st.just(members))),
            )
        )
    pairs = [(group.id, node) for group in groups for node in NODES]
    return View(
        nodes=nodes,
        pools={pool.name: pool for pool in POOLS},
        groups=tuple(groups),
        shunned=frozenset(draw(st.lists(st.sampled_from(pairs), max_size=4))),
        moving=frozenset(group.id for group in groups if draw(rarely)),
        busy=frozenset(group.id for group in groups if draw(rarely)),
    )


def is_lost(node: NodeId, view: View) -> bool:
    return node not in view.nodes or view.nodes[node].liveness is Liveness.DOWN


def blocks_saves(node: NodeId, group: Group, view: View) -> bool:
    facts = view.nodes[node]
    is_unable = not facts.takes_writes or (group.id, node) in view.shunned
    return facts.liveness is Liveness.UP and is_unable


def is_fit(node: NodeId, group: Group, view: View) -> bool:
    facts = view.nodes[node]
    is_able = facts.liveness is Liveness.UP and facts.takes_writes and not facts.cordoned
    return is_able and (group.id, node) not in view.shunned and view.pools[group.pool].has_node(node)


def suffices(members: tuple[NodeId, ...], pool: Pool, view: View) -> bool:
    """P10: no domain holds more fragments than can be lost."""
    domains = {view.nodes[node].domain for node in members if node in view.nodes}
    return pool.level is not Level.L3 or len(domains) >= least_domains(pool)


@patient
@given(views())
def test_a_reform_is_valid_changes_something_and_takes_in_only_good_nodes(view: View) -> None:
    for reform in decide_failover(view, settle_seconds=SETTLE):
        group, members = reform.before, reform.members
        pool = view.pools[group.pool]
        assert group in view.groups
        assert (members, reform.primary) != (group.members, group.primary)
        assert len(set(members)) == len(members) >= 1
        assert reform.primary in members
        assert reform.why
        assert group.id not in view.moving
        if pool.member_count == 1:
            # I4: never moved; one whose pool had more copies before goes on with one of its members.
            assert len(members) == 1 < len(group.members)
            assert members[0] in group.members
            assert is_fit(members[0], group, view)
            continue
        assert len(members) >= pool.member_count or pool.can_shrink
        assert suffices(members, pool, view)
        # It never loses a copy that it could have kept.
        present = [node for node in group.members if not is_lost(node, view)]
        kept = [node for node in present if not (pool.can_shrink and blocks_saves(node, group, view))]
        assert len(members) >= min(len(kept), pool.member_count)
        assert not any(is_lost(node, view) for node in members)
        newcomers = [node for node in members if node not in group.members]
        assert all(is_fit(node, group, view) for node in newcomers)
        # Seniority: who was in comes first, in the old order.
        assert members == (*(node for node in group.members if node in members), *newcomers)
        # Who is not judged stays.
        unknown = {node for node in present if view.nodes[node].liveness is Liveness.UNKNOWN}
        assert unknown <= set(members)
        assert reform.primary == group.primary or view.nodes[reform.primary].liveness is Liveness.UP


@patient
@given(views())
def test_deciding_again_after_all_reforms_gives_none(view: View) -> None:
    after = apply(view, decide_failover(view, settle_seconds=SETTLE))
    assert decide_failover(after, settle_seconds=SETTLE) == []


@patient
@given(views())
def test_applying_raises_the_epoch_of_what_changed_and_nothing_else(view: View) -> None:
    """I3: whoever acts for the group as it was is refused."""
    reforms = {reform.before.id: reform for reform in decide_failover(view, settle_seconds=SETTLE)}
    for before, after in zip(view.groups, apply(view, reforms.values()).groups, strict=True):
        if before.id in reforms:
            reform = reforms[before.id]
            changed = replace(before, epoch=before.epoch + 1, members=reform.members, primary=reform.primary)
            assert after == changed
        else:
            assert after == before


@patient
@given(views(), st.randoms())
def test_decisions_do_not_depend_on_the_order_of_nodes_and_groups(view: View, random: Random) -> None:
    nodes, groups = list(view.nodes.items()), list(view.groups)
    random.shuffle(nodes)
    random.shuffle(groups)
    shuffled = replace(view, nodes=dict(nodes), groups=tuple(groups))
    assert decide_failover(shuffled, settle_seconds=SETTLE) == decide_failover(view, settle_seconds=SETTLE)


@patient
@given(views())
def test_nothing_moves_while_failover_is_paused(view: View) -> None:
    assert decide_failover(replace(view, paused=True), settle_seconds=SETTLE) == []


@patient
@given(views())
def test_a_group_that_took_saves_still_does_after_a_reform(view: View) -> None:
    able = {group.id for group in view.groups if not refusal_of(group, view)}
    after = apply(view, decide_failover(view, settle_seconds=SETTLE))
    assert able <= {group.id for group in after.groups if not refusal_of(group, after)}


@patient
@given(views())
def test_saves_go_on_at_full_level_while_enough_good_nodes_are_left(view: View) -> None:
    after = apply(view, decide_failover(view, settle_seconds=SETTLE))
    for group in after.groups:
        pool = view.pools[group.pool]
        is_judged = all(node not in view.nodes or view.nodes[node].liveness is not Liveness.UNKNOWN for node in NODES)
        fit = tuple(node for node in view.nodes if is_fit(node, group, view))
        is_left_alone = group.id in view.moving or (pool.level is Level.L3 and group.id in view.busy)
        # Who is well is not replaced because of its domain: that is the plan's to change.
        fit_members = tuple(node for node in group.members if node in fit)
        are_apart = suffices(fit, pool, view) and suffices(fit_members, pool, view)
        if pool.member_count > 1 and is_judged and not is_left_alone and are_apart and len(fit) >= pool.member_count:
            assert problem_of(group, after) == ""


@patient
@given(views())
def test_who_takes_saves_has_all_its_members_ready(view: View) -> None:
    for group in view.groups:
        assert bool(problem_of(group, view)) >= bool(refusal_of(group, view))
        pool = view.pools[group.pool]
        if not refusal_of(group, view):
            facts = [view.nodes[node] for node in group.members]
            assert all(fact.liveness is Liveness.UP and fact.takes_writes for fact in facts)
            assert len(facts) >= pool.member_count or pool.can_shrink
            assert suffices(group.members, pool, view)
