"""Which fragments of a code are made, moved and let go (P10, P14, I7): one decision at a time, without a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sdrs_core.codes import MIRROR
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.redundancy import Form, Standing
from sdrs_core.remedies import Forget, Trim, Urgency
from sdrs_core.stocks import fragment_bytes
from tests.support.repair_cases import (
    DISK,
    FOUR_TWO,
    MIB,
    OTHER_DISK,
    SIX,
    applied,
    coded,
    copies,
    decide,
    gone,
    hold,
    stock,
    targets,
)


def test_a_lost_fragment_is_made_again_from_all_others_on_a_node_in_a_domain_of_its_own() -> None:
    blob = coded(SIX)
    decision = decide(
        blob, *(stock(name) for name in SIX[:5]), gone("n5"), stock("x", domain="domain of n0"), stock("y")
    )
    assert targets(decision) == {5: "y"}
    assert decision.copies[0].sources == blob.holders[:5]
    assert (decision.standing, decision.is_degraded) == (Standing.SAFE, True)


def test_a_node_needs_room_for_the_fragment_only() -> None:
    blob = coded(SIX[:5], size_bytes=8 * MIB)
    assert fragment_bytes(blob, 5) == 2 * MIB
    nodes = [stock(name, room_bytes=0) for name in SIX[:5]]
    assert targets(decide(blob, *nodes, stock("x", room_bytes=2 * MIB))) == {5: "x"}
    assert targets(decide(blob, *nodes, stock("x", room_bytes=2 * MIB - 1))) == {}


def test_with_too_few_domains_one_gets_several_and_never_more_than_the_blob_can_do_without() -> None:
    """P10: six nodes, two lost: 2 + 2 + 1 + 1; three lost and four left of each: 2 + 2 + 2."""
    nodes = [stock(name) for name in SIX]
    two_lost = decide(coded(SIX), *nodes[:4], gone("n4"), gone("n5"))
    assert set(targets(two_lost)) == {4, 5}
    assert len(set(targets(two_lost).values())) == 2
    four_left = coded({0: "n0", 1: "n0", 2: "n1", 3: "n1"})
    spread = decide(four_left, *nodes[:3])
    assert targets(spread) == {4: "n2", 5: "n2"}
    assert targets(decide(four_left, *nodes[:2])) == {}


def test_a_domain_of_several_nodes_holds_no_more_than_one_node_may() -> None:
    racks = [stock(f"n{number}", domain=f"rack {number // 2}") for number in range(6)]
    decision = decide(coded(SIX[:4]), *racks)
    assert (set(targets(decision)), set(targets(decision).values())) == ({4, 5}, {"n4", "n5"})
    assert targets(decide(coded(SIX[:4]), *racks[:4])) == {}


def test_fewer_fragments_than_needed_leave_nothing_to_do_and_nothing_to_read() -> None:
    decision = decide(coded(SIX), *(stock(name) for name in SIX[:3]), *(gone(name) for name in SIX[3:]), stock("x"))
    assert (decision.action, decision.is_unavailable, decision.standing) == (None, True, Standing.LOST)


def test_a_reboot_is_waited_for_and_less_long_once_nothing_more_may_be_lost() -> None:
    def after(seconds: float, *away: str) -> dict[int, str]:
        nodes = [
            stock(name, liveness=Liveness.DOWN, down_for_seconds=seconds) if name in away else stock(name)
            for name in SIX
        ]
        return targets(decide(coded(SIX), *nodes, stock("x"), stock("y")))

    assert after(59, "n5") == {}
    assert set(after(60, "n5")) == {5}
    assert after(29, "n4", "n5") == {}
    assert set(after(30, "n4", "n5")) == {4, 5}


def test_a_node_may_hold_several_fragments_and_gets_none_that_it_has_or_that_is_worked_on_there() -> None:
    blob = coded({0: "n0", 1: "n1", 2: "n2", 3: "n3", 4: "n4"})
    nodes = [stock(name) for name in SIX[:5]]
    assert set(targets(decide(blob, *nodes))) == {5}
    barred = frozenset((NodeId(name), 5) for name in SIX[:4])
    assert targets(decide(blob, *nodes, barred=barred)) == {5: "n4"}
    assert targets(decide(blob, *nodes, barred=frozenset((NodeId(name), 4) for name in SIX[:5]))) != {}


def test_what_a_draining_node_or_disk_has_moves_and_only_then_is_let_go() -> None:
    for drained in (stock("n5", draining=True), stock("n5", draining_disks=frozenset({DISK}))):
        nodes = [*(stock(name) for name in SIX[:5]), drained, stock("x")]
        blob = coded(SIX)
        first = decide(blob, *nodes)
        assert (targets(first), first.urgency[0], first.is_degraded) == ({5: "x"}, Urgency.DRAIN, False)
        assert NodeId("n5") in {holder.node_id for holder in first.copies[0].sources}
        moved = applied(blob, first.action)
        second = decide(moved, *nodes)
        assert second.action == Trim(moved, hold("n5", 5))
        assert decide(applied(moved, second.action), *nodes).action is None


def test_a_draining_fragment_moves_beside_another_if_there_is_no_domain_of_its_own_p10() -> None:
    nodes = [*(stock(name) for name in SIX[:5]), stock("n5", draining=True)]
    blob = coded(SIX)
    first = decide(blob, *nodes)
    assert set(targets(first)) == {5}
    moved = applied(blob, first.action)
    second = decide(moved, *nodes)
    assert second.action == Trim(moved, hold("n5", 5))
    last = decide(applied(moved, second.action), *nodes)
    assert (last.action, last.standing) == (None, Standing.SAFE)


def test_copies_that_huddle_in_one_domain_without_a_drained_one_get_one_more_i7() -> None:
    nodes = [stock("a", domain="rack 1"), stock("b", domain="rack 1"), stock("c", domain="rack 2", draining=True)]
    two = Form(MIRROR, 1, 2)
    blob = copies("a", "b", "c")
    first = decide(blob, *nodes, stock("d", domain="rack 3"), form=two)
    assert (targets(first), first.urgency[0]) == ({0: "d"}, Urgency.DRAIN)
    moved = applied(blob, first.action)
    left = decide(moved, *nodes, stock("d", domain="rack 3"), form=two)
    assert [trim.holder.node_id for trim in left.trims] == ["c", "b"]
    # With no other domain to go to, the drain goes on all the same: it is no more than two copies that are promised.
    nowhere = decide(blob, *nodes, stock("d", domain="rack 1"), form=two)
    assert [trim.holder.node_id for trim in nowhere.trims] == ["c"]


def test_a_drained_node_is_emptied_though_what_others_have_of_it_huddles_in_one_domain_i7() -> None:
    """A node was away, its fragment was made at the one that is drained now, another one came to its domain; and then
    it returned.
    """
    two_one = Form("2+1", 2, 3, spread=True)
    nodes = [stock("a", domain="rack 1"), stock("b", domain="rack 1"), stock("c"), stock("d", draining=True)]
    blob = coded(("a", "b", "c"), code="2+1")
    blob = replace(blob, holders=(*blob.holders, hold("d", 0)))
    first = decide(blob, *nodes, stock("e"), form=two_one)
    assert (first.standing, first.urgency[0]) == (Standing.FULL, Urgency.DRAIN)
    assert set(targets(first).values()) == {"e"}
    for _ in range(3):
        blob = applied(blob, decide(blob, *nodes, stock("e"), form=two_one).action)
        assert decide(blob, *nodes, stock("e"), form=two_one).standing is Standing.FULL
    assert {holder.node_id for holder in blob.holders} in ({"a", "c", "e"}, {"b", "c", "e"})
    assert decide(blob, *nodes, stock("e"), form=two_one).action is None


def test_a_drained_node_keeps_what_others_would_not_be_safe_without_while_there_is_no_other_domain_i7() -> None:
    two_one = Form("2+1", 2, 3, spread=True)
    nodes = [stock("a", domain="rack 1"), stock("b", domain="rack 1"), stock("c"), stock("d", draining=True)]
    blob = coded(("a", "b", "c"), code="2+1")
    blob = replace(blob, holders=(*blob.holders, hold("d", 0)))
    assert decide(blob, *nodes, stock("e", domain="rack 1"), form=two_one).action is None
    # And if too few stay, there is nothing that huddles.
    few = replace(blob, holders=(hold("a", 0), hold("c", 0), hold("d", 1), hold("f", 2)))
    full = [replace(node, room_bytes=0) for node in (*nodes, stock("f", draining=True))]
    assert decide(few, *full, form=two_one).copies == ()


def test_a_node_that_is_no_longer_of_the_pool_gives_its_fragments_away() -> None:
    nodes = [stock(name) for name in (*SIX, "x")]
    decision = decide(coded(SIX), *nodes, eligible={NodeId(name) for name in (*SIX[:5], "x")})
    assert targets(decision) == {5: "x"}


def test_a_draining_node_keeps_what_it_has_while_nobody_else_can_take_it() -> None:
    nodes = [*(stock(name, room_bytes=0) for name in SIX[:5]), stock("n5", draining=True)]
    assert decide(coded(SIX), *nodes).action is None


def test_what_a_retired_disk_had_is_made_again_and_forgotten_but_never_the_last() -> None:
    nodes = [*(stock(name) for name in SIX[:5]), stock("n5", disks=frozenset({OTHER_DISK}))]
    nodes[5] = replace(nodes[5], retired_disks=frozenset({DISK}))
    blob = coded(SIX)
    first = decide(blob, *nodes)
    assert targets(first) == {5: "n5"}
    elsewhere = replace(blob, holders=(*blob.holders, hold("x", 5)))
    assert decide(elsewhere, *nodes, stock("x")).action == Forget(elsewhere, hold("n5", 5))
    assert decide(copies("n5"), nodes[5], form=Form(MIRROR, 1, 2)).action is None


def test_a_drop_that_was_begun_on_a_disk_which_is_given_up_is_forgotten_before_its_node_gets_another_p14() -> None:
    """Until then nothing that is made there goes on record, and it would be made over and over."""
    bereft = stock("n5", disks=frozenset({OTHER_DISK}), retired_disks=frozenset({DISK}))
    nodes = [*(stock(name) for name in SIX[:5]), bereft]
    dropping = hold("n5", 5, dropping=True)
    blob = replace(coded(SIX[:5]), holders=(*coded(SIX[:5]).holders, dropping))
    assert targets(decide(blob, *nodes, stock("x"))) == {5: "x"}
    two = Form(MIRROR, 1, 2)
    twice = replace(copies("n0"), holders=(hold("n0"), hold("n5", dropping=True)))
    alone = decide(twice, nodes[0], bereft, form=two)
    assert alone.action == Forget(twice, twice.holders[1])
    assert targets(decide(applied(twice, alone.action), nodes[0], bereft, form=two)) == {0: "n5"}


def test_a_node_that_was_removed_is_forgotten_once_nobody_can_need_it() -> None:
    blob = coded([*SIX[:5], "removed"])
    nodes = [stock(name) for name in (*SIX[:5], "x")]
    first = decide(blob, *nodes)
    assert targets(first) == {5: "x"}
    made = applied(blob, first.action)
    assert decide(made, *nodes).action == Forget(made, hold("removed", 5))


def test_doubles_spread_again_as_soon_as_there_is_a_domain_without_any_p10() -> None:
    doubled = coded({0: "n0", 1: "n0", 2: "n1", 3: "n2", 4: "n3", 5: "n4"})
    nodes = [stock(name) for name in SIX[:5]]
    assert decide(doubled, *nodes).action is None
    first = decide(doubled, *nodes, stock("n5"))
    assert (set(targets(first).values()), first.urgency[0]) == ({"n5"}, Urgency.SPREAD)
    moved = applied(doubled, first.action)
    second = decide(moved, *nodes, stock("n5"))
    [trim] = second.trims
    assert (trim.holder.node_id, trim.holder.fragment_index) == ("n0", first.copies[0].fragment_index)
    last = decide(applied(moved, trim), *nodes, stock("n5"))
    assert (last.action, last.standing) == (None, Standing.FULL)


def test_a_domain_with_more_than_the_blob_can_do_without_gives_some_away_also_to_those_that_have_one_p10() -> None:
    """As a pool that allows it has saved them while most of its domains were away."""
    nodes = [stock("a"), stock("b"), stock("c")]
    blob = coded({0: "a", 1: "a", 2: "a", 3: "a", 4: "b", 5: "c"})
    assert decide(blob, *nodes).standing is Standing.READABLE
    for _ in range(4):
        blob = applied(blob, decide(blob, *nodes).action)
    spread = decide(blob, *nodes)
    assert (spread.standing, spread.action) == (Standing.SAFE, None)
    assert Counter(holder.node_id for holder in blob.holders) == {"a": 2, "b": 2, "c": 2}


def test_what_nobody_has_finds_a_place_though_doubles_of_others_are_in_all_domains_p10() -> None:
    """Each double is what makes up for another, so none of them can go before."""
    two_one = Form("2+1", 2, 3, spread=True)
    nodes = [stock("a"), stock("b"), stock("c")]
    blob = replace(coded((), code="2+1"), holders=(hold("a", 0), hold("a", 2), hold("b", 0), hold("c", 2)))
    assert set(targets(decide(blob, *nodes, form=two_one))) == {1}
    for _ in range(3):
        blob = applied(blob, decide(blob, *nodes, form=two_one).action)
    last = decide(blob, *nodes, form=two_one)
    assert (last.standing, last.action, len(blob.holders)) == (Standing.FULL, None, 3)


def test_doubles_stay_while_a_node_that_went_away_may_return() -> None:
    doubled = coded({0: "n0", 1: "n0", 2: "n1", 3: "n2", 4: "n3", 5: "n4"})
    away = stock("n4", liveness=Liveness.DOWN, down_for_seconds=1)
    assert decide(doubled, *(stock(name) for name in SIX[:4]), away, stock("x")).action is None


def test_of_a_fragment_that_two_nodes_have_the_one_in_the_crowd_goes() -> None:
    twice = replace(coded(SIX), holders=(*coded(SIX).holders, hold("n0", 5)))
    [trim] = decide(twice, *(stock(name) for name in SIX)).trims
    assert trim.holder == hold("n0", 5)


def test_a_second_holder_stays_while_it_is_what_makes_up_for_a_crowd_i7() -> None:
    """Without either of the two, one domain would hold two fragments that lie nowhere else."""
    blob = coded({0: "n0", 1: "n1", 2: "n2", 3: "n3", 4: "n4", 5: "n0"})
    twice = replace(blob, holders=(*blob.holders, hold("n1", 5)))
    decision = decide(twice, *(stock(name) for name in SIX[:5]))
    assert (decision.action, decision.standing) == (None, Standing.FULL)


def test_a_drop_that_was_begun_is_not_finished_while_too_few_others_are_live_i7() -> None:
    holders = (*(hold(name, index) for index, name in enumerate(SIX[:4])), hold("n5", 5, dropping=True))
    blob = replace(coded(SIX), holders=holders)
    nodes = [stock(name, room_bytes=0) for name in SIX]
    assert decide(blob, *nodes).trims == (Trim(blob, holders[4]),)
    assert decide(blob, gone("n0"), *nodes[1:]).trims == ()


def test_the_least_redundant_come_first_and_what_only_moves_after_all_that_lacks_something() -> None:
    nodes = [*(stock(name) for name in SIX), stock("x"), stock("y")]

    def urgency(lost: int, *, form: Form = FOUR_TWO) -> tuple[float, float, int]:
        return decide(coded(SIX[: form.total - lost]), *nodes, form=form).urgency

    nothing_to_spare, one_lost = urgency(2), urgency(1)
    mirror_of_three = decide(copies("n0", "n1"), *nodes, form=Form(MIRROR, 1, 3)).urgency
    last_copy = decide(copies("n0"), *nodes, form=Form(MIRROR, 1, 3)).urgency
    assert last_copy < mirror_of_three
    assert nothing_to_spare < one_lost == mirror_of_three
    drained = decide(coded(SIX), *nodes[:5], stock("n5", draining=True), stock("x")).urgency
    doubled = decide(coded({0: "n0", 1: "n0", 2: "n1", 3: "n2", 4: "n3", 5: "n4"}), *nodes).urgency
    converted = decide(copies("n0", "n1"), *nodes, form=Form(MIRROR, 1, 2), wanted=FOUR_TWO).urgency
    trimmed = decide(replace(coded(SIX), holders=(*coded(SIX).holders, hold("x", 5))), *nodes).urgency
    assert one_lost < drained < doubled < converted < trimmed


def test_what_is_lost_in_one_pool_is_brought_back_from_its_twin_in_another() -> None:
    twin = replace(copies("m1", "m2", size_bytes=8 * MIB), id=BlobId("f" * 32))
    nodes = [*(stock(name) for name in SIX[:3]), *(gone(name) for name in SIX[3:])]
    nodes += [stock(name) for name in ("x", "y", "z", "m1", "m2")]
    eligible = {NodeId(name) for name in (*SIX, "x", "y", "z")}
    decision = decide(coded(SIX), *nodes, twin=twin, eligible=eligible)
    assert set(targets(decision)) == {3, 4, 5}
    assert {copy.source.id for copy in decision.copies} == {twin.id}
    assert decision.copies[0].sources == twin.holders
    assert not decision.is_unavailable
    unheard = [replace(one, liveness=Liveness.UNKNOWN) if one.id in ("m1", "m2") else one for one in nodes]
    assert not decide(coded(SIX), *unheard, twin=twin, eligible=eligible).is_unavailable


def test_a_blob_in_another_code_than_its_pool_wants_is_made_anew_whole() -> None:
    nodes = [stock(name) for name in SIX]
    decision = decide(copies("n0", "n1", size_bytes=8 * MIB), *nodes, form=Form(MIRROR, 1, 2), wanted=FOUR_TWO)
    assert decision.make
    assert sorted(index for index, _ in decision.make.targets) == list(range(6))
    assert len({node for _, node in decision.make.targets}) == 6
    assert (decision.make.size_bytes, decision.trims) == (12 * MIB, ())
    back = decide(coded(SIX), *nodes, wanted=Form(MIRROR, 1, 2))
    assert back.make
    assert [index for index, _ in back.make.targets] == [0, 0]


def test_nothing_is_made_anew_where_it_would_not_survive_the_loss_of_a_domain_and_no_copy_goes_for_it() -> None:
    three = copies("n0", "n1", "n2", size_bytes=8 * MIB)
    for nodes in ([stock("n0"), stock("n1")], [stock(name, domain="one") for name in SIX]):
        assert decide(three, *nodes, stock("n2", room_bytes=0), form=Form(MIRROR, 1, 2), wanted=FOUR_TWO).action is None
    fits = decide(three, *(stock(f"n{number}") for number in range(3)), form=Form(MIRROR, 1, 2), wanted=FOUR_TWO)
    assert fits.make


def test_what_lacks_a_copy_gets_that_before_it_is_made_anew() -> None:
    nodes = [stock(name) for name in SIX]
    decision = decide(copies("n0", size_bytes=8 * MIB), *nodes, form=Form(MIRROR, 1, 2), wanted=FOUR_TWO)
    assert (len(decision.copies), decision.make) == (1, None)
