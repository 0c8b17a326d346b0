"""A pool with two copies as its operators see it: a primary dies, is taken over, comes back, is moved by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import Machine, own_machine
from tests.support.program import Program
from tests.support.waiting import wait_for

SECONDS = 30.0
Record = dict[str, Any]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Four nodes; tests leave them all up."""
    with own_machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture(scope="module")
def program(machine: Machine) -> Program:
    """With the pool ``fast``."""
    program = Program(machine.json("up", "--nodes", "4", "--port", "0")["url"])
    made = program.json("pool", "create", "fast", "--level", "L2", "--mirrors", "2")
    assert (made["level"], made["mirrors"]) == ("L2", 2)
    return program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(3_000_000))
    return folder


@pytest.fixture(autouse=True)
def _healthy_at_first(program: Program) -> None:
    wait_for(lambda: program.result("status").exit_code == 0, "the cluster to be healthy", SECONDS)


def push(program: Program, job: str, step: int, folder: Path) -> Record:
    return dict(program.json("ckpt", "push", job, str(step), str(folder), "--pool", "fast"))


def holders(program: Program, job: str) -> set[str]:
    (shard,) = program.json("ckpt", "show", job)["shards"]
    return set(shard["nodes"])


def group_of(program: Program, job: str) -> Record:
    """The group that holds the newest checkpoint of the job."""
    groups = program.json("group", "list", "--pool", "fast")
    return next(group for group in groups if set(group["members"]) == holders(program, job))


def test_a_killed_primary_is_taken_over_and_its_node_comes_back(
    machine: Machine, program: Program, folder: Path, tmp_path: Path
) -> None:
    assert push(program, "killed", 1, folder)["level"] == "L2"
    group = group_of(program, "killed")
    shown = program.json("group", "show", group["id"])
    primary = next(node for node in shown["nodes"] if node["role"] == "primary")
    assert primary["pid"] == machine.pids()[primary["id"]]
    machine.kill(primary["id"])

    # Reads and saves go on, at full level while there are spares.
    program.run("ckpt", "pull", "killed", str(tmp_path / "back"))
    assert (tmp_path / "back" / "weights").read_bytes() == (folder / "weights").read_bytes()
    assert push(program, "killed", 2, folder)["level"] == "L2"

    def promotion() -> Record | None:
        events = program.json("history", "--group", group["id"])
        return next((event for event in events if event["kind"] == "primary_promoted"), None)

    promoted = wait_for(promotion, "the promotion in the history", SECONDS)
    assert promoted is not None
    assert promoted["epoch"] > group["epoch"]
    assert program.json("group", "show", group["id"])["primary"] != primary["id"]
    assert program.json("status", expect=3)["events"]

    assert machine.json("up")["started"] == [primary["id"]]
    wait_for(lambda: program.result("status").exit_code == 0, "the cluster to be healthy again", SECONDS)
    assert program.json("ckpt", "verify", "killed", "1")["ok"]


def test_a_switchover_moves_the_primary_and_is_told(program: Program, folder: Path) -> None:
    push(program, "moved", 1, folder)
    group = group_of(program, "moved")
    to = next(member for member in group["members"] if member != group["primary"])
    moved = program.json("switchover", group["id"], "--to", to, "--drain", "5s")
    assert moved["primary"] == to
    assert moved["epoch"] > group["epoch"]
    (event,) = program.json("history", "--group", group["id"], "--limit", "1")
    assert event["epoch"] >= moved["epoch"]
    push(program, "moved", 2, folder)
    assert "nobody" in program.run("switchover", group["id"], "--to", "nobody", expect=1)


def test_a_pause_shows_in_status_until_it_is_over(program: Program) -> None:
    program.run("pause", "--reason", "a new switch")
    try:
        status = program.json("status")
        assert status["paused"] == "a new switch"
        assert any("paused" in warning for warning in status["warnings"])
    finally:
        program.run("resume")
    assert program.json("status")["paused"] is None


def test_cordons_keep_nodes_out_and_are_refused_when_too_few_would_be_left(program: Program, folder: Path) -> None:
    # A pool of its own: no group of it remembers a node that failed it before.
    program.run("pool", "create", "kept", "--level", "L2")
    cordoned = []
    try:
        for name in ("node-1", "node-2"):
            assert program.json("node", "cordon", name)["cordoned"]
            cordoned.append(name)
        assert "error: " in program.run("node", "cordon", "node-3", expect=4)
        assert [node["cordoned"] for node in program.json("node", "list")] == [True, True, False, False]
        wait_for(
            lambda: all(
                set(group["members"]) == {"node-3", "node-4"}
                for group in program.json("group", "list", "--pool", "kept")
            ),
            "the groups to leave the cordoned nodes",
            SECONDS,
        )
        program.run("ckpt", "push", "cordoned", "1", str(folder), "--pool", "kept")
        assert holders(program, "cordoned") == {"node-3", "node-4"}
    finally:
        for name in cordoned:
            assert not program.json("node", "uncordon", name)["cordoned"]


def test_a_snapshot_is_written_while_the_cluster_goes_on(program: Program, folder: Path, tmp_path: Path) -> None:
    assert program.json("meta", "snapshot", str(tmp_path / "catalog"))["size_bytes"] > 0
    push(program, "after", 1, folder)
    assert "empty" in program.run("meta", "import", str(tmp_path / "catalog"), expect=4)
