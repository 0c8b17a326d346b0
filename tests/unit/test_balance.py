"""Nodes are filled evenly with little movement: it ends, moves what is lacking and no more, and lowers nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.balance import Balance
from sdrs_core.checkpoints import Blob
from sdrs_core.codes import MIRROR, Code
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.redundancy import Form, Standing, standing
from sdrs_core.remedies import Trim
from sdrs_core.repair import decide_repair
from sdrs_core.stocks import Stock, fragment_bytes
from sdrs_core.whereabouts import domains_of
from tests.support.repair_cases import FOUR_TWO, MIB, PATIENCE, SIX, applied, code_form, hold, stock

FORMS = {form.code: form for form in (Form(MIRROR, 1, 2), FOUR_TWO, code_form(Code(2, 1)))}
CAPACITY_BYTES = 100_000 * MIB


class Pool:
    """Nodes and blobs, and a loop that carries out what is decided, a few moves with each look."""

    def __init__(self, nodes: dict[NodeId, Stock], blobs: list[Blob]) -> None:
        self.nodes = nodes
        self.blobs = {blob.id: blob for blob in blobs}
        self.moved_bytes = self.moves = 0
        self.worst = Standing.FULL

    def held(self) -> dict[NodeId, int]:
        held = dict.fromkeys(self.nodes, 0)
        for blob in self.blobs.values():
            for holder in blob.holders:
                held[holder.node_id] += fragment_bytes(blob, holder.fragment_index)
        return held

    def stocks(self) -> dict[NodeId, Stock]:
        held = self.held()
        return {name: replace(one, held_bytes=held[name]) for name, one in self.nodes.items()}

    def even_out(self, most_moves: int = 5) -> bool:
        """One look at everything: whether anything was moved."""
        balance = Balance(self.stocks(), self.nodes.keys(), least_bytes=0)
        before = self.moves
        for blob in list(self.blobs.values()):
            form = FORMS[blob.code]
            decision = decide_repair(blob, self.stocks(), form=form, eligible=self.nodes.keys(), patience=PATIENCE)
            move = balance.move(blob, decision)
            if move is None:
                continue
            self.moves += 1
            self.moved_bytes += move.size_bytes
            self._carry_out(applied(blob, move), form)
            if self.moves - before == most_moves:
                break
        return self.moves > before

    def _carry_out(self, copied: Blob, form: Form) -> None:
        """What it makes possible is let go, and nothing else is wanted."""
        self.blobs[copied.id] = copied
        decision = decide_repair(copied, self.stocks(), form=form, eligible=self.nodes.keys(), patience=PATIENCE)
        assert isinstance(decision.action, Trim)
        self.blobs[copied.id] = moved = applied(copied, decision.action)
        assert moved.holders != copied.holders
        self.worst = min(self.worst, standing(form, moved.holders, domains_of(moved, self.nodes)))

    def settle(self) -> None:
        for _ in range(200):
            if not self.even_out():
                return
        raise AssertionError("it does not end")


def nodes_called(*names: str) -> dict[NodeId, Stock]:
    stocks = [stock(name, capacity_bytes=CAPACITY_BYTES, room_bytes=CAPACITY_BYTES) for name in names]
    return {one.id: one for one in stocks}


def coded_blob(number: int, names: list[str], size_bytes: int, code: str = "4+2") -> Blob:
    holders = tuple(hold(name, 0 if code == MIRROR else index) for index, name in enumerate(names))
    return Blob(BlobId(f"{number:032x}"), 0, size_bytes, "hash", code, holders)


def test_a_node_that_joins_gets_its_part_and_nothing_else_moves() -> None:
    pool = Pool(nodes_called(*SIX, "new"), [coded_blob(number, SIX, 8 * MIB) for number in range(70)])
    pool.settle()
    held = pool.held()
    mean = sum(held.values()) / 7
    assert 0.8 * mean <= held[NodeId("new")] <= mean
    assert pool.moved_bytes == held[NodeId("new")]
    assert min(held.values()) >= 0.8 * mean
    assert pool.worst is Standing.FULL


def test_what_is_even_enough_stays_where_it_is() -> None:
    nodes = nodes_called(*SIX)
    pool = Pool(nodes, [coded_blob(number, SIX, 8 * MIB) for number in range(20)])
    assert not pool.even_out()
    few = Pool(nodes_called(*SIX, "new"), [coded_blob(0, SIX, 8 * MIB)])
    assert not few.even_out()


def test_less_than_the_least_is_not_worth_a_move() -> None:
    pool = Pool(nodes_called(*SIX, "new"), [coded_blob(number, SIX, 8 * MIB) for number in range(20)])
    stocks = pool.stocks()
    blob = next(iter(pool.blobs.values()))
    decision = decide_repair(blob, stocks, form=FOUR_TWO, eligible=stocks.keys(), patience=PATIENCE)
    assert Balance(stocks, stocks.keys(), least_bytes=40 * MIB).move(blob, decision)
    assert Balance(stocks, stocks.keys(), least_bytes=41 * MIB).move(blob, decision) is None


def test_a_node_gets_its_part_by_its_capacity() -> None:
    nodes = nodes_called(*SIX, "new")
    nodes[NodeId("new")] = replace(nodes[NodeId("new")], capacity_bytes=CAPACITY_BYTES // 4)
    pool = Pool(nodes, [coded_blob(number, SIX, 8 * MIB) for number in range(100)])
    pool.settle()
    held = pool.held()
    mean = sum(held.values()) / 6.25
    assert 0.8 * mean / 4 <= held[NodeId("new")] <= mean / 4


def test_nothing_moves_onto_a_node_that_is_drained_flapping_full_or_in_the_domain_of_another_share() -> None:
    for unfit in (
        {"draining": True},
        {"cordoned": True},
        {"flapping": True},
        {"room_bytes": 0},
        {"takes_writes": False},
    ):
        nodes = nodes_called(*SIX, "new")
        nodes[NodeId("new")] = replace(nodes[NodeId("new")], **unfit)  # type: ignore[arg-type]
        assert not Pool(nodes, [coded_blob(number, SIX, 8 * MIB) for number in range(20)]).even_out()
    nodes = nodes_called(*SIX, "new")
    nodes[NodeId("new")] = replace(nodes[NodeId("new")], domain="domain of n0")
    pool = Pool(nodes, [coded_blob(number, SIX, 8 * MIB) for number in range(70)])
    pool.settle()
    assert pool.moves
    assert pool.worst is Standing.FULL
    assert {name for name, size_bytes in pool.held().items() if size_bytes < 130 * MIB} == {NodeId("n0"), NodeId("new")}


def test_a_node_gives_nothing_away_that_would_leave_it_with_too_little_itself() -> None:
    held = {"a": 60, "b": 50, "c": 50, "new": 0}
    nodes = nodes_called(*held)
    stocks = {name: replace(one, held_bytes=held[name] * MIB) for name, one in nodes.items()}
    for size_mib, moves in ((30, False), (20, True)):
        blob = coded_blob(0, ["a", "b"], size_mib * MIB, MIRROR)
        decision = decide_repair(blob, stocks, form=Form(MIRROR, 1, 2), eligible=stocks.keys(), patience=PATIENCE)
        assert (Balance(stocks, stocks.keys(), least_bytes=0).move(blob, decision) is not None) == moves


def test_an_only_copy_and_what_needs_something_else_do_not_move() -> None:
    nodes = nodes_called("a", "b", "new")
    stocks = {name: replace(one, held_bytes=0 if name == "new" else 50 * MIB) for name, one in nodes.items()}
    single = coded_blob(0, ["a"], 5 * MIB, MIRROR)
    balance = Balance(stocks, stocks.keys(), least_bytes=0)
    for form in (Form(MIRROR, 1, 1), Form(MIRROR, 1, 2)):
        decision = decide_repair(single, stocks, form=form, eligible=stocks.keys(), patience=PATIENCE)
        assert balance.move(single, decision) is None
    both = coded_blob(0, ["a", "b"], 5 * MIB, MIRROR)
    decision = decide_repair(both, stocks, form=Form(MIRROR, 1, 2), eligible=stocks.keys(), patience=PATIENCE)
    assert balance.move(both, decision)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(6, 10),
    st.lists(st.tuples(st.sampled_from(sorted(FORMS)), st.integers(1, 40)), min_size=1, max_size=60),
)
def test_when_an_empty_node_joins_it_ends_moves_at_most_the_ideal_and_lowers_no_redundancy(
    node_count: int, contents: list[tuple[str, int]]
) -> None:
    names = [f"n{number}" for number in range(node_count)]
    blobs = []
    for number, (code, size_mib) in enumerate(contents):
        # As saves are placed: on whoever has the least.
        pool = Pool(nodes_called(*names), blobs)
        least_first = sorted(names, key=lambda name: (pool.held()[NodeId(name)], name))
        blobs.append(coded_blob(number, least_first[: FORMS[code].total], size_mib * MIB, code))
    joined = Pool(nodes_called(*names, "new"), blobs)
    ideal_bytes = sum(joined.held().values()) / (node_count + 1)
    was_even = min(joined.held()[NodeId(name)] for name in names) >= ideal_bytes
    joined.settle()
    assert joined.worst is Standing.FULL
    if was_even:
        assert joined.moved_bytes <= 1.2 * ideal_bytes
    assert joined.held()[NodeId("new")] <= ideal_bytes
    assert not joined.even_out()
