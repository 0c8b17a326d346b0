"""``sdrs up`` and ``sdrs down`` with real daemons."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import sdrs
from tests.support.machine import Machine, own_machine
from tests.support.program import Program
from tests.support.waiting import wait_for


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with own_machine(tmp_path) as machine:
        yield machine


def test_a_cluster_comes_up_survives_a_killed_node_grows_and_goes_down(machine: Machine, tmp_path: Path) -> None:
    up = machine.json("up", "--nodes", "1", "--port", "0")
    assert up["started"] == ["controller", "node-1"]
    assert (up["pool"], up["level"], up["store"]) == ("default", "L1", "sqlite")
    first = machine.pids()
    assert first.keys() == {"controller", "node-1"}

    # It stays, later commands find it, and a second `up` changes nothing.
    assert machine.json("status")["url"] == up["url"]
    assert machine.json("up") == up | {"started": []}
    assert machine.pids() == first

    # What is saved outlives a kill, a restart of the node, and a restart of all.
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights").write_bytes(os.urandom(100_000))
    machine.run("ckpt", "push", "job", "1", str(tmp_path / "out"))
    os.kill(first["node-1"], signal.SIGKILL)
    with sdrs.connect(up["url"]) as cluster:
        wait_for(lambda: cluster.nodes()[0].state == "down", "the node to be seen down")
    assert "node-1 is down" in machine.run("status", expect=3)
    grown = machine.json("up", "--nodes", "2")
    assert grown["started"] == ["node-1", "node-2"]
    assert grown["level"] == "L1", "a pool that exists is left as it is"
    assert machine.json("status")["state"] == "healthy"
    assert [node["id"] for node in machine.json("node", "list")] == ["node-1", "node-2"]

    assert machine.json("down")["stopped"] == ["controller", "node-1", "node-2"]
    assert machine.pids() == {}
    assert not list(machine.dir.glob("*/run.json")), "a clean stop leaves no run.json"
    assert "sdrs up" in machine.run("status", expect=6)
    assert machine.json("down")["stopped"] == []

    assert machine.json("up")["nodes"] == 2
    machine.run("ckpt", "pull", "job", str(tmp_path / "back"))
    assert (tmp_path / "back" / "weights").read_bytes() == (tmp_path / "out" / "weights").read_bytes()

    purged = machine.json("down", "--purge", "--yes")
    assert (purged["purged"], purged["killed"]) == (True, [])
    assert not machine.dir.exists()


def test_a_catalog_that_is_gone_is_rebuilt_from_the_nodes_that_were_left_running(
    machine: Machine, tmp_path: Path
) -> None:
    program = Program(machine.json("up", "--nodes", "1", "--port", "0")["url"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights").write_bytes(os.urandom(100_000))
    program.run("ckpt", "push", "job", "1", str(tmp_path / "out"))
    program.run("ckpt", "hold", "job", "1")
    snapshot = str(tmp_path / "snapshot")
    program.run("meta", "snapshot", snapshot)
    program.run("ckpt", "push", "job", "2", str(tmp_path / "out"))
    before = machine.pids()
    machine.kill("controller")
    shutil.rmtree(machine.dir / "controller")
    halted = machine.json("up", expect=3)
    assert "sdrs meta rebuild" in halted["halted"]
    assert halted["pool"] is None
    assert machine.pids()["node-1"] == before["node-1"]
    assert machine.pids().keys() == before.keys()

    # The nodes have seen more than it tells: it comes back with them, never without.
    assert "sdrs meta rebuild --snapshot" in program.run("meta", "import", snapshot, expect=4)
    # As a process of its own: that finds the nodes of this machine's cluster by itself.
    rebuilding = machine.start("meta", "rebuild", "--snapshot", snapshot, "-o", "json")
    rebuilt = json.loads(rebuilding.communicate(timeout=60)[0])
    assert rebuilt["checkpoint_count"] == 2
    assert (rebuilding.returncode, rebuilt["problems"]) == (0, [])
    saves = program.json("ckpt", "list", "job")
    assert [(save["step"], save["held"]) for save in saves] == [(2, False), (1, True)]
    wait_for(lambda: [n["state"] for n in program.json("node", "list")] == ["up"], "the node to join what is its own")
    assert machine.json("up")["pool"] == "default"
    program.run("ckpt", "pull", "job", str(tmp_path / "back"))
    assert (tmp_path / "back" / "weights").read_bytes() == (tmp_path / "out" / "weights").read_bytes()


def test_two_ups_at_once_make_one_cluster(machine: Machine) -> None:
    ups = [machine.start("up", "--nodes", "2", "--port", "0", "-o", "json") for _ in range(2)]
    answers = [json.loads(up.communicate(timeout=60)[0]) for up in ups]
    assert sorted(len(answer["started"]) for answer in answers) == [0, 3]
    assert answers[0]["url"] == answers[1]["url"]
    # With two nodes there are two copies.
    (pool,) = Program(answers[0]["url"]).json("pool", "list")
    assert (pool["name"], pool["level"], pool["mirrors"]) == ("default", "L2", 2)


def test_a_daemon_that_cannot_start_is_told_with_its_log_and_nothing_stays_behind(machine: Machine) -> None:
    (machine.dir / "node-1").mkdir(parents=True)
    (machine.dir / "cluster.json").write_text('{"format": 1, "port": 1, "disk_counts": [1]}')
    (machine.dir / "node-1" / "somebody-elses").write_text("x")
    told = machine.run("up", "--port", "0", expect=1)
    assert "node-1 ended while it was starting" in told
    assert "somebody-elses" in told, "the daemon's own words"
    assert machine.pids() == {}
