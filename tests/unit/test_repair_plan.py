"""What is copied where, and what is let go: a pure decision, tried with random clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import MIRROR
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.redundancy import Form
from sdrs_core.remedies import Copy, Decision, Trim
from sdrs_core.repair import Patience, decide_repair
from sdrs_core.stocks import Stock

DISK = DiskId("d" * 32)
OTHER_DISK = DiskId("e" * 32)
PATIENCE = Patience(seconds=60, last_copy_seconds=30)


def stock(name: str, **given: object) -> Stock:
    known = Stock(NodeId(name), f"domain of {name}", Liveness.UP, frozenset({DISK}), room_bytes=1000)
    return replace(known, **given)  # type: ignore[arg-type]


def blob_on(*names: str, dropping: tuple[str, ...] = ()) -> Blob:
    holders = [Holder(NodeId(name), DISK, 0, "hash", dropping=name in dropping) for name in (*names, *dropping)]
    return Blob(BlobId("b" * 32), 0, 10, "hash", holders=tuple(holders))


def decide(blob: Blob, *stocks: Stock, wanted: int = 2, **given: object) -> Decision:
    nodes = {one.id: one for one in stocks}
    settings = {"eligible": nodes.keys(), "patience": PATIENCE} | given
    return decide_repair(blob, nodes, form=Form(MIRROR, 1, wanted), **settings)  # type: ignore[arg-type]


def targets(decision: Decision) -> list[str]:
    return [copy.target for copy in decision.copies]


def test_a_missing_copy_goes_to_the_emptiest_node_that_lacks_it() -> None:
    nodes = [stock("a"), stock("b", used_fraction=0.8), stock("c", used_fraction=0.2), stock("d", used_fraction=0.5)]
    decision = decide(blob_on("a"), *nodes)
    blob = blob_on("a")
    assert decision.copies == (Copy(blob, 0, blob, blob.holders, NodeId("c")),)
    assert decision.is_degraded
    assert not decision.is_unavailable


def test_nodes_that_are_alike_share_the_blobs() -> None:
    nodes = [stock(name) for name in "abcd"]
    chosen = Counter[str]()
    for number in range(300):
        chosen.update(targets(decide(replace(blob_on("a"), id=BlobId(f"{number:032x}")), *nodes)))
    assert set(chosen) == {"b", "c", "d"}
    assert min(chosen.values()) > 60


def test_a_node_gets_nothing_while_it_is_full_cordoned_failing_down_barred_or_of_another_pool() -> None:
    a = stock("a")
    for unfit in (
        stock("b", room_bytes=9),
        stock("b", cordoned=True),
        stock("b", takes_writes=False),
        stock("b", liveness=Liveness.DOWN),
        stock("b", liveness=Liveness.UNKNOWN),
    ):
        assert targets(decide(blob_on("a"), a, unfit)) == []
    assert targets(decide(blob_on("a"), a, stock("b"), barred=frozenset({("b", 0)}))) == []
    assert targets(decide(blob_on("a"), a, stock("b"), eligible=frozenset({"a"}))) == []
    assert targets(decide(blob_on("a"), a, stock("b"))) == ["b"]


def test_a_flapping_node_is_the_last_choice_and_a_doubled_domain_the_very_last() -> None:
    a, b = stock("a", domain="rack-1"), stock("b", domain="rack-1")
    c = stock("c", domain="rack-2", flapping=True, used_fraction=0.9)
    assert targets(decide(blob_on("a"), a, b, c)) == ["c"]
    assert targets(decide(blob_on("a"), a, b)) == ["b"]
    assert targets(decide(blob_on("a"), stock("a"), stock("b", flapping=True), stock("c", used_fraction=0.9))) == ["c"]


def test_a_node_that_went_down_is_waited_for_and_less_long_when_one_copy_is_left() -> None:
    def after(seconds: float, *live: str) -> Decision:
        down = stock("x", liveness=Liveness.DOWN, down_for_seconds=seconds)
        return decide(blob_on(*live, "x"), *(stock(n) for n in live), down, stock("y"), wanted=len(live) + 1)

    assert targets(after(29, "a")) == []
    assert after(29, "a").wait_seconds == 1
    assert targets(after(30, "a")) == ["y"]
    assert targets(after(59, "a", "b")) == []
    assert targets(after(60, "a", "b")) == ["y"]


def test_a_node_that_was_not_heard_yet_moves_nothing_and_makes_nothing_unavailable() -> None:
    unheard = stock("x", liveness=Liveness.UNKNOWN, down_for_seconds=1e6)
    assert decide(blob_on("a", "x"), stock("a"), unheard, stock("b")).action is None
    decision = decide(blob_on("x"), stock("a"), unheard)
    assert (decision.action, decision.is_unavailable, decision.undecided) == (None, False, True)


def test_too_few_copies_are_awaited_while_a_node_may_return_and_not_if_nobody_can_take_one() -> None:
    away = stock("x", liveness=Liveness.DOWN, down_for_seconds=1)
    assert decide(blob_on("a", "x"), stock("a"), away, stock("b")).is_awaited
    assert decide(blob_on("a", "x"), stock("a"), replace(away, liveness=Liveness.UNKNOWN)).is_awaited
    gone = replace(away, down_for_seconds=1e6)
    assert not decide(blob_on("a", "x"), stock("a"), gone, stock("b")).is_awaited
    assert not decide(blob_on("a", "x"), stock("a"), gone).is_awaited
    assert not decide(blob_on("a", "b"), stock("a"), stock("b")).is_awaited


def test_a_blob_without_any_copy_in_reach_is_unavailable_and_left_alone() -> None:
    down = stock("x", liveness=Liveness.DOWN, down_for_seconds=1e6)
    for decision in (
        decide(blob_on("x"), stock("a"), down),
        decide(blob_on("x"), stock("a")),
        decide(blob_on("x"), stock("a"), stock("x", disks=frozenset({OTHER_DISK}))),
        decide(blob_on(dropping=("x",)), stock("a"), down),
    ):
        assert decision.is_unavailable
        assert decision.action is None


def test_a_copy_on_a_disk_that_is_not_there_does_not_count_and_its_node_may_get_another() -> None:
    b = stock("b", disks=frozenset({OTHER_DISK}))
    assert targets(decide(blob_on("a", "b"), stock("a"), b)) == ["b"]
    assert targets(decide(blob_on("a", "b"), stock("a"), b, stock("c"))) == ["c"]


def test_a_copy_on_a_failed_disk_is_read_last_and_made_again_elsewhere() -> None:
    a, b = stock("a", failed_disks=frozenset({DISK})), stock("b")
    decision = decide(blob_on("a", "b"), a, b, stock("c"))
    blob = blob_on("a", "b")
    assert decision.copies == (Copy(blob, 0, blob, (blob.holders[1], blob.holders[0]), NodeId("c")),)
    assert targets(decide(blob_on("a"), a, stock("c"), wanted=1)) == ["c"]
    assert not decide(blob_on("a"), a, wanted=1).is_unavailable


def test_a_copy_too_many_goes_from_a_doubled_domain_then_from_the_fullest_node() -> None:
    a, b = stock("a", domain="rack-1"), stock("b", domain="rack-1", used_fraction=0.1)
    c = stock("c", domain="rack-2", used_fraction=0.9)
    assert [trim.holder.node_id for trim in decide(blob_on("a", "b", "c"), a, b, c).trims] == ["b"]
    apart = [stock("a"), stock("b", used_fraction=0.9), stock("c")]
    assert [trim.holder.node_id for trim in decide(blob_on("a", "b", "c"), *apart).trims] == ["b"]


def test_a_drop_that_was_begun_is_finished_once_its_node_is_up_and_the_node_gets_no_copy() -> None:
    blob = blob_on("a", "b", dropping=("c",))
    nodes = [stock("a"), stock("b"), stock("c")]
    assert decide(blob, *nodes).trims == (Trim(blob, blob.holders[2]),)
    assert decide(blob, *nodes[:2], stock("c", liveness=Liveness.DOWN)).action is None
    short = blob_on("a", dropping=("c",))
    assert targets(decide(short, *nodes)) == ["b"]
    assert targets(decide(short, nodes[0], nodes[2])) == []


def test_a_drop_that_was_begun_is_not_finished_while_no_other_copy_is_live() -> None:
    blob = blob_on("a", dropping=("c",))
    for lost in (stock("a", liveness=Liveness.DOWN, down_for_seconds=1e6), stock("a", disks=frozenset({OTHER_DISK}))):
        assert decide(blob, lost, stock("b"), stock("c")).action is None


def test_the_fewest_live_copies_come_first_and_trims_last() -> None:
    nodes = [stock(name) for name in "abcde"]
    one, two = decide(blob_on("a"), *nodes, wanted=3), decide(blob_on("a", "b"), *nodes, wanted=3)
    many = decide(blob_on("a", "b", "c", "d"), *nodes, wanted=3)
    assert one.urgency < two.urgency < many.urgency


def test_a_node_that_lost_its_copy_is_preferred_among_equals() -> None:
    nodes = [stock(name) for name in "abcdefgh"]
    for name in "bcdefgh":
        assert targets(decide(blob_on("a"), *nodes, preferred=NodeId(name))) == [name]
    full = [stock("a"), stock("b", room_bytes=0), stock("c")]
    assert targets(decide(blob_on("a"), *full, preferred=NodeId("b"))) == ["c"]


NAMES = [NodeId(name) for name in "abcdefgh"]
stocks = st.builds(
    Stock,
    id=st.just(NodeId("")),
    domain=st.sampled_from(["rack-1", "rack-2", "rack-3", "rack-4"]),
    liveness=st.sampled_from([Liveness.UP, Liveness.UP, Liveness.UP, Liveness.DOWN, Liveness.UNKNOWN]),
    disks=st.sampled_from([frozenset({DISK}), frozenset({DISK}), frozenset({OTHER_DISK})]),
    failed_disks=st.sampled_from([frozenset[DiskId](), frozenset[DiskId](), frozenset({DISK})]),
    takes_writes=st.booleans(),
    cordoned=st.booleans(),
    flapping=st.booleans(),
    room_bytes=st.sampled_from([0, 1000, 1000]),
    used_fraction=st.floats(0, 1),
    down_for_seconds=st.sampled_from([0.0, 30.0, 1000.0]),
)
clusters = st.lists(stocks, min_size=1, max_size=8).map(
    lambda found: {name: replace(one, id=name) for name, one in zip(NAMES, found, strict=False)}
)
holders = st.lists(
    st.builds(Holder, st.sampled_from(NAMES), st.just(DISK), st.just(0), st.just("hash"), st.booleans()),
    max_size=6,
    unique_by=lambda holder: holder.node_id,
).map(tuple)


@given(nodes=clusters, held=holders, wanted=st.integers(1, 4))
def test_whatever_the_cluster_nothing_is_lost_and_no_domain_is_doubled_that_need_not_be(
    nodes: dict[NodeId, Stock], held: tuple[Holder, ...], wanted: int
) -> None:
    blob = Blob(BlobId("b" * 32), 0, 10, "hash", holders=held)
    form = Form(MIRROR, 1, wanted)
    decision = decide_repair(blob, nodes, form=form, eligible=nodes.keys(), patience=PATIENCE)
    shuffled = {name: nodes[name] for name in reversed(nodes)}
    assert decision == decide_repair(blob, shuffled, form=form, eligible=nodes.keys(), patience=PATIENCE)

    live = [
        h
        for h in held
        if not h.dropping
        and h.node_id in nodes
        and nodes[h.node_id].liveness is Liveness.UP
        and h.disk_id in nodes[h.node_id].disks - nodes[h.node_id].failed_disks
    ]
    assert list(decision.live) == live
    trimmed = [trim.holder for trim in decision.trims]
    assert all(holder in live or holder.dropping for holder in trimmed)
    counted = [holder for holder in trimmed if not holder.dropping]
    assert len(live) - len(counted) >= min(len(live), max(1, wanted))
    assert not (counted and decision.copies)

    goals = targets(decision)
    assert len(set(goals)) == len(goals) <= max(0, wanted - len(live))
    for goal in goals:
        node = nodes[NodeId(goal)]
        assert node.liveness is Liveness.UP
        assert node.takes_writes
        assert not node.cordoned
        assert node.room_bytes >= blob.size_bytes
        # Not a holder, but for one whose disk is not there.
        mine = [h for h in held if h.node_id == goal]
        assert all(not h.dropping and h.disk_id not in node.disks for h in mine)
    if goals:
        assert decision.copies[0].sources
        assert set(decision.copies[0].sources) <= set(decision.readable)
        free = {
            one.domain
            for name, one in nodes.items()
            if name not in {h.node_id for h in held}
            and name not in goals
            and one.liveness is Liveness.UP
            and one.takes_writes
            and not one.cordoned
            and one.room_bytes >= blob.size_bytes
        }
        used = Counter(nodes[NodeId(name)].domain for name in (*(h.node_id for h in live), *goals))
        doubled = {nodes[NodeId(goal)].domain for goal in goals if used[nodes[NodeId(goal)].domain] > 1}
        assert not (doubled and free - set(used) - _waited_for(held, nodes))


def _waited_for(held: tuple[Holder, ...], nodes: dict[NodeId, Stock]) -> set[str]:
    """Domains of copies that may come back."""
    return {
        nodes[h.node_id].domain
        for h in held
        if h.node_id in nodes and nodes[h.node_id].liveness is not Liveness.UP and not h.dropping
    }
