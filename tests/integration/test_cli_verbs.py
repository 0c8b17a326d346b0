"""The verbs against real daemons: what they print, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.cluster import LocalCluster
from tests.support.program import Program
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for

PROMISED_FIELDS = set(
    "job step state level size_bytes attempt world_size held damage created committed pool save_id".split()  # noqa: SIM905
)


@pytest.fixture
def program(shared_cluster: LocalCluster) -> Program:
    return Program(shared_cluster.url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 8000)
    (folder / "sub" / "config.json").write_text("{}")
    return folder


def test_a_folder_is_pushed_listed_shown_verified_and_pulled(program: Program, folder: Path, tmp_path: Path) -> None:
    assert "is committed at L1" in program.run("ckpt", "push", "files", "5", str(folder))
    pushed = program.json("ckpt", "push", "files", "7", str(folder))
    assert (pushed["step"], pushed["state"], pushed["kind"]) == (7, "committed", "files")

    listed = program.json("ckpt", "list", "files")
    assert [checkpoint["step"] for checkpoint in listed] == [7, 5]
    assert listed[0].keys() >= PROMISED_FIELDS
    assert listed[0]["committed"].endswith("Z")
    assert program.run("ckpt", "list", "files").splitlines()[0].split()[0] == "STEP"

    shown = program.json("ckpt", "show", "files")
    assert shown["step"] == 7
    assert [shard["rank"] for shard in shown["shards"]] == [0]
    assert (
        program.json("ckpt", "show", "files", "5")["step"]
        == program.json("ckpt", "show", "files", "--step", "5")["step"]
        == 5
    )

    assert program.json("ckpt", "verify", "files")["ok"]
    assert [one["step"] for one in program.json("ckpt", "verify", "files", "--all")] == [7, 5]

    assert program.json("ckpt", "pull", "files", str(tmp_path / "newest"))["step"] == 7
    assert program.json("ckpt", "pull", "files", "5", str(tmp_path / "older"))["step"] == 5
    for pulled in ("newest", "older"):
        for name in ("weights.bin", "sub/config.json"):
            assert (tmp_path / pulled / name).read_bytes() == (folder / name).read_bytes()


def test_a_state_is_pulled_as_safetensors_of_each_rank(
    shared_cluster: LocalCluster, program: Program, tmp_path: Path
) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("state", attempt="a:1")
        savings = [checkpoints.save(3, {"w": np.full(1000, rank)}, rank=rank, world_size=2) for rank in range(2)]
        for saving in savings:
            saving.wait(timeout=30)
    program.run("ckpt", "pull", "state", str(tmp_path / "state"))
    for rank in range(2):
        tensors = load_file(tmp_path / "state" / f"rank-{rank:05}" / "blob-0000.safetensors")
        assert np.array_equal(tensors["w"], np.full(1000, rank))


def test_what_is_held_is_not_deleted_and_what_is_deleted_comes_back(program: Program, folder: Path) -> None:
    program.run("ckpt", "push", "kept", "1", str(folder))
    assert program.json("ckpt", "hold", "kept", "1")["held"]
    assert "release" in program.run("ckpt", "delete", "kept", "1", "--yes", expect=4)
    assert not program.json("ckpt", "release", "kept", "1")["held"]
    assert "--yes" in program.run("ckpt", "delete", "kept", "1", expect=2)
    assert program.json("ckpt", "delete", "kept", "1", "--yes")["state"] == "deleted"
    assert program.json("ckpt", "list", "kept") == []
    assert program.json("ckpt", "list", "kept", "--all")[0]["state"] == "deleted"
    assert program.json("ckpt", "undelete", "kept", "1")["state"] == "committed"


def test_pools_are_made_changed_and_deleted(program: Program) -> None:
    assert program.json("pool", "create", "nightly", "--level", "L1", "--keep-last", "2")["keep_last"] == 2
    changed = program.json("pool", "set", "nightly", "--max-age", "7d", "--keep-every", "100")
    assert (changed["keep_last"], changed["max_age_seconds"], changed["keep_every_steps"]) == (2, 604800, 100)
    assert "nothing older than 7d" in program.run("pool", "show", "nightly")
    assert [pool["name"] for pool in program.json("pool", "list")] == ["default", "nightly"]
    assert program.json("pool", "create", "nightly", "--level", "L1", expect=1)["error"]["reason"] == "ALREADY_EXISTS"
    assert "--yes" in program.run("pool", "delete", "nightly", expect=2)
    program.run("pool", "delete", "nightly", "--yes")
    assert [pool["name"] for pool in program.json("pool", "list")] == ["default"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ckpt", "list", "nobody"), 1, '"nobody" is not known'),
        (("ckpt", "show", "nobody"), 1, '"nobody" is not known'),
        (("ckpt", "pull", "nobody", "dest"), 1, '"nobody" is not known'),
        (("ckpt", "show", "nobody", "5"), 1, '"nobody" has no checkpoints'),
        (("ckpt", "list", "no/body"), 2, "not a valid name"),
        (("ckpt", "push", "job", "1", ".", "--pool", "nowhere"), 1, '"nowhere" does not exist'),
        (("pool", "show", "nowhere"), 1, '"nowhere" does not exist'),
        (("pool", "create", "strong", "--level", "L2", "--mirrors", "9"), 2, "--mirrors 2"),
        (("pool", "create", "strong", "--level", "L1", "--mirrors", "2"), 2, "--level L2"),
        (("pool", "create", "strong", "--level", "L1", "--allow-degraded"), 2, "--allow-degraded"),
        (("pool", "create", "strong", "--level", "L3", "--ec", "4+2"), 4, "needs 6 failure domains for 4+2, it has 2"),
        (("pool", "create", "strong", "--level", "L3"), 2, "--ec 4+2"),
        (("pool", "create", "strong", "--level", "L1", "--nodes", "node-9"), 1, '"node-9" does not exist'),
        (("pool", "create", "strong", "--level", "L3", "--ec", "4x2"), 2, "4+2"),
        (("node", "show", "node-9"), 1, '"node-9" does not exist'),
        (("node", "cordon", "node-9"), 1, "node-9"),
        (("node", "drain", "node-9"), 1, "node-9"),
        (("node", "remove", "node-9", "--yes"), 1, "node-9"),
        (("node", "ok-to-stop", "node-9"), 1, "node-9"),
        (("disk", "drain", "zz"), 1, "sdrs disk list"),
        (("disk", "replace", "zz", "--yes"), 1, "sdrs disk list"),
        (("pool", "shrink", "default", "node-9"), 1, "node-9"),
        (("group", "show", "nowhere"), 1, "nowhere"),
        (("switchover", "nowhere"), 1, "nowhere"),
        (("failover", "nowhere"), 1, "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_told_with_its_exit_code(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = program.run(*arguments, expect=code)
    assert told.startswith("sdrs: error: ")
    assert words in told
    assert not (tmp_path / "dest").exists()


def test_nodes_and_status_tell_what_runs(shared_cluster: LocalCluster, program: Program, folder: Path) -> None:
    nodes = program.json("node", "list")
    assert [node["id"] for node in nodes] == ["node-1", "node-2"]
    for node, daemon in zip(nodes, shared_cluster.nodes, strict=True):
        assert (node["state"], node["pid"], node["domain"]) == ("up", daemon.pid, daemon.name)
        assert node["address"] == daemon.running()["grpc"]
    assert program.json("node", "show", "node-1")["disks"][0]["state"] == "ok"
    program.run("ckpt", "push", "seen", "4", str(folder))
    status = program.json("status")
    assert status["controller_pid"] == shared_cluster.controller.pid
    assert {job["job"]: job["newest_step"] for job in status["jobs"]}["seen"] == 4
    assert "step 4" in program.run("status")


def test_damage_and_a_lost_node_show_in_exit_codes(local_cluster: LocalCluster, folder: Path, tmp_path: Path) -> None:
    program = Program(local_cluster.url)
    program.run("ckpt", "push", "job", "1", str(folder))
    before = set(local_cluster.fragments())
    program.run("ckpt", "push", "job", "2", str(folder))
    (fragment,) = set(local_cluster.fragments()) - before
    flip_bit(fragment, 5000)

    # The newest is damaged: the one before it is pulled, and that is said.
    pulled = program.json("ckpt", "pull", "job", str(tmp_path / "back"), expect=3)
    assert pulled["step"] == 1
    assert "step 2" in pulled["passed_over"][0]
    # A table has the short of it, what is about one checkpoint has the path.
    line = program.run("ckpt", "list", "job").splitlines()[1]
    assert "damaged" in line
    assert "rank 0 is corrupt on node node-" in line
    assert str(fragment) not in line
    shown = program.run("ckpt", "show", "job", "2")
    assert f"({fragment})" in shown
    assert "state      damaged" in shown
    assert "job step 2" in program.run("ckpt", "pull", "job", "2", str(tmp_path / "bad"), expect=1)
    problems = program.json("ckpt", "verify", "job", "2", expect=1)["problems"]
    assert [problem["undecided"] for problem in problems] == [False]
    # It was moved aside when it was found to be bad, and that is where to look.
    assert "missing: " in problems[0]["problem"]
    assert "quarantine" in problems[0]["problem"]
    assert [save["step"] for save in program.json("status", expect=3)["damaged"]] == [2]
    warned = program.run("status", expect=3)
    assert "job step 2 is damaged" in warned
    assert "sdrs ckpt delete job 2" in warned

    # With its node down nobody can tell: undecided is not corrupt.
    holder = program.json("ckpt", "show", "job", "1")["shards"][0]["nodes"][0]
    next(node for node in local_cluster.nodes if node.name == holder).kill()
    wait_for(lambda: program.json("node", "show", holder)["state"] == "down", f"{holder} to be seen down")
    assert [problem["undecided"] for problem in program.json("ckpt", "verify", "job", "1", expect=3)["problems"]] == [
        True
    ]
