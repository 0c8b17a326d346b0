"""Homes of wide groups, of several groups for each owner, and of thousands: in hosts, racks and zones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sdrs_core.ids import GroupId, NodeId
from sdrs_core.placement import nearness, plan_homes
from tests.unit.test_placement import (
    Domains,
    Homes,
    any_domains,
    flat,
    loads,
    node,
    paths,
    patient,
    slots_changed,
    spread,
)


@dataclass(frozen=True)
class Grid:
    """Zones of one size, with racks of one size; or without zones, hosts that share nothing."""

    zones: int
    racks: int
    hosts: int
    copies: int
    groups_per_node: int

    @property
    def domains(self) -> Domains:
        return {node(number): self.domain(number) for number in range((self.zones * self.racks or 1) * self.hosts)}

    @property
    def share(self) -> int:
        """How many replicas each node has on average."""
        return self.groups_per_node * (self.copies - 1)

    def domain(self, number: int) -> str:
        if not self.zones:
            return f"h{number}"
        return f"h{number}/r{number // self.zones % self.racks}/z{number % self.zones}"

    def plan(self, domains: Domains, current: Homes | None = None) -> Homes:
        return plan_homes(domains, self.copies, current or {}, owners_of(domains, self.groups_per_node))


group_counts = st.integers(min_value=1, max_value=4)
wide = st.integers(min_value=2, max_value=10)
few = st.integers(min_value=1, max_value=4)
grids = st.builds(Grid, st.integers(min_value=2, max_value=5), few, few, wide, group_counts)
flat_grids = st.builds(Grid, st.just(0), st.just(0), st.integers(min_value=3, max_value=40), wide, group_counts)


def owners_of(domains: Domains, groups_per_node: int, pool: str = "wide") -> dict[GroupId, NodeId]:
    return {GroupId(f"{pool}:{name}:{number}"): name for name in domains for number in range(groups_per_node)}


def zone_of(domains: Domains, name: NodeId) -> str:
    return domains[name].rpartition("/")[2]


def rack_of(domains: Domains, name: NodeId) -> str:
    return domains[name].partition("/")[2]


def replica_count(homes: Homes, name: NodeId) -> int:
    return sum(name in home[1:] for home in homes.values())


def without(domains: Domains, name: NodeId) -> Domains:
    return {other: domain for other, domain in domains.items() if other != name}


def differing(homes: Homes, domains: Domains, least: int) -> list[tuple[GroupId, NodeId, NodeId]]:
    """Moves that would bring two loads nearer, which differ by ``least`` or more, and would double no domain."""
    load = loads(homes, domains)
    found = []
    for group, home in homes.items():
        for giver in home[1:]:
            rest = [domains[name] for name in home if name != giver]
            for taker in domains.keys() - set(home):
                if load[giver] >= load[taker] + least and rest.count(domains[taker]) <= rest.count(domains[giver]):
                    found.append((group, giver, taker))
    return found


# "z1" and "r1/z1" are domains here, and areas of others.
nested_domains = st.lists(st.one_of(paths, st.sampled_from(["h1", "z1", "r1/z1"])), min_size=1, max_size=12).map(
    lambda domains: {node(number): domain for number, domain in enumerate(domains)}
)


@patient
@given(nested_domains, st.integers(min_value=1, max_value=14))
@example({node(0): "a/r1/z2", node(1): "z1", node(2): "a/r1/z2", node(3): "z1", node(4): "r1/z1"}, 4)
def test_each_member_is_as_far_from_those_before_it_as_can_be(domains: Domains, copies: int) -> None:
    """Of a group that is alone: no other's replicas are in the way."""
    group = GroupId("wide:only")
    home = plan_homes(domains, copies, {}, {group: node(0)})[group]
    assert len(home) == min(copies, len(domains))
    for place in range(1, len(home)):
        before = [domains[name] for name in home[:place]]
        others = domains.keys() - set(home[:place])
        assert nearness(domains[home[place]], before) == min(nearness(domains[name], before) for name in others)


