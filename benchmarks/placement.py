"""Homes for 100,000 groups of six (4+2) on 10,000 nodes: the time to plan them, and what one node changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.results import Result
from sdrs_core.ids import GroupId, NodeId
from sdrs_core.placement import plan_homes

COPIES = 6
NODES = 10_000
GROUPS_PER_NODE = 10

Homes = dict[GroupId, tuple[NodeId, ...]]


def placement(folder: Path) -> Iterator[Result]:
    """Every node a domain of its own, then hosts in 250 racks in 5 zones."""
    yield from _figures("flat", [f"host{number}" for number in range(NODES + 1)])
    racks = [number // (NODES // 250) for number in range(NODES + 1)]
    yield from _figures("racks", [f"host{number}/rack{rack}/zone{rack % 5}" for number, rack in enumerate(racks)])


def _figures(shape: str, paths: list[str]) -> Iterator[Result]:
    *nodes, newcomer = (NodeId(f"node-{number}") for number in range(len(paths)))
    domains = dict(zip(nodes, paths, strict=False))
    before, seconds = _timed(domains, {})
    yield Result(f"placement_{shape}_seconds", seconds, "CPU s", f"{len(before):,} groups planned at once")

    after, seconds = _timed({**domains, newcomer: paths[-1]}, before)
    moved, share = _moved(before, after), len(after) * (COPIES - 1) / (NODES + 1)
    yield Result(f"placement_{shape}_join_seconds", seconds, "CPU s", "one node joins")
    yield Result(f"placement_{shape}_join_moved", moved, "replicas", "its share", moved / share)

    leaving = nodes[NODES // 2]
    after, seconds = _timed({node: domains[node] for node in nodes if node != leaving}, before)
    moved, had = _moved(before, after), sum(leaving in home[1:] for home in before.values())
    yield Result(f"placement_{shape}_leave_seconds", seconds, "CPU s", "one node leaves")
    yield Result(f"placement_{shape}_leave_moved", moved, "replicas", "what it had", moved / had)


def _timed(domains: Mapping[NodeId, str], current: Homes) -> tuple[Homes, float]:
    owners = {GroupId(f"{node}:{number}"): node for node in domains for number in range(GROUPS_PER_NODE)}
    start = time.process_time()
    homes = plan_homes(domains, COPIES, current, owners)
    return homes, time.process_time() - start


def _moved(before: Homes, after: Homes) -> int:
    return sum(len(set(after[group]) - set(before[group])) for group in before.keys() & after.keys())
