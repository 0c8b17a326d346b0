"""Which nodes the local executor has, as a pure function of storage nodes and readings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sdrs_core.cluster import Endpoints, Node, NodeState
from sdrs_core.ids import NodeId
from sdrs_scheduler.executors.executor import NodeFacts
from sdrs_scheduler.executors.local.local_nodes import LocalNodes, LocalNodesConfig, local_nodes, make_probe
from sdrs_scheduler.health.nvml import NvmlProbe
from sdrs_scheduler.health.probe import GpuReading, ScriptedProbe

NOW_MS = 1_800_000_000_000
CONFIG = LocalNodesConfig()


def storage_node(name: str, host: str = "here") -> Node:
    endpoints = Endpoints("h:1", "h:2", "", "h:3", host)
    return Node(NodeId(name), endpoints, host, 1, "1", NodeState.UP)


def facts(*nodes: Node, readings: tuple[GpuReading, ...] = (), config: LocalNodesConfig = CONFIG) -> list[NodeFacts]:
    return list(local_nodes(nodes, "here", readings, config, NOW_MS))


def test_storage_nodes_on_this_host_have_stand_in_gpus() -> None:
    found = facts(storage_node("n2"), storage_node("n1"), storage_node("n3", host="elsewhere"))
    assert found == [NodeFacts("n1", 8), NodeFacts("n2", 8)]
    config = LocalNodesConfig(gpus_per_node=2, gpu_type="toy", groups=frozenset({"a"}))
    assert facts(storage_node("n1"), config=config) == [NodeFacts("n1", 2, "toy", frozenset({"a"}))]
    assert facts(storage_node("n3", host="elsewhere")) == []


def test_a_node_that_is_down_or_out_of_use_says_why() -> None:
    node = storage_node("n1")
    down, cordoned, because, draining, flapping = facts(
        replace(node, id=NodeId("a"), state=NodeState.DOWN),
        replace(node, id=NodeId("b"), cordoned=True),
        replace(node, id=NodeId("c"), cordoned=True, cordoned_because="fan"),
        replace(node, id=NodeId("d"), draining=True),
        replace(node, id=NodeId("e"), flapping=True),
    )
    assert (down.is_up, down.problem) == (False, "its storage daemon is down")
    assert (cordoned.is_up, cordoned.problem) == (True, "cordoned by an operator")
    assert because.problem == "cordoned: fan"
    assert draining.problem == "it is being drained"
    assert flapping.problem == "its storage daemon went away too often of late"


def test_bad_stand_in_gpus_are_those_of_their_node() -> None:
    first, second = facts(
        storage_node("n1"), storage_node("n2"), readings=(GpuReading(3, "n2", is_lost=True), GpuReading(0, "n1"))
    )
    assert first.bad_gpus == {}
    assert list(second.bad_gpus) == [3]


def test_real_gpus_are_there_once() -> None:
    gpus = tuple(GpuReading(index, gpu_type="h100") for index in range(4))
    # The storage node's name, by which it is cordoned and told.
    assert facts(storage_node("n1"), readings=gpus) == [NodeFacts("n1", 4, "h100")]
    assert facts(storage_node("n1"), storage_node("n2"), readings=gpus) == [NodeFacts("here", 4, "h100")]
    assert facts(readings=gpus) == [NodeFacts("here", 4, "h100")]


def test_this_machine_is_down_when_all_of_its_storage_nodes_are() -> None:
    gpus = (GpuReading(0, gpu_type="h100"), GpuReading(1, gpu_type="h100", is_lost=True))
    down = replace(storage_node("n1"), state=NodeState.DOWN)
    (one,) = facts(down, storage_node("n2"), readings=gpus)
    assert (one.is_up, one.problem) == (True, "n1: its storage daemon is down")
    assert list(one.bad_gpus) == [1]
    (all_down,) = facts(down, readings=gpus)
    assert (all_down.is_up, all_down.problem) == (False, "its storage daemon is down")


def test_gpus_that_differ_are_told() -> None:
    gpus = tuple(GpuReading(index, gpu_type="a100" if index else "v100") for index in range(3))
    (node,) = facts(storage_node("n1"), readings=gpus)
    assert (node.gpu_type, node.problem) == ("a100", "its GPUs differ: 2 a100, 1 v100")


def test_nodes_are_read_anew_with_each_call(tmp_path: Path) -> None:
    script = tmp_path / "gpus.json"
    known = [storage_node("n1")]
    nodes = LocalNodes(lambda: known, make_probe(script), host="here", clock=lambda: NOW_MS / 1000)
    assert nodes() == (NodeFacts("n1", 8),)
    script.write_text(json.dumps([{"node": "n1", "index": 1, "ecc_uncorrected": 1}]))
    known.append(storage_node("n2"))
    first, second = nodes()
    assert (list(first.bad_gpus), second.name) == ([1], "n2")
    assert [reading.index for reading in nodes.readings] == [1]


def test_nvml_is_asked_unless_a_file_stands_in(tmp_path: Path) -> None:
    assert isinstance(make_probe(tmp_path / "gpus.json"), ScriptedProbe)
    assert isinstance(make_probe(None), NvmlProbe)