@patient
@given(any_domains, wide, group_counts, st.randoms())
def test_several_groups_of_an_owner_are_valid_and_each_kept_when_planned_again(
    domains: Domains, copies: int, groups_per_node: int, random: Random
) -> None:
    owners = owners_of(domains, groups_per_node)
    homes = plan_homes(domains, copies, {}, owners)
    size = min(copies, len(domains))
    for group, home in homes.items():
        assert home[0] == owners[group]
        assert len(home) == len(set(home)) == size
        assert len({domains[name] for name in home}) == min(size, len(set(domains.values())))
    shuffled = random.sample(list(domains.items()), len(domains))
    groups = random.sample(list(owners.items()), len(owners))
    assert plan_homes(dict(shuffled), copies, {}, dict(groups)) == homes
    assert plan_homes(dict(shuffled), copies, homes, dict(groups)) == homes


@patient
@given(any_domains, wide, group_counts, st.data())
def test_no_node_holds_three_more_than_one_that_could_take_some(
    domains: Domains, copies: int, groups_per_node: int, data: st.DataObject
) -> None:
    names = st.sampled_from(sorted(domains))
    owners = owners_of(domains, groups_per_node)
    current = {group: tuple(data.draw(st.lists(names, max_size=copies, unique=True))) for group in owners}
    assert not differing(plan_homes(domains, copies, current, owners), domains, least=3)


@patient
@given(st.integers(min_value=1, max_value=40), wide, group_counts)
def test_replicas_of_wide_groups_are_balanced_when_every_node_is_a_domain(
    count: int, copies: int, groups_per_node: int
) -> None:
    for domains in (flat(count), {name: f"{host}/rack/zone" for name, host in flat(count).items()}):
        assert spread(plan_homes(domains, copies, {}, owners_of(domains, groups_per_node)), domains) <= 1


@patient
@given(grids)
def test_zones_and_racks_of_one_size_share_every_group_evenly(grid: Grid) -> None:
    domains = grid.domains
    homes = grid.plan(domains)
    assert spread(homes, domains) <= 2
    size = min(grid.copies, len(domains))
    for home in homes.values():
        in_zones = Counter(zone_of(domains, name) for name in home)
        assert max(in_zones.values()) - min(in_zones[f"z{zone}"] for zone in range(grid.zones)) <= 1
        assert len({rack_of(domains, name) for name in home}) == min(size, grid.zones * grid.racks)


@patient
@given(st.one_of(grids, flat_grids), st.data())
def test_a_node_that_joins_or_leaves_a_balanced_pool_moves_its_share(grid: Grid, data: st.DataObject) -> None:
    """Within a fifth of what it takes over or had; and two more, for where that is less than one."""
    domains = grid.domains
    assume(len(domains) > grid.copies)
    before = grid.plan(domains)
    newcomer = node(len(domains) + data.draw(st.integers(min_value=0, max_value=100)))
    after = grid.plan({**domains, newcomer: grid.domain(int(newcomer.rpartition("-")[2]))}, before)
    assert slots_changed(before, after) <= 1.2 * grid.share + 2
    assert grid.share - 2 <= replica_count(after, newcomer) <= grid.share

    leaving = data.draw(st.sampled_from(sorted(domains)))
    after = grid.plan(without(domains, leaving), before)
    assert slots_changed(before, after) <= 1.2 * replica_count(before, leaving) + 2


def test_a_node_that_joins_takes_what_leaves_groups_in_different_zones() -> None:
    """Two nodes hold more than any other since it has a group, but what they could give would double its zone."""
    grid = Grid(zones=3, racks=2, hosts=10, copies=3, groups_per_node=1)
    before = grid.plan(grid.domains)
    domains = {**grid.domains, node(60): grid.domain(60)}
    after = grid.plan(domains, before)
    assert slots_changed(before, after) > 0
    assert all(len({zone_of(domains, name) for name in home}) == 3 for home in after.values())


def test_nodes_below_the_average_even_out_where_those_above_it_can_give_nothing() -> None:
    """Every group has a replica on the only host of its domain, which alone makes the average high."""
    domains = {node(0): "a", **{node(number): "b" for number in range(1, 10)}}
    forced: Homes = {
        GroupId(f"wide:{name}:{number}"): (name, node(0)) for name in domains for number in range(10) if name != node(0)
    }
    free: Homes = {GroupId(f"wide:free:{number}"): (node(0), node(1)) for number in range(6)}
    homes = plan_homes(domains, 2, forced | free, {group: home[0] for group, home in (forced | free).items()})
    assert {group: homes[group] for group in forced} == forced
    assert loads(homes, domains)[node(1)] <= 2


