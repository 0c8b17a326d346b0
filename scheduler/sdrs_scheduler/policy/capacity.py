"""What is free, node by node: counted once from the view, then kept as jobs are placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sdrs_scheduler.policy.view import Ask, Gpus, Placement, PolicyNode, Running

# One number for each node says what is free on it. A GPU is so many units; what a node has on top is for jobs without
# GPUs, one unit each. Who wants a node for itself takes all units: it fits only where nobody is, and lets nobody in.
UNITS_PER_GPU = 1024


def units_of(node: PolicyNode) -> int:
    return node.gpus * UNITS_PER_GPU + UNITS_PER_GPU - 1


def taken_units(ask: Ask, node: PolicyNode, gpus: int) -> int:
    """What ``ask`` takes of ``node`` with so many of its GPUs."""
    if ask.exclusive:
        return units_of(node)
    return gpus * UNITS_PER_GPU or 1


class Shape(NamedTuple):
    """What of an ask decides where it fits. Jobs of one shape fit in the same places."""

    nodes: int
    gpus_per_node: int
    exclusive: bool
    executor: str
    gpu_type: str
    node_group: str
    excluded: frozenset[str]


def shape_of(ask: Ask) -> Shape:
    return Shape(
        ask.nodes, ask.gpus_per_node, ask.exclusive, ask.executor, ask.gpu_type, ask.node_group, ask.excluded_nodes
    )


class Capacity:
    """Nodes are numbered by their names' order, so that the order of the view changes nothing."""

    def __init__(self, nodes: Sequence[PolicyNode], running: Iterable[Running]) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.index = {node.name: i for i, node in enumerate(self.nodes)}
        self.free_units = [units_of(node) for node in self.nodes]
        self._free_gpus = [(1 << node.gpus) - 1 for node in self.nodes]
        self._suitable: dict[tuple[object, ...], list[int]] = {}
        self._roomy: dict[tuple[object, ...], list[int]] = {}
        for job in running:
            for name, gpus in job.placement.items():
                i = self.index.get(name)
                if i is not None:
                    self._take(i, job.ask, gpus)
        # Of the nodes that are open; 0: nothing starts but jobs without GPUs.
        self.free_gpus = sum(
            units // UNITS_PER_GPU
            for node, units in zip(self.nodes, self.free_units, strict=True)
            if node.is_open and units > 0
        )

    def need_units(self, shape: Shape, i: int) -> int:
        """What a worker of that shape takes of node ``i``."""
        if shape.exclusive:
            return units_of(self.nodes[i])
        return shape.gpus_per_node * UNITS_PER_GPU or 1

    def suitable(self, shape: Shape, closed: bool = False) -> list[int]:
        """The nodes that could hold a worker of that shape if they were empty; with ``closed``, also those that take
        nothing now."""
        key = (shape.gpus_per_node, shape.executor, shape.gpu_type, shape.node_group, closed)
        found = self._suitable.get(key)
        if found is None:
            found = [i for i, node in enumerate(self.nodes) if (closed or node.is_open) and _is_kind(node, shape)]
            self._suitable[key] = found
        return self._not_excluded(found, shape)

    def roomy(self, shape: Shape) -> list[int]:
        """Those of the suitable nodes that have room for a worker now."""
        key = (shape.gpus_per_node, shape.exclusive, shape.executor, shape.gpu_type, shape.node_group)
        before = self._roomy.get(key)
        if before is None:
            before = self.suitable(shape._replace(excluded=frozenset()))
        # What is free only shrinks: who had no room the last time has none now.
        free = self.free_units
        if shape.exclusive:
            found = [i for i in before if free[i] >= units_of(self.nodes[i])]
        else:
            need = shape.gpus_per_node * UNITS_PER_GPU or 1
            found = [i for i in before if free[i] >= need]
        self._roomy[key] = found
        return self._not_excluded(found, shape)

    def _not_excluded(self, found: list[int], shape: Shape) -> list[int]:
        return [i for i in found if self.nodes[i].name not in shape.excluded] if shape.excluded else found

    def take(self, ask: Ask, chosen: Iterable[int]) -> Placement:
        """Gives ``ask`` its GPUs on the chosen nodes, the lowest that are free."""
        placement: dict[str, Gpus] = {}
        for i in chosen:
            gpus = _lowest(self._free_gpus[i], ask.gpus_per_node)
            before = self.free_units[i] // UNITS_PER_GPU
            self._take(i, ask, gpus)
            self.free_gpus -= before - self.free_units[i] // UNITS_PER_GPU
            placement[self.nodes[i].name] = gpus
        return placement

    def _take(self, i: int, ask: Ask, gpus: Gpus) -> None:
        self.free_units[i] -= taken_units(ask, self.nodes[i], len(gpus))
        for gpu in gpus:
            self._free_gpus[i] &= ~(1 << gpu)


def _is_kind(node: PolicyNode, shape: Shape) -> bool:
    return (
        node.executor == shape.executor
        and node.gpus >= shape.gpus_per_node
        and (not shape.gpu_type or node.gpu_type == shape.gpu_type)
        and (not shape.node_group or shape.node_group in node.groups)
    )


def _lowest(free: int, count: int) -> Gpus:
    chosen = []
    for _ in range(count):
        lowest = free & -free
        chosen.append(lowest.bit_length() - 1)
        free ^= lowest
    return tuple(chosen)
