"""Whatever the cluster, the holders and the failures: repair ends, gets as far as it can, and never loses anything on
the way (I7, P10, P14).

What is decided is carried out on paper, one action after the other, with failures in between.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import MIRROR, Code
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.redundancy import Form, Standing, standing
from sdrs_core.remedies import Copy, Decision, Forget, Trim, Urgency
from sdrs_core.repair import decide_repair
from sdrs_core.reshaping import Make
from sdrs_core.stocks import Stock
from sdrs_core.whereabouts import domains_of, shares
from tests.support.repair_cases import DISK, MIB, OTHER_DISK, PATIENCE, applied, code_form, hold, stock, writable_disks

NAMES = [NodeId(f"n{number}") for number in range(10)]
FORMS = [
    Form(MIRROR, 1, 2),
    Form(MIRROR, 1, 3, spread=True),
    *(code_form(Code(*km)) for km in [(2, 1), (4, 2), (3, 3), (5, 1)]),
]
MAX_ACTIONS = 60

forms = st.sampled_from(FORMS)
domains = st.sampled_from([f"rack {number}" for number in range(7)])


@st.composite
def clusters(draw: st.DrawFn, *, sound: bool = False) -> dict[NodeId, Stock]:
    nodes = {}
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        one = stock(name, domain=draw(domains), flapping=draw(st.booleans()), held_bytes=draw(st.integers(0, 100)))
        if not sound:
            both = frozenset({DISK, OTHER_DISK})
            one = replace(
                one,
                liveness=draw(st.sampled_from([Liveness.UP] * 4 + [Liveness.DOWN, Liveness.UNKNOWN])),
                down_for_seconds=draw(st.sampled_from([0.0, 45.0, 1000.0])),
                disks=draw(st.sampled_from([both, both, frozenset({DISK}), frozenset({OTHER_DISK})])),
                failed_disks=draw(st.sampled_from([frozenset[object]()] * 4 + [frozenset({DISK})])),
                draining_disks=draw(st.sampled_from([frozenset[object]()] * 4 + [frozenset({DISK})])),
                draining=draw(st.sampled_from([False, False, False, True])),
                cordoned=draw(st.sampled_from([False, False, False, True])),
                room_bytes=draw(st.sampled_from([0, 1000 * MIB, 1000 * MIB])),
            )
            if DISK not in one.disks:
                one = replace(one, retired_disks=draw(st.sampled_from([frozenset[object](), frozenset({DISK})])))
        nodes[name] = replace(one, takes_writes=bool(writable_disks(one)))
    return nodes


@st.composite
def blobs(draw: st.DrawFn, form: Form) -> Blob:
    mirrored = form.code == MIRROR
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(NAMES), st.just(0) if mirrored else st.integers(0, form.total - 1)),
            min_size=1,
            max_size=form.total + 3,
            unique_by=(lambda place: place[0]) if mirrored else lambda place: place,
        )
    )
    dropping = draw(st.sets(st.sampled_from(places), max_size=1))
    holders = tuple(hold(name, index, dropping=(name, index) in dropping) for name, index in places)
    return Blob(BlobId("b" * 32), 0, 20 * MIB, "hash", form.code, holders)


def decide(blob: Blob, nodes: dict[NodeId, Stock], form: Form, wanted: Form | None = None) -> Decision:
    return decide_repair(blob, nodes, form=form, wanted=wanted, eligible=nodes.keys(), patience=PATIENCE)


def stands(blob: Blob, form: Form, holders: tuple[Holder, ...], nodes: dict[NodeId, Stock]) -> Standing:
    return standing(form, holders, domains_of(blob, nodes))


@settings(deadline=None)
@given(data=st.data(), form=forms)
def test_one_decision_lets_nothing_go_that_is_needed_and_asks_nobody_for_what_it_cannot_do(
    data: st.DataObject, form: Form
) -> None:
    nodes = data.draw(clusters())
    blob = data.draw(blobs(form))
    decision = decide(blob, nodes, form)
    assert decision == decide(blob, {name: nodes[name] for name in reversed(nodes)}, form)
    trimmed = {trim.holder for trim in decision.trims}
    counted = {holder for holder in trimmed if not holder.dropping}
    left = tuple(holder for holder in decision.live if holder not in counted)
    # I7: whatever is let go at once, each share that was live still is, and as many copies as are wanted.
    if form.code == MIRROR:
        assert len(left) >= min(len(decision.live), form.total)
    else:
        assert shares(left, form.code) == shares(decision.live, form.code)
    before, after = decision.standing, stands(blob, form, left, nodes)
    is_drained = any(_is_draining(holder, nodes) for holder in counted)
    assert after >= (min(before, Standing.SAFE) if is_drained else before)
    if trimmed:
        assert len(shares(left, form.code)) >= form.needed
    if counted and _survives_any(form, decision.live, nodes) and not _survives_any(form, left, nodes):
        # Only what is drained, and only if there is no other domain to go to.
        assert is_drained
        elsewhere = {one.domain for one in nodes.values() if one.takes_copies and one.room_bytes}
        assert elsewhere <= {nodes[holder.node_id].domain for holder in blob.holders}
    assert not (counted and decision.copies)
    if not decision.is_readable:
        assert not decision.copies
    crowds = Counter[str]()
    for copy in decision.copies:
        target = nodes[copy.target]
        assert target.takes_copies
        assert target.room_bytes >= copy.size_bytes
        crowds[target.domain] += 1
        mine = [h for h in blob.holders if (h.node_id, h.fragment_index) == (copy.target, copy.fragment_index)]
        assert all(not h.dropping and h.disk_id not in target.disks for h in mine)
        assert len(shares(copy.sources, copy.source.code)) >= form.needed
    if form.spread and form.spare:
        assert max(crowds.values(), default=0) <= form.spare


def _survives_any(form: Form, holders: tuple[Holder, ...], nodes: dict[NodeId, Stock]) -> bool:
    """The loss of any one domain."""
    places = {nodes[holder.node_id].domain for holder in holders}
    lefts = [[holder for holder in holders if nodes[holder.node_id].domain != place] for place in places]
    return all(len(shares(left, form.code)) >= form.needed for left in lefts)


def _is_draining(holder: Holder, nodes: dict[NodeId, Stock]) -> bool:
    return nodes[holder.node_id].draining or holder.disk_id in nodes[holder.node_id].draining_disks


def carried_out(blob: Blob, nodes: dict[NodeId, Stock], form: Form, wanted: Form | None = None) -> tuple[Blob, int]:
    """Until there is nothing to do; what is live never stands worse than before, but for what is drained (P10)."""
    for count in range(MAX_ACTIONS):
        now = form if wanted is None or blob.code == form.code else wanted
        decision = decide(blob, nodes, now, wanted)
        action = decision.action
        if action is None:
            return blob, count
        blob = applied(blob, action, nodes)
        if isinstance(action, Make):
            assert wanted
            assert stands(blob, wanted, blob.holders, nodes) >= min(decision.standing, Standing.SAFE)
            continue
        after = decide(blob, nodes, now, wanted).standing
        if isinstance(action, Copy) and action.urgency is Urgency.DRAIN:
            # For a moment it may lie twice in one domain.
            assert after >= min(decision.standing, Standing.SAFE)
        elif isinstance(action, Copy | Forget):
            assert after >= decision.standing
        elif isinstance(action, Trim):
            drained = _is_draining(action.holder, nodes) and not action.holder.dropping
            assert after >= (min(decision.standing, Standing.SAFE) if drained else decision.standing)
    raise AssertionError(f"no end after {MAX_ACTIONS} actions: {blob.holders}")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), form=forms)
def test_carried_out_again_and_again_it_ends_and_loses_nothing(data: st.DataObject, form: Form) -> None:
    nodes = data.draw(clusters())
    blob = data.draw(blobs(form))
    was_readable = decide(blob, nodes, form).is_readable
    blob, _ = carried_out(blob, nodes, form)
    assert decide(blob, nodes, form).is_readable == was_readable


@settings(max_examples=150, deadline=None)
@given(data=st.data(), form=forms)
def test_with_enough_domains_whatever_can_be_read_ends_up_in_full(data: st.DataObject, form: Form) -> None:
    nodes = data.draw(clusters(sound=True))
    blob = data.draw(blobs(form))
    names = {holder.node_id for holder in blob.holders if holder.dropping}
    free = {one.domain for name, one in nodes.items() if name not in names}
    readable = decide(blob, nodes, form).is_readable
    blob, _ = carried_out(blob, nodes, form)
    decision = decide(blob, nodes, form)
    if readable and len(free) >= form.total:
        assert decision.standing is Standing.FULL
        # Nothing is left over either.
        assert len(decision.live) == form.total
    elif readable and form.spread and len(nodes) >= form.total and len(free) >= form.least_domains:
        assert decision.standing >= Standing.SAFE


@settings(max_examples=150, deadline=None)
@given(data=st.data(), form=forms)
def test_with_enough_domains_beside_them_what_leaves_ends_up_elsewhere(data: st.DataObject, form: Form) -> None:
    """Nodes and disks that are drained, and disks that will not come back."""
    nodes = data.draw(clusters(sound=True))
    names = st.sampled_from(sorted(nodes))
    drained, half_drained, bereft = (data.draw(st.sets(names, max_size=most)) for most in (3, 2, 1))
    both = frozenset({DISK, OTHER_DISK})
    nodes |= {name: replace(nodes[name], disks=both, draining_disks=frozenset({DISK})) for name in half_drained}
    nodes |= {
        name: replace(nodes[name], disks=both - {DISK}, draining_disks=frozenset(), retired_disks=frozenset({DISK}))
        for name in bereft
    }
    nodes |= {name: replace(nodes[name], draining=True) for name in drained}
    blob = data.draw(blobs(form))
    busy = {holder.node_id for holder in blob.holders if holder.dropping} | drained | half_drained
    readable = decide(blob, nodes, form).is_readable
    blob, _ = carried_out(blob, nodes, form)
    if readable and len({one.domain for name, one in nodes.items() if name not in busy}) >= form.total:
        assert decide(blob, nodes, form).standing is Standing.FULL
        leaving = [(h.node_id, h.disk_id) for h in blob.holders if h.node_id in nodes and _leaves(h, nodes)]
        assert not leaving


def _leaves(holder: Holder, nodes: dict[NodeId, Stock]) -> bool:
    return _is_draining(holder, nodes) or holder.disk_id in nodes[holder.node_id].retired_disks


@settings(max_examples=150, deadline=None)
@given(data=st.data(), form=forms, lost=st.lists(st.sampled_from(NAMES), max_size=6))
def test_nodes_that_are_lost_one_after_the_other_with_repair_in_between_lose_nothing(
    data: st.DataObject, form: Form, lost: list[NodeId]
) -> None:
    """Each loss within what the standing promised: any one domain, if it was safe."""
    nodes = data.draw(clusters(sound=True))
    names = list(nodes)[: form.total]
    if len(names) < form.total:
        return
    holders = tuple(hold(name, 0 if form.code == MIRROR else index) for index, name in enumerate(names))
    blob = Blob(BlobId("b" * 32), 0, 20 * MIB, "hash", form.code, holders)
    for name in lost:
        decision = decide(blob, nodes, form)
        if name not in nodes or decision.standing < Standing.SAFE:
            continue
        nodes = {**nodes, name: replace(nodes[name], liveness=Liveness.DOWN, down_for_seconds=1e6)}
        assert decide(blob, nodes, form).is_readable
        blob, _ = carried_out(blob, nodes, form)
        assert decide(blob, nodes, form).is_readable


@settings(max_examples=100, deadline=None)
@given(data=st.data(), form=forms, wanted=forms)
def test_another_form_is_reached_where_it_is_possible_and_then_it_is_quiet(
    data: st.DataObject, form: Form, wanted: Form
) -> None:
    if form.code == wanted.code:
        return
    nodes = data.draw(clusters(sound=True))
    blob = data.draw(blobs(form))
    readable = decide(blob, nodes, form).is_readable
    blob, _ = carried_out(blob, nodes, form, wanted)
    if readable and len({one.domain for one in nodes.values()}) >= max(form.total, wanted.total):
        assert blob.code == wanted.code
        assert stands(blob, wanted, blob.holders, nodes) is Standing.FULL