def test_a_rack_that_joins_has_its_own_groups_across_zones() -> None:
    """Its empty nodes are all in one zone: to be filled first must not bring their groups together there."""
    grid = Grid(zones=5, racks=4, hosts=5, copies=6, groups_per_node=4)
    before = grid.plan(grid.domains)
    domains = {**grid.domains, **{node(number): f"h{number}/new/z1" for number in range(100, 110)}}
    homes = grid.plan(domains, before)
    assert max(max(Counter(zone_of(domains, name) for name in home).values()) for home in homes.values()) <= 3
    assert slots_changed(before, homes) <= 1.2 * 10 * 20


def test_zones_of_different_size_have_no_group_all_in_the_largest() -> None:
    """Half of all nodes are in one of five zones: groups of five must double it, but as little as can be."""
    domains = {
        node(number): f"h{number}/r{number % 10}/z{0 if number < 100 else number % 4 + 1}" for number in range(200)
    }
    homes = plan_homes(domains, 5, {}, owners_of(domains, 4))
    assert spread(homes, domains) <= 2
    in_largest = Counter(sum(zone_of(domains, name) == "z0" for name in home) for home in homes.values())
    assert in_largest[2] + in_largest[3] >= 0.9 * len(homes)
    assert in_largest[5] == 0


def test_a_group_may_have_255_members() -> None:
    domains = {node(number): f"h{number}/r{number % 20}/z{number % 5}" for number in range(300)}
    homes = plan_homes(domains, 255, {}, owners_of(dict(islice(domains.items(), 20)), 1))
    assert spread(homes, domains) <= 2
    for home in homes.values():
        assert len(set(home)) == 255
        assert set(Counter(zone_of(domains, name) for name in home).values()) == {51}


def test_groups_without_any_member_left_get_different_primaries() -> None:
    gone = {GroupId(f"wide:{number}"): NodeId("gone") for number in range(100)}
    homes = plan_homes(flat(10), 3, {}, gone)
    assert len({home[0] for home in homes.values()}) == 10


def test_the_same_nodes_are_not_together_in_many_groups_nor_in_every_pool() -> None:
    """Or few nodes would have to rebuild what one has lost."""
    domains = flat(100)
    homes, others = (plan_homes(domains, 6, {}, owners_of(domains, 10, pool)) for pool in ("one", "two"))
    for name in domains:
        beside = {other for home in homes.values() if name in home for other in home} - {name}
        assert len(beside) >= 85
    same = sum(set(homes[group]) == set(others[GroupId(group.replace("one", "two"))]) for group in homes)
    assert same < 0.01 * len(homes)


def test_the_plan_for_racks_is_the_same_in_every_process() -> None:
    script = (
        "from sdrs_core.placement import plan_homes\n"
        "names = sorted((f'node-{number}' for number in range(40)), key=hash)\n"
        "domains = {name: f'{name}/r{int(name[5:]) % 6}/z{int(name[5:]) % 3}' for name in names}\n"
        "owners = {'g' + name: name for name in names}\n"
        "homes = plan_homes(domains, 6, {}, owners)\n"
        "del domains['node-7']\n"
        "domains |= {'new-1': 'new-1/r1/z1', 'new-2': 'new-2/r1/z1'}\n"
        "print(sorted(plan_homes(domains, 6, homes, owners).items()))"
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


@pytest.mark.parametrize(
    "grid",
    [Grid(zones=0, racks=0, hosts=2000, copies=6, groups_per_node=10), Grid(5, 20, 20, copies=6, groups_per_node=10)],
    ids=["flat", "racks"],
)
def test_twenty_thousand_groups_of_six_on_two_thousand_nodes(grid: Grid) -> None:
    domains = grid.domains
    before = grid.plan(domains)
    assert (len(domains), len(before)) == (2000, 20_000)
    assert spread(before, domains) <= 1
    if grid.zones:
        assert all(len({zone_of(domains, name) for name in home}) == 5 for home in before.values())
        assert all(len({rack_of(domains, name) for name in home}) == 6 for home in before.values())
    assert grid.plan(domains, before) == before

    joined = {**domains, node(2000): grid.domain(2000)}
    after = grid.plan(joined, before)
    assert slots_changed(before, after) <= 1.2 * grid.share
    assert spread(after, joined) <= 2

    left = without(domains, node(7))
    after = grid.plan(left, before)
    assert slots_changed(before, after) <= 1.2 * replica_count(before, node(7))
    assert spread(after, left) <= 2
