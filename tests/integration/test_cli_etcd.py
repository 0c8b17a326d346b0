"""``sdrs up --etcd``: three etcds and two controllers on one machine, and a cluster moved there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs.cli.local_processes import find_etcd
from tests.support.machine import Machine, own_machine

pytestmark = pytest.mark.skipif(find_etcd() is None, reason="there is no etcd here")

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


def test_a_cluster_on_etcd_outlives_a_controller_and_an_etcd(machine: Machine, folder: Path, tmp_path: Path) -> None:
    up = machine.json("up", "--etcd", "--nodes", "2", "--port", "0")
    assert up["started"] == [*ETCDS, *CONTROLLERS, "node-1", "node-2"]
    assert (up["store"], up["level"], up["url"].count(",")) == ("etcd", "L2", 1)
    machine.run("ckpt", "push", "job", "1", str(folder))

    active = machine.json("status")["controller_pid"]
    machine.kill(next(name for name, pid in machine.pids().items() if pid == active))
    machine.run("ckpt", "push", "job", "2", str(folder))
    assert machine.json("status")["controller_pid"] != active
    machine.kill("etcd-1")
    machine.run("ckpt", "push", "job", "3", str(folder))
    machine.run("ckpt", "pull", "job", str(tmp_path / "back"))
    assert (tmp_path / "back" / "weights").read_bytes() == (folder / "weights").read_bytes()

    assert len(machine.json("up")["started"]) == 2
    assert set(machine.json("down")["stopped"]) == {*ETCDS, *CONTROLLERS, "node-1", "node-2"}
    assert machine.pids() == {}
    machine.json("up")
    assert [save["step"] for save in machine.json("ckpt", "list", "job")] == [3, 2, 1]
    assert machine.json("down", "--purge", "--yes")["killed"] == []
    assert not machine.dir.exists()


def test_a_cluster_moves_from_sqlite_to_etcd_with_its_checkpoints(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    before = machine.json("up", "--nodes", "1", "--port", "0")
    machine.run("ckpt", "push", "job", "1", str(folder))
    assert "sdrs meta export FILE" in machine.run("up", "--etcd", expect=4)
    file = tmp_path / "catalog"
    assert machine.json("meta", "export", str(file), "--yes")["sealed"]
    assert machine.start("ckpt", "push", "job", "2", str(folder)).wait(60) != 0, "a sealed cluster takes no saves"
    machine.run("down")

    # Started again as it was, it says how to go on.
    assert "sdrs up --etcd --import FILE" in machine.json("up", expect=3)["halted"]
    machine.run("down")

    moved = machine.json("up", "--etcd", "--import", str(file))
    assert (moved["store"], moved["nodes"], moved["pool"]) == ("etcd", 1, "default")
    assert moved["url"].startswith(before["url"])
    machine.run("ckpt", "pull", "job", str(tmp_path / "back"))
    assert (tmp_path / "back" / "weights").read_bytes() == (folder / "weights").read_bytes()
    machine.run("ckpt", "push", "job", "2", str(folder))
    assert json.loads((machine.dir / "cluster.json").read_text())["format"] == 2
