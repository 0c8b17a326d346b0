"""Which nodes belong to a group when all is well: balanced, in different failure domains, and moving little.

A plan starts from the present one and changes what it must, so that a node that joins or leaves moves a few memberships
and not the pool. A domain is a path, smallest part first ("host1/rack1/zone1"): nodes whose whole path is equal fall
together; those that share its last parts may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import groupby, islice, product
from typing import NamedTuple

import xxhash

from sdrs_core.ids import GroupId, NodeId

# How near two nodes of one whole domain are: nearer than any that share only its last parts.
_SAME = 1 << 16
# Among how many replicas of a node one is sought whose move separates no worse, and of how many that do the best one
# is taken. More would better little, and cost much where zones differ in size.
_TRIED = 16
_COMPARED = 4


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
    3. while one node holds at least two replicas more than another, one of them moves, if that doubles no domain; with
       shared domains or zones a difference of two may stay, for to even it out moves as much again as a node that left
    """
    if not domains:
        return dict.fromkeys(sorted(owners), ())
    size = min(copies, len(domains))
    max_doubled = max(0, size - len(set(domains.values())))
    homes = {group: _kept(owners[group], current.get(group, ()), domains, size, max_doubled) for group in owners}
    plan = _Plan(domains, current, homes)
    plan.fill(size)
    plan.even_out()
    return {group: tuple(home) for group, home in sorted(homes.items())}


def _kept(
    owner: NodeId, members: tuple[NodeId, ...], domains: Mapping[NodeId, str], size: int, max_doubled: int
) -> list[NodeId]:
    """What is valid of the present members, in their order."""
    left = [node for node in dict.fromkeys(members) if node in domains]
    if owner in domains and (not left or left[0] != members[0]):
        left = [owner, *(node for node in left if node != owner)]
    first = {domains[node]: node for node in reversed(left)}
    if len(first) == len(left):
        return left[:size]
    doubled = [node for node in left if first[domains[node]] != node][:max_doubled]
    apart = [node for node in left if first[domains[node]] == node][: size - len(doubled)]
    return [node for node in left if node in apart or node in doubled]


_Homes = Mapping[GroupId, tuple[NodeId, ...]]
# A node's load, its turn among those of the same load, and its name.
_Rank = tuple[int, int, NodeId]
# (depth, how many of a home share that place and no smaller one), the smallest place first. As with nearness(), the
# smaller of two is the better separated one.
_Near = tuple[tuple[int, int], ...]


class _Place:
    """A node, or nodes that may fall at once: a domain, an area (what shares the last parts of a path), the pool.

    Each knows its least loaded node, and has its parts in a heap by theirs; outdated entries go when they come up.
    """

    __slots__ = ("depth", "heap", "least", "line", "parent")

    def __init__(self, parent: _Place | None, depth: int) -> None:
        self.parent = parent
        self.depth = depth
        # This place and those around it, without the pool.
        self.line: tuple[_Place, ...] = (self, *parent.line) if parent is not None else ()
        self.least: _Rank = (0, 0, NodeId(""))
        self.heap: list[tuple[_Rank, _Place]] = []

    def update(self) -> bool:
        """Take over the least loaded node of all parts; whether it is another, or has another load."""
        while self.heap[0][0] is not self.heap[0][1].least:
            heappop(self.heap)
        before, self.least = self.least, self.heap[0][0]
        return self.least is not before

    def least_beside(self, taken: Container[_Place], max_load: int) -> _Rank | None:
        """The least loaded node that is in none of the parts taken."""
        found, passed = None, []
        while found is None and self.heap and self.heap[0][0][0] <= max_load:
            rank, part = self.heap[0]
            if rank is not part.least:
                heappop(self.heap)
            elif part in taken:
                passed.append(heappop(self.heap))
            else:
                found = rank
        for entry in passed:
            heappush(self.heap, entry)
        return found


class _Move(NamedTuple):
    is_worse: bool
    near: _Near
    group: GroupId
    target: NodeId


