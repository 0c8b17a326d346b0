"""A pool with two copies as its operators see it: a primary dies, takes over, comes back, is moved by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import Machine, own_machine
from tests.support.waiting import wait_for

SECONDS = 30.0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Four nodes and the pool ``fast``; tests leave them all up."""
    with own_machine(tmp_path_factory.mktemp("machine")) as machine:
        machine.json("up", "--nodes", "4", "--port", "0")
        made = machine.json("pool", "create", "fast", "--level", "L2", "--mirrors", "2")
        assert (made["level"], made["mirrors"]) == ("L2", 2)
        yield machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(3_000_000))
    return folder


def wait_until_healthy(machine: Machine) -> None:
    def is_healthy() -> bool:
        process = machine.start("status", "-o", "json")
        process.communicate(timeout=60)
        return process.returncode == 0

    wait_for(is_healthy, "the cluster to be healthy again", SECONDS)


def group_of(machine: Machine, job: str) -> dict[str, Any]:
    """The group that holds the newest checkpoint of the job."""
    (shard,) = machine.json("ckpt", "show", job)["shards"]
    groups = machine.json("group", "list", "--pool", "fast")
    return next(group for group in groups if set(group["members"]) == set(shard["nodes"]))


def test_a_killed_primary_is_taken_over_and_the_node_comes_back(machine: Machine, folder: Path, tmp_path: Path) -> None:
    pushed = machine.json("ckpt", "push", "killed", "1", str(folder), "--pool", "fast")
    assert pushed["level"] == "L2"
    group = group_of(machine, "killed")
    shown = machine.json("group", "show", group["id"])
    primary = next(node for node in shown["nodes"] if node["role"] == "primary")
    assert primary["pid"] == machine.pids()[primary["id"]]
    machine.kill(primary["id"])

    # Reads and saves go on, at full level while there are spares.
    machine.run("ckpt", "pull", "killed", str(tmp_path / "back"))
    assert (tmp_path / "back" / "weights").read_bytes() == (folder / "weights").read_bytes()
    assert machine.json("ckpt", "push", "killed", "2", str(folder), "--pool", "fast")["level"] == "L2"

    def promotion() -> dict[str, Any] | None:
        events = machine.json("history", "--group", group["id"])
        return next((event for event in events if event["kind"] == "primary_promoted"), None)

    promoted = wait_for(promotion, "the promotion in the history", SECONDS)
    assert promoted["epoch"] > group["epoch"]
    now = machine.json("group", "show", group["id"])
    assert now["primary"] != primary["id"]
    status = machine.json("status", expect=3)
    assert "primary_promoted" in {event["kind"] for event in machine.json("history")}
    assert status["events"]

    assert machine.json("up")["started"] == [primary["id"]]
    wait_until_healthy(machine)
    assert machine.json("ckpt", "verify", "killed", "1")["ok"]


def test_a_switchover_moves_the_primary_and_is_told(machine: Machine, folder: Path) -> None:
    wait_until_healthy(machine)
    machine.run("ckpt", "push", "moved", "1", str(folder), "--pool", "fast")
    group = group_of(machine, "moved")
    to = next(member for member in group["members"] if member != group["primary"])
    moved = machine.json("switchover", group["id"], "--to", to, "--drain", "5s")
    assert (moved["primary"], moved["epoch"] > group["epoch"]) == (to, True)
    assert machine.json("history", "--group", group["id"], "--limit", "1")
    machine.run("ckpt", "push", "moved", "2", str(folder), "--pool", "fast")
    assert "nobody" in machine.run("switchover", group["id"], "--to", "nobody", expect=1)


def test_a_pause_shows_in_status_until_it_is_over(machine: Machine) -> None:
    wait_until_healthy(machine)
    machine.run("pause", "--reason", "a new switch")
    status = machine.json("status")
    assert status["paused"] == "a new switch"
    assert any("paused" in warning for warning in status["warnings"])
    machine.run("resume")
    assert machine.json("status")["paused"] is None


def test_cordons_are_refused_when_too_few_nodes_would_be_left(machine: Machine, folder: Path) -> None:
    wait_until_healthy(machine)
    cordoned = []
    try:
        for name in ("node-1", "node-2"):
            assert machine.json("node", "cordon", name)["cordoned"]
            cordoned.append(name)
        machine.run("node", "cordon", "node-3", expect=4)
        machine.run("ckpt", "push", "cordoned", "1", str(folder), "--pool", "fast")
        (shard,) = machine.json("ckpt", "show", "cordoned")["shards"]
        assert set(shard["nodes"]) == {"node-3", "node-4"}
        assert [node["cordoned"] for node in machine.json("node", "list")] == [True, True, False, False]
    finally:
        for name in cordoned:
            machine.run("node", "uncordon", name)


def test_a_snapshot_is_written_while_the_cluster_goes_on(machine: Machine, folder: Path, tmp_path: Path) -> None:
    assert machine.json("meta", "snapshot", str(tmp_path / "catalog"))["size_bytes"] > 0
    machine.run("ckpt", "push", "after", "1", str(folder), "--pool", "fast")
    machine.run("meta", "import", str(tmp_path / "catalog"), expect=4)
