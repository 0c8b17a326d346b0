"""Homes of groups: balance, little movement, and domains that are never doubled while that is avoidable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdrs_core.ids import GroupId, NodeId
from sdrs_core.placement import nearness, plan_homes

Homes = dict[GroupId, tuple[NodeId, ...]]
Domains = dict[NodeId, str]


def node(number: int) -> NodeId:
    return NodeId(f"node-{number}")


def flat(count: int) -> Domains:
    return {node(number): f"host-{number}" for number in range(count)}


def owners_of(domains: Domains) -> dict[GroupId, NodeId]:
    return {GroupId(f"fast:{name}"): name for name in domains}


def plan(domains: Domains, copies: int, current: Homes | None = None) -> Homes:
    return plan_homes(domains, copies, current or {}, owners_of(domains))


def loads(homes: Homes, domains: Domains) -> dict[NodeId, int]:
    counted = Counter(name for home in homes.values() for name in home[1:])
    return {name: counted[name] for name in domains}


def spread(homes: Homes, domains: Domains) -> int:
    counts = loads(homes, domains).values()
    return max(counts) - min(counts)


def slots_changed(before: Homes, after: Homes) -> int:
    """How many replicas of groups that exist in both are new in their group."""
    return sum(len(set(after[group][1:]) - set(before[group][1:])) for group in before.keys() & after.keys())


# A busy machine is slow to draw pools and to plan them: that is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

paths = st.builds(
    "{}/{}/{}".format, st.sampled_from("abcdef"), st.sampled_from(["r1", "r2", "r3"]), st.sampled_from(["z1", "z2"])
)
any_domains = st.lists(st.one_of(paths, st.sampled_from(["h1", "h2", "h3"])), min_size=1, max_size=12).map(
    lambda domains: {node(number): domain for number, domain in enumerate(domains)}
)
copies_range = st.integers(min_value=1, max_value=5)


@st.composite
def pools_with_history(draw: st.DrawFn) -> tuple[Domains, int, Homes]:
    """Any nodes, and any present homes: with strangers, repetitions, too many and too few members."""
    domains = draw(any_domains)
    names = st.sampled_from([*domains, NodeId("removed-1"), NodeId("removed-2")])
    homes = {group: tuple(draw(st.lists(names, max_size=6))) for group in owners_of(domains) if draw(st.booleans())}
    return domains, draw(copies_range), homes


def test_two_nodes_mirror_each_other() -> None:
    assert plan(flat(2), 2) == {"fast:node-0": (node(0), node(1)), "fast:node-1": (node(1), node(0))}


def test_homes_are_shorter_while_there_are_too_few_nodes_and_grow_when_more_join() -> None:
    alone = plan(flat(1), 3)
    assert alone == {"fast:node-0": (node(0),)}
    assert {len(home) for home in plan(flat(2), 3, alone).values()} == {2}
    assert {len(home) for home in plan(flat(4), 3, plan(flat(2), 3, alone)).values()} == {3}


def test_without_nodes_homes_are_empty() -> None:
    assert plan_homes({}, 2, {}, {GroupId("fast:gone"): NodeId("gone")}) == {"fast:gone": ()}


def test_a_switchover_is_kept_while_that_node_exists() -> None:
    domains = flat(4)
    group = GroupId("fast:node-0")
    before = plan(domains, 2)
    replica = before[group][1]
    switched = {**before, group: (replica, node(0))}
    assert plan(domains, 2, switched)[group][0] == replica
    del domains[replica]
    assert plan(domains, 2, switched)[group][0] == node(0)


def test_a_group_whose_owner_is_gone_goes_on_under_its_next_member() -> None:
    group = GroupId("fast:node-9")
    homes = plan_homes(flat(3), 2, {group: (node(9), node(1))}, {group: node(9)})
    assert homes[group][0] == node(1)
    assert len(homes[group]) == 2


def test_a_doubled_domain_is_left_as_soon_as_another_exists() -> None:
    domains = {node(0): "rack-1", node(1): "rack-1"}
    before = plan(domains, 2)
    assert before[GroupId("fast:node-0")] == (node(0), node(1))
    domains[node(2)] = "rack-2"
    after = plan(domains, 2, before)
    assert after[GroupId("fast:node-0")] == (node(0), node(2))
    assert after[GroupId("fast:node-1")] == (node(1), node(2))


def test_zones_are_preferred_to_be_different_then_racks() -> None:
    domains = {
        node(0): "h0/r1/z1",
        node(1): "h1/r1/z1",
        node(2): "h2/r2/z1",
        node(3): "h3/r1/z2",
    }
    group = GroupId("fast:node-0")
    assert plan_homes(domains, 3, {}, {group: node(0)})[group] == (node(0), node(3), node(2))


def test_members_in_a_domain_that_cannot_be_avoided_are_kept() -> None:
    domains = {node(number): "the-only-host" for number in range(5)}
    for distance in range(1, 5):
        current: Homes = {GroupId(f"fast:{node(n)}"): (node(n), node((n + distance) % 5)) for n in range(5)}
        assert plan(domains, 2, current) == current


def test_evening_out_takes_from_a_group_that_stays_as_well_separated() -> None:
    p, q, x, y = (NodeId(name) for name in "pqxy")
    domains = {p: "h1/z1", q: "h2/z2", x: "h3/z3", y: "h4/z1"}
    near, far, third, fourth = (GroupId(f"g{number}") for number in range(1, 5))
    current = {near: (p, x), far: (q, x), third: (x, q), fourth: (x, p)}
    homes = plan_homes(domains, 2, current, {near: p, far: q, third: x, fourth: x})
    assert homes == {**current, far: (q, y)}


def test_zones_of_one_size_keep_every_group_across_zones() -> None:
    domains = {node(number): f"h{number}/r{number // 2}/z{number % 3}" for number in range(12)}
    homes = plan(domains, 3)
    assert spread(homes, domains) <= 1
    assert all(len({domains[name][-2:] for name in home}) == 3 for home in homes.values())


def test_nearness_counts_shared_last_parts_worst_first() -> None:
    assert nearness("h1/r1/z1", ["h2/r2/z2", "h3/r3/z1", "h4/r1/z1"]) == (2, 1, 0)
    # The same rack name in another zone is another rack.
    assert nearness("h1/r1/z1", ["h2/r1/z2"]) == (0,)
    assert nearness("h1/r1", ["h1/r1"]) > nearness("h1/r1", ["h2/r1"])


def test_the_plan_is_the_same_in_every_process() -> None:
    """Python's own hash differs between processes: a controller that takes over would move everything."""
    script = (
        "from sdrs_core.placement import plan_homes\n"
        "names = sorted({f'node-{n}' for n in range(20)}, key=hash)\n"
        "print(sorted(plan_homes({n: n for n in names}, 3, {}, {'g' + n: n for n in names}).items()))"
    )
    plans = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(plans) == 1


