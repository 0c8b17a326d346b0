"""Which nodes belong to a group when all is well: balanced, in different failure domains, and moving little.

A plan starts from the present one and changes what it must, so that a node that joins or leaves moves a few memberships
and not the pool. A domain is a path, smallest part first ("host1/rack1/zone1"): nodes whose whole path is equal fall
together; those that share its last parts may.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import xxhash

from sdrs_core.ids import GroupId, NodeId

# How near two nodes of one whole domain are: nearer than any that share only its last parts.
_SAME = 1 << 16


def nearness(domain: str, others: Iterable[str]) -> tuple[int, ...]:
    """How much a domain shares with others, worst first; the smaller of two is the better separated one."""
    return tuple(sorted((_shared_parts(domain, other) for other in others), reverse=True))


def _shared_parts(one: str, other: str) -> int:
    if one == other:
        return _SAME
    count = 0
    for left, right in zip(reversed(one.split("/")), reversed(other.split("/")), strict=False):
        if left != right:
            break
        count += 1
    return count


def stable_hash(text: str) -> int:
    """The same in every process and on every machine, unlike ``hash()``."""
    return xxhash.xxh3_64_intdigest(text.encode())


def plan_homes(
    domains: Mapping[NodeId, str],
    copies: int,
    current: Mapping[GroupId, tuple[NodeId, ...]],
    owners: Mapping[GroupId, NodeId],
) -> dict[GroupId, tuple[NodeId, ...]]:
    """The members of every group of a pool when all is well, the preferred primary first.

    ``owners`` names every group that must exist, and its preferred primary, unless ``current`` has another node first:
    an operator's switchover, kept while that node exists. ``current`` is what they are now; its members are kept where
    they are valid. With fewer nodes than ``copies`` homes are shorter; no node is ever in one twice.

    1. members that are gone, too many, or in a doubled domain that could be avoided are left out
    2. vacancies go to the best separated, then least loaded nodes; load is how often a node is a replica (not first)
    3. while one node holds at least two replicas more than another, one of them moves, if that doubles no domain
    """
    if not domains:
        return dict.fromkeys(sorted(owners), ())
    plan = _Plan(domains, min(copies, len(domains)))
    for group in sorted(owners):
        plan.keep(group, owners[group], current.get(group, ()))
    for group in sorted(owners):
        plan.fill(group)
    while plan.even_out():
        pass
    return {group: tuple(members) for group, members in plan.homes.items()}


class _Plan:
    """Homes in the making, and the nodes by load, so that the least loaded one is found without a look at all."""

    def __init__(self, domains: Mapping[NodeId, str], size: int) -> None:
        self.homes: dict[GroupId, list[NodeId]] = {}
        self._domains = domains
        self._size = size
        self._domain_count = len(set(domains.values()))
        # Ties go to the next node on a ring, from a place that depends on the group.
        self._ring = sorted(domains, key=lambda node: (stable_hash(node), node))
        self._place = {node: place for place, node in enumerate(self._ring)}
        self._load = dict.fromkeys(self._ring, 0)
        self._replicas: dict[NodeId, set[GroupId]] = {node: set() for node in self._ring}
        # Nodes that differ in the smallest part only are equally near to all others: one area, by load, then place.
        self._areas: dict[str, dict[int, list[int]]] = {}
        for place, node in enumerate(self._ring):
            self._areas.setdefault(_area(domains[node]), {}).setdefault(0, []).append(place)

    def keep(self, group: GroupId, owner: NodeId, members: tuple[NodeId, ...]) -> None:
        """What is valid of the present members, in their order."""
        left = [node for node in dict.fromkeys(members) if node in self._domains]
        if owner in self._domains and (not left or left[0] != members[0]):
            left = [owner, *(node for node in left if node != owner)]
        apart = {self._domains[node]: node for node in reversed(left)}  # the first of each domain
        doubled = [node for node in left if apart[self._domains[node]] != node]
        doubled = doubled[: max(0, self._size - self._domain_count)]
        kept = [node for node in left if apart[self._domains[node]] == node][: self._size - len(doubled)]
        self.homes[group] = []
        for node in left:
            if node in kept or node in doubled:
                self._add(group, node)

    def fill(self, group: GroupId) -> None:
        home = self.homes[group]
        while len(home) < self._size:
            node = self._candidate(group, home, max_load=len(self.homes), max_doubled=self._size)
            assert node is not None, "there are at least as many nodes as places"
            self._add(group, node)

    def even_out(self) -> bool:
        """Move one replica from a node with many to one with at least two fewer; False if no such move is legal.

        Among the moves off the most loaded nodes, one that separates no worse comes first, then the least loaded
        target. Each lowers the sum of the squares of loads, so this ends.
        """
        least = min(self._load.values())
        crowded = sorted((node for node in self._ring if self._load[node] >= least + 2), key=self._crowd_order)
        for load, nodes in groupby(crowded, key=lambda node: self._load[node]):
            moves = self._moves(nodes, load - 2)
            # The first that is as good as can be; the others are only looked at without one.
            best: tuple[tuple[bool, int], GroupId, NodeId, NodeId] | None = None
            for move in moves:
                if best is None or move[0] < best[0]:
                    best = move
                if best[0] == (False, least):
                    break
            if best is not None:
                self._move(*best[1:])
                return True
        return False

    def _crowd_order(self, node: NodeId) -> tuple[int, int]:
        return -self._load[node], self._place[node]

    def _moves(
        self, nodes: Iterable[NodeId], max_load: int
    ) -> Iterator[tuple[tuple[bool, int], GroupId, NodeId, NodeId]]:
        for node in nodes:
            for group in sorted(self._replicas[node]):
                rest = [member for member in self.homes[group] if member != node]
                near = self._near(node, rest)
                target = self._candidate(group, [*rest, node], max_load, near.count(_SAME), ignored=node)
                if target is not None:
                    yield (self._near(target, rest) > near, self._load[target]), group, node, target

    def _candidate(
        self, group: GroupId, home: list[NodeId], max_load: int, max_doubled: int, ignored: NodeId | None = None
    ) -> NodeId | None:
        """The best separated, then least loaded node for a place in ``home``, where that of ``ignored`` is vacant."""
        others = [self._domains[node] for node in home if node != ignored]
        taken = set(others)
        start = bisect_left(self._ring, stable_hash(group), key=stable_hash)
        # "\0" stands for a smallest part that no other has.
        nears = {area: nearness(f"\0/{area}" if area else "\0", others) for area in self._areas}
        for _, areas in groupby(sorted(nears, key=lambda area: (nears[area], area)), key=lambda area: nears[area]):
            found = [
                next(
                    (
                        (load, way, node)
                        for load, way, node in self._by_load(area, start, max_load)
                        if self._domains[node] not in taken and node != ignored
                    ),
                    None,
                )
                for area in areas
            ]
            if any(found):
                return min(candidate for candidate in found if candidate)[2]
        if not max_doubled:
            return None
        doubled = [
            (near, self._load[node], (place - start) % len(self._ring), node)
            for place, node in enumerate(self._ring)
            if node not in home
            and self._load[node] <= max_load
            and (near := nearness(self._domains[node], others)).count(_SAME) <= max_doubled
        ]
        return min(doubled)[3] if doubled else None

    def _by_load(self, area: str, start: int, max_load: int) -> Iterator[tuple[int, int, NodeId]]:
        """(load, way from the start, node) of an area, ascending."""
        shelves = self._areas[area]
        for load in sorted(shelves):
            if load > max_load:
                return
            places = shelves[load]
            middle = bisect_left(places, start)
            for index in range(middle, middle + len(places)):
                place = places[index % len(places)]
                yield load, (place - start) % len(self._ring), self._ring[place]

    def _near(self, node: NodeId, others: list[NodeId]) -> tuple[int, ...]:
        return nearness(self._domains[node], (self._domains[other] for other in others))

    def _add(self, group: GroupId, node: NodeId) -> None:
        if self.homes[group]:
            self._count(group, node, 1)
        self.homes[group].append(node)

    def _move(self, group: GroupId, node: NodeId, target: NodeId) -> None:
        home = self.homes[group]
        home[home.index(node)] = target
        self._count(group, node, -1)
        self._count(group, target, 1)

    def _count(self, group: GroupId, node: NodeId, change: int) -> None:
        shelves = self._areas[_area(self._domains[node])]
        shelves[self._load[node]].remove(self._place[node])
        if not shelves[self._load[node]]:
            del shelves[self._load[node]]
        self._load[node] += change
        insort(shelves.setdefault(self._load[node], []), self._place[node])
        if change > 0:
            self._replicas[node].add(group)
        else:
            self._replicas[node].remove(group)


def _area(domain: str) -> str:
    return domain.partition("/")[2]
