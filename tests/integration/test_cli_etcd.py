"""``sdrs up --etcd``: a cluster is moved to three etcds and two controllers, and outlives one of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import needs_system_etcd
from tests.support.machine import Machine, own_machine
from tests.support.program import Program

pytestmark = needs_system_etcd  # one is killed

ETCDS = ["etcd-1", "etcd-2", "etcd-3"]
CONTROLLERS = ["controller-1", "controller-2"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with own_machine(tmp_path) as machine:
        yield machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(100_000))
    return folder


def test_a_cluster_moves_to_etcd_with_its_checkpoints_and_outlives_a_controller_and_an_etcd(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    before = machine.json("up", "--nodes", "1", "--port", "0")
    program = Program(before["url"])
    program.run("ckpt", "push", "job", "1", str(folder))
    assert "sdrs meta export FILE" in machine.run("up", "--etcd", expect=4)
    file, snapshot = tmp_path / "catalog", tmp_path / "snapshot"
    program.run("meta", "snapshot", str(snapshot))
    assert program.json("meta", "export", str(file), "--yes")["sealed"]
    assert "exported" in program.run("pool", "create", "late", "--level", "L1", expect=4)
    assert "sdrs up --etcd --import FILE" in machine.json("up", expect=3)["halted"]
    machine.run("down")

    # A snapshot, or a file that is no catalog, moves nothing, and is in nobody's way.
    assert "is a snapshot" in machine.run("up", "--etcd", "--import", str(snapshot), expect=4)
    (tmp_path / "torn").write_bytes(file.read_bytes()[:-10])
    machine.run("up", "--etcd", "--import", str(tmp_path / "torn"), expect=1)
    assert machine.pids() == {}
    assert json.loads((machine.dir / "cluster.json").read_text())["format"] == 1

    moved = machine.json("up", "--etcd", "--import", str(file))
    assert moved["started"] == [*ETCDS, *CONTROLLERS, "node-1"]
    assert (moved["store"], moved["nodes"], moved["pool"]) == ("etcd", 1, "default")
    assert moved["url"].startswith(before["url"] + ",")
    program = Program(moved["url"])
    program.run("ckpt", "pull", "job", str(tmp_path / "back"))
    assert (tmp_path / "back" / "weights").read_bytes() == (folder / "weights").read_bytes()

    active = program.json("status")["controller_pid"]
    killed = next(name for name, pid in machine.pids().items() if pid == active)
    machine.kill(killed)
    program.run("ckpt", "push", "job", "2", str(folder))
    status = program.json("status", expect=3)  # one controller less to take over next time
    assert status["controller_pid"] != active
    assert any("does not answer" in line for line in status["warnings"])
    machine.kill("etcd-1")
    program.run("ckpt", "push", "job", "3", str(folder))
    assert [save["step"] for save in program.json("ckpt", "list", "job")] == [3, 2, 1]

    assert machine.json("up")["started"] == ["etcd-1", killed]
    down = machine.json("down", "--purge", "--yes")
    assert set(down["stopped"]) == {*ETCDS, *CONTROLLERS, "node-1"}
    assert down["killed"] == []
    assert machine.pids() == {}
    assert not machine.dir.exists()