@patient
@given(pools_with_history())
def test_every_home_is_valid_whatever_was_before(case: tuple[Domains, int, Homes]) -> None:
    domains, copies, current = case
    homes = plan(domains, copies, current)
    size = min(copies, len(domains))
    assert homes.keys() == owners_of(domains).keys()
    for group, home in homes.items():
        assert len(home) == len(set(home)) == size
        was = current.get(group, ())
        assert home[0] == (was[0] if was and was[0] in domains else owners_of(domains)[group])
        assert set(home) <= domains.keys()
        # As many different domains as there can be.
        assert len({domains[name] for name in home}) == min(size, len(set(domains.values())))


@patient
@given(pools_with_history())
def test_a_plan_of_a_plan_is_the_plan_itself(case: tuple[Domains, int, Homes]) -> None:
    domains, copies, current = case
    once = plan(domains, copies, current)
    assert plan(domains, copies, once) == once


@patient
@given(pools_with_history(), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_its_input(case: tuple[Domains, int, Homes], random: Random) -> None:
    domains, copies, current = case
    shuffled, history = list(domains.items()), list(current.items())
    random.shuffle(shuffled)
    random.shuffle(history)
    assert plan(dict(shuffled), copies, dict(history)) == plan(domains, copies, current)


@patient
@given(st.integers(min_value=1, max_value=40), copies_range)
def test_replicas_are_balanced_when_every_node_is_a_domain(count: int, copies: int) -> None:
    assert spread(plan(flat(count), copies), flat(count)) <= 1


@patient
@given(pools_with_history())
def test_an_unbalanced_past_is_evened_out(case: tuple[Domains, int, Homes]) -> None:
    domains = flat(len(case[0]))
    current = {group: (owners_of(domains)[group], *home[1:]) for group, home in case[2].items()}
    assert spread(plan(domains, case[1], current), domains) <= 1


@patient
@given(st.integers(min_value=1, max_value=30), copies_range)
def test_a_joining_node_takes_over_no_more_than_its_share(count: int, copies: int) -> None:
    """Its share is ``copies - 1``, what each node holds: nothing else moves."""
    before = plan(flat(count), copies)
    after = plan(flat(count + 1), copies, before)
    assert slots_changed(before, after) == min(copies - 1, count)
    changed = [group for group in before if before[group] != after[group]]
    assert all(set(after[group]) - set(before[group]) == {node(count)} for group in changed)


@patient
@given(st.integers(min_value=2, max_value=30), copies_range, st.data())
def test_a_leaving_node_moves_little_beside_its_own_replicas(count: int, copies: int, data: st.DataObject) -> None:
    domains = flat(count)
    before = plan(domains, copies)
    leaving = node(data.draw(st.integers(min_value=0, max_value=count - 1)))
    del domains[leaving]
    after = plan(domains, copies, before)
    others = {group: home for group, home in before.items() if leaving not in home}
    # Its group's replicas are now held by others: at most as many are evened out.
    assert slots_changed(others, after) <= copies - 1
    assert spread(after, domains) <= 1


@patient
@given(
    st.lists(st.one_of(st.none(), st.integers(min_value=0, max_value=1000)), max_size=25),
    st.integers(min_value=2, max_value=4),
)
def test_any_history_of_joins_and_leaves_stays_balanced_and_moves_little(events: list[int | None], copies: int) -> None:
    """None: a node joins; a number: one leaves."""
    domains = flat(6)
    homes = plan(domains, copies)
    for number, event in enumerate(events, start=6):
        if event is None or len(domains) == 1:
            domains[node(number)] = f"host-{number}"
            bound = copies - 1
        else:
            del domains[sorted(domains)[event % len(domains)]]
            bound = 2 * (copies - 1)
        after = plan(domains, copies, homes)
        assert slots_changed(homes, after) <= bound
        assert spread(after, domains) <= 1
        homes = after
