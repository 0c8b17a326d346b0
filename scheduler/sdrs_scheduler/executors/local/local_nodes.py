"""Which nodes the local executor has: this machine with its GPUs, or the storage nodes on it with stand-in GPUs."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdrs_core.cluster import Node, NodeState
from sdrs_scheduler.executors.executor import NodeFacts
from sdrs_scheduler.health.nvml import NvmlProbe
from sdrs_scheduler.health.probe import GpuReading, Probe, ScriptedProbe
from sdrs_scheduler.health.verdicts import bad_gpus


@dataclass(frozen=True, slots=True)
class LocalNodesConfig:
    # Of each storage node on this machine, where NVML finds no GPU.
    gpus_per_node: int = 8
    gpu_type: str = ""
    groups: frozenset[str] = frozenset()


def local_nodes(
    storage_nodes: Sequence[Node],
    host: str,
    readings: Sequence[GpuReading],
    config: LocalNodesConfig,
    now_unix_ms: int,
) -> tuple[NodeFacts, ...]:
    here = sorted((node for node in storage_nodes if node.endpoints.host == host), key=lambda node: node.id)
    found = [reading for reading in readings if not reading.node]
    bad = bad_gpus(readings, now_unix_ms)
    if found:
        return (_this_machine(here, host, found, config, bad.get("", {})),)
    return tuple(
        NodeFacts(
            node.id,
            config.gpus_per_node,
            config.gpu_type,
            config.groups,
            node.state is NodeState.UP,
            _problem_of(node),
            bad.get(node.id, {}),
        )
        for node in here
    )


def _this_machine(
    here: Sequence[Node], host: str, found: Sequence[GpuReading], config: LocalNodesConfig, bad: Mapping[int, str]
) -> NodeFacts:
    """GPUs are there once, however many storage nodes are. Without a storage node it is up as long as we are."""
    up = [node for node in here if node.state is NodeState.UP]
    types = Counter(reading.gpu_type for reading in found if reading.gpu_type)
    problems = [
        f"{node.id}: {problem}" if len(here) > 1 else problem for node in here if (problem := _problem_of(node))
    ]
    if len(types) > 1:
        problems.append("its GPUs differ: " + ", ".join(f"{count} {kind}" for kind, count in types.most_common()))
    return NodeFacts(
        here[0].id if len(here) == 1 else host,
        max(reading.index for reading in found) + 1,
        types.most_common(1)[0][0] if types else config.gpu_type,
        config.groups,
        bool(up) or not here,
        "; ".join(problems),
        bad,
    )


def _problem_of(node: Node) -> str:
    if node.state is not NodeState.UP:
        return "its storage daemon is down"
    if node.cordoned:
        return f"cordoned: {node.cordoned_because}" if node.cordoned_because else "cordoned by an operator"
    if node.draining:
        return "it is being drained"
    return "its storage daemon went away too often of late" if node.flapping else ""


class LocalNodes:
    """What LocalExecutor calls for its nodes."""

    def __init__(
        self,
        storage_nodes: Callable[[], Sequence[Node]],
        probe: Probe,
        config: LocalNodesConfig | None = None,
        host: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``storage_nodes`` is ``cluster.nodes``, as a rule."""
        self._storage_nodes = storage_nodes
        self._probe = probe
        self._config = config or LocalNodesConfig()
        self._host = host or socket.gethostname()
        self._clock = clock
        self.readings: Sequence[GpuReading] = ()

    def __call__(self) -> Sequence[NodeFacts]:
        """``readings`` are those of the last call."""
        self.readings = self._probe.read()
        return local_nodes(self._storage_nodes(), self._host, self.readings, self._config, int(self._clock() * 1000))


def make_probe(script: Path | None) -> Probe:
    """NVML, unless a file stands in for it."""
    return ScriptedProbe(script) if script is not None else NvmlProbe()