class _Plan:
    """Homes in the making, and the tree of places, which finds the best separated, then least loaded node."""

    def __init__(self, domains: Mapping[NodeId, str], current: _Homes, homes: dict[GroupId, list[NodeId]]) -> None:
        self._homes = homes
        self._current = current
        self._replicas: dict[NodeId, set[GroupId]] = {node: set() for node in sorted(domains)}
        self._filled: dict[NodeId, set[GroupId]] = {node: set() for node in self._replicas}
        for group, home in homes.items():
            for node in home[1:]:
                self._replicas[node].add(group)
        self._pool = _Place(None, 0)
        paths = {domain: tuple(reversed(domain.split("/"))) for domain in domains.values()}
        areas: dict[tuple[str, ...], _Place] = {(): self._pool}
        for path in paths.values():
            for depth in range(1, len(path)):
                if path[:depth] not in areas:
                    areas[path[:depth]] = _Place(areas[path[: depth - 1]], depth)
        # Below all areas: to share a whole domain is worse than to share any of them.
        self._domain_depth = max(map(len, areas)) + 1
        around: dict[str, _Place] = {}
        for domain, node_count in Counter(domains.values()).items():
            # A domain may also be the area of others: "rack1" beside "host1/rack1".
            area = areas.get(paths[domain]) or areas[paths[domain][:-1]]
            around[domain] = area if node_count == 1 else _Place(area, self._domain_depth)
        self._places = {node: _Place(around[domains[node]], self._domain_depth + 1) for node in self._replicas}
        self._are_equally_near = len({place.parent for place in self._places.values()}) == 1
        for node in self._places:
            self._rank_anew(node)

    def fill(self, size: int) -> None:
        """In an order that differs from pool to pool, or the same nodes would be together in all."""
        vacant = [(stable_hash(group), group) for group, home in self._homes.items() if len(home) < size]
        nodes = list(self._places)
        for turn, group in sorted(vacant):
            home = self._homes[group]
            if not home:
                home.append(nodes[turn % len(nodes)])
            taken = self._taken(home)
            while len(home) < size:
                node = self._find(taken, max_load=len(self._homes), max_doubled=size)
                assert node is not None, "there are at least as many nodes as members"
                home.append(node)
                self._add(group, node)
                for place in self._places[node].line:
                    taken[place] = taken.get(place, 0) + 1

    def even_out(self) -> None:
        """Each move lowers the sum of the squares of loads, so this ends; a second time it would move nothing.

        First go replicas that have just filled a vacancy: they move anyway. Nodes give that hold at least the average,
        or one would give to its neighbour and take from afar; the others only where domains force some to hold more.
        """
        average = sum(map(len, self._replicas.values())) // len(self._replicas)
        ranges = range(average, len(self._homes) + 1), range(average)
        # Without areas a move that doubles no domain separates no worse.
        may_worsen = (False, True) if self._domain_depth > 1 else (False,)
        while any(self._relieve(*how) for how in product((True, False), ranges, may_worsen)):
            pass

    def _relieve(self, has_filled: bool, loads: range, may_worsen: bool) -> bool:
        """Move replicas off the most loaded nodes; whether any moved. A node that finds no move is asked once only."""
        held = self._filled if has_filled else self._replicas
        crowd = [(-load, node) for node in held if held[node] and (load := len(self._replicas[node])) in loads]
        heapify(crowd)
        has_moved = False
        while crowd:
            negative_load, node = heappop(crowd)
            load = len(self._replicas[node])
            if load != -negative_load:
                continue
            # Two are too many beside a node that holds none, and where it costs no more moves.
            is_close = self._are_equally_near or load == 2 or has_filled or not self._current
            gap = 2 if is_close and not may_worsen else 3
            if load < loads.start or load - gap < self._pool.least[0]:
                break
            moves = self._moves(node, has_filled, load - gap)
            if may_worsen:
                move = min(islice(moves, _COMPARED), default=None)
            else:
                move = next((move for move in islice(moves, _TRIED) if not move.is_worse), None)
            if move is not None:
                home = self._homes[move.group]
                home[home.index(node)] = move.target
                self._replicas[node].remove(move.group)
                self._filled[node].discard(move.group)
                self._rank_anew(node)
                self._add(move.group, move.target)
                for changed in (node, move.target):
                    heappush(crowd, (-len(self._replicas[changed]), changed))
                has_moved = True
        return has_moved

    def _moves(self, node: NodeId, has_filled: bool, max_load: int) -> Iterator[_Move]:
        """Where replicas of a node can go: those with which it has filled a vacancy, or the others."""
        groups = sorted(self._filled[node] if has_filled else self._replicas[node] - self._filled[node])
        # Nodes begin at different groups, or the first ones would have to move most.
        start = stable_hash(node) % max(1, len(groups))
        for group in groups[start:] + groups[:start]:
            taken = self._taken(member for member in self._homes[group] if member != node)
            was_near = _near(self._places[node], taken)
            target = self._find(taken, max_load, max_doubled=dict(was_near).get(self._domain_depth, 0))
            if target is not None:
                near = _near(self._places[target], taken)
                yield _Move(near > was_near, near, group, target)

    def _find(self, taken: dict[_Place, int], max_load: int, max_doubled: int) -> NodeId | None:
        """The best separated, then least loaded node beside those of a home, which are counted in ``taken``."""
        # Best is outside of all that is taken, then within a large place, but outside of all smaller ones.
        if (found := self._pool.least_beside(taken, max_load)) is not None:
            return found[2]
        for depth in range(1, self._domain_depth + 1):
            nears = {
                place: _near(place, taken)
                for place, count in taken.items()
                if place.depth == depth and (depth < self._domain_depth or count <= max_doubled)
            }
            for _, places in groupby(sorted(nears, key=nears.__getitem__), key=nears.__getitem__):
                ranks = [rank for place in places if (rank := place.least_beside(taken, max_load)) is not None]
                if ranks:
                    return min(ranks)[2]
        return None

    def _taken(self, home: Iterable[NodeId]) -> dict[_Place, int]:
        """Every place that has nodes of a home, and how many."""
        taken: dict[_Place, int] = {}
        for node in home:
            for place in self._places[node].line:
                taken[place] = taken.get(place, 0) + 1
        return taken

    def _add(self, group: GroupId, node: NodeId) -> None:
        self._replicas[node].add(group)
        if node not in self._current.get(group, (node,)):
            self._filled[node].add(group)
        self._rank_anew(node)

    def _rank_anew(self, node: NodeId) -> None:
        place, load = self._places[node], len(self._replicas[node])
        # Turns differ from load to load, or the same nodes would be together in many groups.
        place.least = load, stable_hash(f"{load} {node}"), node
        while place.parent is not None:
            heappush(place.parent.heap, (place.least, place))
            place = place.parent
            if not place.update():
                return


def _near(place: _Place, taken: Mapping[_Place, int]) -> _Near:
    near, inside = [], 0
    for around in place.line:
        if (count := taken.get(around, 0)) > inside:
            near.append((around.depth, count - inside))
            inside = count
    return tuple(near)
