"""I4: how groups are re-formed, one example for each rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

from sdrs_core.cluster import Group, Pool
from sdrs_core.failover import (
    Cause,
    Liveness,
    NodeFacts,
    Reform,
    View,
    apply,
    decide_failover,
    first_epoch,
    problem_of,
    refusal_of,
)
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_core.levels import Level

FAST = PoolName("fast")
GROUP = GroupId("fast:a")
SETTLE = 30.0


def up(**facts: object) -> NodeFacts:
    return replace(NodeFacts(NodeId(""), "", Liveness.UP), **facts)  # type: ignore[arg-type]


DOWN = up(liveness=Liveness.DOWN)
UNKNOWN = up(liveness=Liveness.UNKNOWN)


def names(text: str) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in text)


def view_of(
    members: str = "ab",
    *,
    home: str = "ab",
    primary: str = "",
    copies: int = 2,
    degraded: bool = False,
    **nodes: NodeFacts,
) -> View:
    """A pool "fast" with one group; each node is one letter, and a domain of its own unless told."""
    level = Level.L2 if copies > 1 else Level.L1
    return View(
        nodes={
            NodeId(n): replace(facts, id=NodeId(n), domain=facts.domain or f"host-{n}") for n, facts in nodes.items()
        },
        pools={FAST: Pool(FAST, level, mirrors=copies, allow_degraded=degraded)},
        groups=(Group(GROUP, FAST, 7, names(members), NodeId(primary or members[0]), names(home)),),
    )


def reform_of(view: View) -> Reform | None:
    reforms = decide_failover(view, settle_seconds=SETTLE)
    assert len(reforms) <= 1
    return reforms[0] if reforms else None


def outcome(view: View) -> tuple[str, str, Cause] | None:
    reform = reform_of(view)
    return reform and ("".join(reform.members), reform.primary, reform.cause)


def test_a_group_that_is_well_and_at_home_is_left_alone() -> None:
    assert outcome(view_of(a=up(), b=up(), c=up())) is None


def test_a_lost_primary_is_followed_by_its_replica_and_a_spare_is_taken_in_at_once() -> None:
    reform = reform_of(view_of(a=DOWN, b=up(), c=up()))
    assert reform is not None
    assert (reform.members, reform.primary, reform.cause) == (names("bc"), "b", Cause.PRIMARY_LOST)
    assert reform.why == "a is down"
    assert reform.before.epoch == 7


def test_a_lost_replica_is_replaced_and_the_primary_stays() -> None:
    assert outcome(view_of(a=up(), b=DOWN, c=up())) == ("ac", "a", Cause.MEMBER_LOST)


def test_the_most_senior_good_member_becomes_primary() -> None:
    view = view_of("abc", home="abc", copies=3, a=DOWN, b=up(), c=up(), d=up())
    assert outcome(view) == ("bcd", "b", Cause.PRIMARY_LOST)


def test_a_node_that_was_removed_is_lost() -> None:
    assert outcome(view_of(b=up(), c=up())) == ("bc", "b", Cause.PRIMARY_LOST)


def test_without_a_spare_the_group_stays_and_refuses_saves() -> None:
    view = view_of(a=DOWN, b=up())
    assert outcome(view) is None
    assert refusal_of(view.groups[0], view) == (
        'group fast:a has 1 of 2 members up: start another node, or "sdrs pool set fast --allow-degraded"'
    )


def test_too_few_spares_move_nothing() -> None:
    assert outcome(view_of("abc", home="abc", copies=3, a=up(), b=DOWN, c=DOWN, d=up())) is None


def test_a_pool_that_allows_it_goes_on_with_fewer() -> None:
    view = view_of(degraded=True, a=DOWN, b=up())
    assert outcome(view) == ("b", "b", Cause.PRIMARY_LOST)
    after = apply(view, decide_failover(view, settle_seconds=SETTLE))
    assert not refusal_of(after.groups[0], after)
    assert problem_of(after.groups[0], after) == "group fast:a saves 1 of 2 copies: start another node"


def test_a_degraded_group_is_filled_up_when_a_node_comes() -> None:
    view = view_of("b", degraded=True, a=DOWN, b=up(), c=up())
    assert outcome(view) == ("bc", "b", Cause.MEMBER_LOST)
    reform = reform_of(view)
    assert reform is not None
    assert reform.why == "filled up"


def test_a_degraded_group_improves_even_if_not_to_full_size() -> None:
    view = view_of("b", home="abd", copies=3, degraded=True, a=DOWN, b=up(), c=up(), d=DOWN)
    assert outcome(view) == ("bc", "b", Cause.MEMBER_LOST)


def test_all_members_lost_and_enough_spares_make_a_fresh_group() -> None:
    reform = reform_of(view_of(a=DOWN, b=DOWN, c=up(), d=up()))
    assert reform is not None
    assert set(reform.members) == set(names("cd"))
    assert reform.primary == reform.members[0]


def test_all_members_lost_and_too_few_spares_change_nothing() -> None:
    assert outcome(view_of(a=DOWN, b=DOWN, c=up())) is None


def test_all_members_lost_without_any_node_change_nothing_even_where_degraded_saves_are_allowed() -> None:
    assert outcome(view_of(degraded=True, a=DOWN, b=DOWN)) is None
    assert outcome(view_of(degraded=True, a=DOWN, b=DOWN, c=up())) == ("c", "c", Cause.PRIMARY_LOST)


def test_an_l1_group_is_never_moved() -> None:
    view = view_of("a", home="a", copies=1, a=DOWN, b=up())
    assert outcome(view) is None
    assert refusal_of(view.groups[0], view) == (
        "group fast:a is at L1 and a is down: start it again; an L1 group is never moved by itself"
    )


def test_paused_failover_moves_nothing_and_says_so() -> None:
    view = replace(view_of(a=DOWN, b=up(), c=up()), paused=True)
    assert outcome(view) is None
    assert '"sdrs resume"' in refusal_of(view.groups[0], view)


def test_a_group_that_an_operator_moves_is_left_alone() -> None:
    assert outcome(replace(view_of(a=DOWN, b=up(), c=up()), moving=frozenset([GROUP]))) is None


def test_an_unknown_member_is_kept_and_saves_wait_for_it() -> None:
    view = view_of(a=up(), b=UNKNOWN, c=up())
    assert outcome(view) is None
    assert "b is not heard yet" in refusal_of(view.groups[0], view)


def test_an_unknown_node_is_no_spare() -> None:
    assert outcome(view_of(a=up(), b=DOWN, c=UNKNOWN)) is None


def test_an_unknown_member_is_kept_beside_a_lost_one() -> None:
    view = view_of("abc", home="abc", copies=3, a=DOWN, b=UNKNOWN, c=up(), d=up())
    assert outcome(view) == ("bcd", "c", Cause.PRIMARY_LOST)


def test_no_primary_is_chosen_while_the_only_former_member_is_not_judged() -> None:
    assert outcome(view_of(a=DOWN, b=UNKNOWN, c=up())) is None


def test_a_shunned_member_is_replaced_by_a_spare_or_dropped_where_degraded_saves_are_allowed() -> None:
    shunned = frozenset([(GROUP, NodeId("b"))])
    for degraded, without_spare in ((False, None), (True, ("a", "a", Cause.MEMBER_SHUNNED))):
        assert outcome(replace(view_of(degraded=degraded, a=up(), b=up()), shunned=shunned)) == without_spare
        assert outcome(replace(view_of(degraded=degraded, a=up(), b=up(), c=up()), shunned=shunned)) == (
            "ac",
            "a",
            Cause.MEMBER_SHUNNED,
        )


def test_a_node_that_another_group_shuns_is_still_good_here() -> None:
    shunned = frozenset([(GroupId("fast:b"), NodeId("b"))])
    assert outcome(replace(view_of(a=up(), b=up(), c=up()), shunned=shunned)) is None


def test_a_cordoned_member_is_replaced_only_by_a_spare() -> None:
    assert outcome(view_of(degraded=True, a=up(cordoned=True), b=up())) is None
    assert outcome(view_of(a=up(cordoned=True), b=up(), c=up())) == ("bc", "b", Cause.CORDONED)


def test_a_member_without_usable_disks_is_replaced_or_dropped_where_degraded_saves_are_allowed() -> None:
    view = view_of(a=up(), b=up(takes_writes=False))
    assert outcome(view) is None
    assert refusal_of(view.groups[0], view).startswith("group fast:a cannot write on b: free or replace its disks")
    assert outcome(view_of(a=up(), b=up(takes_writes=False), c=up())) == ("ac", "a", Cause.MEMBER_LOST)
    assert outcome(view_of(degraded=True, a=up(), b=up(takes_writes=False))) == ("a", "a", Cause.MEMBER_LOST)
    assert outcome(view_of(a=up(takes_writes=False), b=up(), c=up())) == ("bc", "b", Cause.PRIMARY_LOST)


def test_a_lost_member_gets_the_spare_before_an_impaired_one() -> None:
    view = view_of("abc", home="abc", copies=3, a=up(), b=up(cordoned=True), c=DOWN, d=up())
    assert outcome(view) == ("abd", "a", Cause.MEMBER_LOST)


def test_spares_that_cannot_take_part_are_none() -> None:
    for unfit in (up(cordoned=True), up(takes_writes=False), DOWN, UNKNOWN):
        assert outcome(view_of(a=up(), b=DOWN, c=unfit)) is None


# Ties are broken by a hash: each order of spares is shown with the names in every order, so that none is right by luck.


def test_home_members_are_the_first_spares() -> None:
    for one, other in permutations("de"):
        nodes = {"a": up(), "c": DOWN, one: up(state_seconds=1), other: up()}
        assert outcome(view_of("ac", home=f"a{one}", **nodes)) == (f"a{one}", "a", Cause.MEMBER_LOST)


def test_flapping_nodes_are_the_last_spares() -> None:
    for one, other in permutations("cd"):
        nodes = {"a": up(), "b": DOWN, one: up(flapping=True), other: up(domain="host-a")}
        assert outcome(view_of(**nodes)) == (f"a{other}", "a", Cause.MEMBER_LOST)
        del nodes[other]
        assert outcome(view_of(**nodes)) == (f"a{one}", "a", Cause.MEMBER_LOST)


def test_a_spare_in_another_domain_comes_first() -> None:
    for same, near, far in permutations("cde"):
        nodes = {"a": up(domain="h1/r1"), "b": DOWN}
        nodes |= {same: up(domain="h1/r1"), near: up(domain="h4/r1"), far: up(domain="h5/r2")}
        for best in (far, near, same):
            assert outcome(view_of(**nodes)) == (f"a{best}", "a", Cause.MEMBER_LOST)
            del nodes[best]


def test_a_home_member_in_a_doubled_domain_comes_after_another_spare() -> None:
    for one, other in permutations("de"):
        nodes = {"a": up(domain="h1"), "c": DOWN, one: up(domain="h1", state_seconds=1), other: up(domain="h2")}
        assert outcome(view_of("ac", home=f"a{one}", **nodes)) == (f"a{other}", "a", Cause.MEMBER_LOST)


def test_groups_that_lost_the_same_node_share_the_spares_evenly() -> None:
    view = view_of(a=up(), b=DOWN, c=up(), d=up(), e=up(), f=up())
    groups = tuple(replace(view.groups[0], id=GroupId(f"fast:{number}")) for number in range(8))
    reforms = decide_failover(replace(view, groups=groups), settle_seconds=SETTLE)
    assert [reform.before.id for reform in reforms] == [group.id for group in groups]
    assert Counter(reform.members[1] for reform in reforms) == dict.fromkeys(names("cdef"), 2)


def test_a_group_goes_home_once_all_of_it_has_settled() -> None:
    for unsettled in (up(state_seconds=SETTLE - 1), up(flapping=True), up(cordoned=True), DOWN, UNKNOWN):
        assert outcome(view_of("bc", a=unsettled, b=up(), c=up())) is None
    # The replica that stayed is the senior one, though the home's first coordinates.
    settled = view_of("bc", a=up(state_seconds=SETTLE), b=up(), c=up())
    assert outcome(settled) == ("ba", "a", Cause.RESTORED)


def test_a_group_does_not_go_home_to_a_shunned_node() -> None:
    view = view_of("bc", a=up(), b=up(), c=up())
    assert outcome(replace(view, shunned=frozenset([(GROUP, NodeId("a"))]))) is None


def test_only_the_primary_goes_home_when_the_members_are_there() -> None:
    assert outcome(view_of("ba", home="ab", a=up(), b=up())) == ("ba", "a", Cause.RESTORED)


def test_nobody_goes_home_while_a_present_member_is_not_judged() -> None:
    assert outcome(view_of("bc", home="ab", a=up(), b=up(), c=UNKNOWN)) is None


def test_a_short_home_costs_no_copy() -> None:
    assert outcome(view_of("ab", home="a", a=up(), b=up())) is None
    assert outcome(view_of("ab", home="a", degraded=True, a=up(), b=up(cordoned=True))) is None
    # Its primary is still restored.
    assert outcome(view_of("ba", home="a", a=up(), b=up())) == ("ba", "a", Cause.RESTORED)


def test_a_group_takes_saves_when_all_members_acknowledge_them() -> None:
    """I1: every member counts."""
    well = view_of(a=up(), b=up())
    assert not refusal_of(well.groups[0], well)
    assert problem_of(well.groups[0], well) == ""
    for other in (DOWN, UNKNOWN, up(takes_writes=False)):
        for nodes in ({"a": other, "b": up()}, {"a": up(), "b": other}):
            ill = view_of(degraded=True, **nodes)
            assert refusal_of(ill.groups[0], ill)
            assert problem_of(ill.groups[0], ill) == refusal_of(ill.groups[0], ill)


def test_a_group_below_its_size_refuses_unless_its_pool_allows_degraded_saves() -> None:
    """I6: never silently below the level."""
    strict = view_of("a", home="a", a=up())
    assert "has 1 of 2 members up: start another node" in refusal_of(strict.groups[0], strict)
    allowed = view_of("a", home="a", degraded=True, a=up())
    assert refusal_of(allowed.groups[0], allowed) == ""
    assert problem_of(allowed.groups[0], allowed) != ""


def test_a_group_of_an_unknown_pool_refuses_and_stays() -> None:
    view = replace(view_of(a=DOWN, b=up(), c=up()), pools={})
    assert outcome(view) is None
    assert "does not exist" in refusal_of(view.groups[0], view)


def test_epochs_of_a_later_incarnation_begin_above_all_earlier_ones() -> None:
    assert first_epoch(1) == 1
    assert first_epoch(2) == 1_000_000_000_001


# Coded groups: 4+2 over six nodes

SIX = "abcdef"


def coded_view(members: str = SIX, *, busy: bool = False, **nodes: NodeFacts) -> View:
    well = {name: up() for name in SIX} | nodes
    view = view_of(members, home=SIX, **well)
    pool = Pool(FAST, Level.L3, data_fragments=4, parity_fragments=2)
    return replace(view, pools={FAST: pool}, busy=frozenset([GROUP] if busy else []))


def test_a_coded_group_goes_on_with_fewer_members_while_any_one_domain_may_be_lost() -> None:
    """P10: six fragments over five, four or three nodes; over two, losing one would lose the blob."""
    assert outcome(coded_view(b=DOWN)) == ("acdef", "a", Cause.MEMBER_LOST)
    assert outcome(coded_view(a=DOWN, b=DOWN)) == ("cdef", "c", Cause.PRIMARY_LOST)
    assert outcome(coded_view(a=DOWN, b=DOWN, c=DOWN)) == ("def", "d", Cause.PRIMARY_LOST)
    four_lost = coded_view(a=DOWN, b=DOWN, c=DOWN, d=DOWN)
    assert outcome(four_lost) is None
    assert "needs 3 failure domains" in refusal_of(four_lost.groups[0], four_lost)


def test_a_spare_comes_in_for_a_lost_member_of_a_coded_group() -> None:
    assert outcome(coded_view(b=DOWN, g=up())) == ("acdefg", "a", Cause.MEMBER_LOST)


def test_a_short_coded_group_says_that_it_is_crowded() -> None:
    view = coded_view("cdef", a=DOWN, b=DOWN)
    assert refusal_of(view.groups[0], view) == ""
    assert "6 fragments over 4 nodes" in problem_of(view.groups[0], view)


def test_nodes_of_one_domain_count_once_for_a_coded_group() -> None:
    rack = up(domain="rack")
    view = coded_view(a=rack, b=rack, c=rack, d=rack, e=DOWN, f=DOWN)
    assert outcome(view) is None


def test_a_coded_group_that_receives_a_save_finishes_it_without_the_member_that_it_lost() -> None:
    lost = replace(DOWN, state_seconds=1.0)
    assert outcome(coded_view(b=lost, g=up(), busy=True)) is None
    assert outcome(coded_view(b=lost, g=up())) == ("acdefg", "a", Cause.MEMBER_LOST)
    # Not if too little is left of it, nor without its primary, nor for ever.
    assert outcome(coded_view(b=lost, c=lost, busy=True)) is not None
    assert outcome(coded_view(a=lost, busy=True)) is not None
    assert outcome(coded_view(b=replace(DOWN, state_seconds=60.0), busy=True)) is not None


def test_only_nodes_of_the_pool_are_spares() -> None:
    view = coded_view(b=DOWN, g=up(), h=up())
    named = replace(view.pools[FAST], node_ids=names(SIX + "h"))
    assert outcome(replace(view, pools={FAST: named})) == ("acdefh", "a", Cause.MEMBER_LOST)
