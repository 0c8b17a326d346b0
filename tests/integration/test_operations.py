"""A cluster that is changed while it works: nodes, disks and pools come and go, and saves and reads go on."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sdrs
from tests.support.cluster import running_cluster
from tests.support.machine import Machine, own_machine
from tests.support.program import Program
from tests.support.waiting import wait_for

SECONDS = 90.0
NODE_COUNT = 7
# Above a stripe of 4+2, so that it is coded.
STATE_BYTES = 6_000_000

Record = dict[str, Any]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Seven nodes, two disks each: one more than 4+2 needs."""
    with own_machine(tmp_path_factory.mktemp("machine")) as machine:
        machine.json("up", "--nodes", str(NODE_COUNT), "--disks-per-node", "2", "--port", "0")
        yield machine


@pytest.fixture
def program(machine: Machine) -> Program:
    """The cluster as each test finds it: seven nodes that are up, and nothing to repair."""
    program = Program(machine.json("up")["url"])
    missing = NODE_COUNT - len(program.json("node", "list"))
    if missing > 0:
        machine.json("node", "add", "--count", str(missing), "--disks-per-node", "2")
    wait_for(lambda: program.result("status").exit_code == 0, "the cluster to be healthy", SECONDS)
    return program


def make_state(seed: int) -> dict[str, Any]:
    return {"seed": seed, "weights": np.random.default_rng(seed).integers(0, 255, STATE_BYTES, dtype=np.uint8)}


@contextmanager
def saving(url: str, job: str, pool: str = "default") -> Iterator[list[int]]:
    """Saves one step after the other meanwhile; the steps that were acknowledged. A save that fails fails the test."""
    done: list[int] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def work() -> None:
        try:
            with sdrs.connect(url) as cluster:
                checkpoints = cluster.checkpoints(job, pool=pool)
                for step in range(1, 10_000):
                    if is_over.is_set():
                        return
                    checkpoints.save(step, make_state(step)).wait(timeout=SECONDS)
                    done.append(step)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_for(lambda: len(done) >= 2 or bool(failures), "saves to go on", SECONDS)
        yield done
        so_far = len(done)
        wait_for(lambda: len(done) >= so_far + 2 or bool(failures), "saves to go on", SECONDS)
    finally:
        is_over.set()
        thread.join(SECONDS)
    assert not failures, failures
    assert not thread.is_alive()


def check_readable(url: str, job: str, steps: list[int]) -> None:
    with sdrs.connect(url) as cluster:
        for step in (steps[0], steps[-1]):
            restored = cluster.checkpoints(job).restore(step=step)
            assert restored["seed"] == step
            assert np.array_equal(restored["weights"], make_state(step)["weights"])


def url_of(machine: Machine) -> str:
    return str(machine.json("up")["url"])


def holders(program: Program, job: str) -> set[str]:
    """Who holds something of any checkpoint of the job."""
    steps = [save["step"] for save in program.json("ckpt", "list", job)]
    shown = [program.json("ckpt", "show", job, str(step)) for step in steps]
    return {
        holder["node"]
        for record in shown
        for shard in record["shards"]
        for blob in shard["blobs"]
        for holder in blob["holders"]
    }


def codes(program: Program, job: str) -> set[str]:
    steps = [save["step"] for save in program.json("ckpt", "list", job)]
    shown = [program.json("ckpt", "show", job, str(step)) for step in steps]
    return {
        blob["code"]
        for record in shown
        for shard in record["shards"]
        for blob in shard["blobs"]
        if blob["size_bytes"] > 4 << 20
    }


def test_a_cluster_of_six_nodes_or_more_begins_erasure_coded(program: Program) -> None:
    (default,) = [pool for pool in program.json("pool", "list") if pool["name"] == "default"]
    assert (default["level"], default["ec"]) == ("L3", "4+2")


def test_a_node_is_drained_and_removed_while_saves_and_reads_go_on(machine: Machine, program: Program) -> None:
    with saving(url_of(machine), "drained") as steps:
        assert "node-2" in holders(program, "drained")
        drained = program.json("node", "drain", "node-2", "--wait-at-most", f"{SECONDS:.0f}s")
        assert (drained["drained"], drained["held_count"]) == (True, 0)
        assert program.json("node", "safe-to-destroy", "node-2")["safe"]
        # Another one would leave too few for 4+2.
        assert "needs 6 failure domains" in program.run("node", "drain", "node-3", expect=4)
        assert machine.json("node", "remove", "node-2", "--yes")["stopped"]
    assert "node-2" not in {node["id"] for node in program.json("node", "list")}
    assert "node-2" not in machine.pids()
    assert "node-2" not in holders(program, "drained")
    check_readable(url_of(machine), "drained", steps)
    # It stays away, also when the cluster is brought up again.
    assert "node-2" not in machine.json("up")["started"]
    assert "node_removed" in {event["kind"] for event in program.json("history")}


def test_nodes_join_a_cluster_that_is_running(machine: Machine, program: Program) -> None:
    before = {node["id"] for node in program.json("node", "list")}
    (added,) = machine.json("node", "add", "--domain", "rack-9")
    assert added["id"] not in before
    assert (added["state"], added["domain"]) == ("up", "rack-9")
    wait_for(
        lambda: any(added["id"] in group["members"] for group in program.json("group", "list")),
        "the new node to be planned in",
        SECONDS,
    )
    assert program.json("node", "ok-to-stop", added["id"])["safe"]


def test_a_drain_survives_the_death_of_the_controller(machine: Machine, program: Program) -> None:
    machine.json("node", "add")
    url = url_of(machine)
    with sdrs.connect(url) as cluster:
        for step in range(1, 5):
            cluster.checkpoints("survived").save(step, make_state(step)).wait()
    leaving = sorted(holders(program, "survived"))[0]
    program.json("node", "drain", leaving, "--no-wait")
    machine.kill("controller")
    assert machine.json("up")["started"] == ["controller"]
    assert program.json("node", "show", leaving)["draining"]
    assert program.json("node", "drain", leaving)["drained"]
    assert leaving not in holders(program, "survived")
    assert not program.json("node", "drain", leaving, "--cancel")["draining"]
    check_readable(url, "survived", [1, 4])


def test_a_pool_shrinks_and_expands_while_saves_go_on(machine: Machine, program: Program) -> None:
    program.run("pool", "create", "moved", "--level", "L2", "--mirrors", "2")
    with saving(url_of(machine), "moved", pool="moved") as steps:
        leaving = sorted(holders(program, "moved"))[0]
        shrunk = program.json("pool", "shrink", "moved", leaving)
        assert leaving not in shrunk["nodes"]
        wait_for(lambda: leaving not in holders(program, "moved"), f"what {leaving} held to move", SECONDS)
        expanded = program.json("pool", "expand", "moved", leaving)
        assert leaving in expanded["nodes"]
        names = [node["id"] for node in program.json("node", "list")]
        assert "failure domains" in program.run("pool", "shrink", "moved", *names[:-1], expect=4)
    check_readable(url_of(machine), "moved", steps)


def test_a_pool_changes_its_level_while_saves_go_on(machine: Machine, program: Program) -> None:
    program.run("pool", "create", "raised", "--level", "L2")
    with saving(url_of(machine), "raised", pool="raised") as steps:
        assert codes(program, "raised") == {"mirror"}
        raised = program.json("pool", "set", "raised", "--level", "L3", "--ec", "4+2")
        assert (raised["level"], raised["ec"]) == ("L3", "4+2")

    def is_converted() -> bool:
        return codes(program, "raised") == {"4+2"} and all(
            (save["level"], save["degraded"]) == ("L3", False) for save in program.json("ckpt", "list", "raised")
        )

    wait_for(is_converted, "what was stored to be coded", SECONDS)
    check_readable(url_of(machine), "raised", steps)
    assert "--yes" in program.run("pool", "set", "raised", "--level", "L2", expect=2)
    assert program.json("pool", "set", "raised", "--level", "L2", "--yes")["level"] == "L2"
    wait_for(lambda: codes(program, "raised") == {"mirror"}, "what was stored to be whole copies again", SECONDS)
    check_readable(url_of(machine), "raised", steps)


def test_a_pool_at_its_quota_refuses_quickly_and_leaves_nothing_half_done(machine: Machine, program: Program) -> None:
    program.run("pool", "create", "small", "--level", "L2", "--quota", "14MB")
    with sdrs.connect(url_of(machine)) as cluster:
        checkpoints = cluster.checkpoints("small", pool="small")
        for step in (1, 2):
            checkpoints.save(step, make_state(step)).wait()
        began = time.monotonic()
        with pytest.raises(sdrs.errors.FullError, match="at its quota"):
            checkpoints.save(3, make_state(3)).wait()
        assert time.monotonic() - began < SECONDS / 3, "it is told, not waited for"
        assert [save.step for save in checkpoints.list(all_states=True)] == [2, 1]
        assert any("near its quota" in line for line in program.json("status")["warnings"])
        program.run("pool", "set", "small", "--quota", "0")
        checkpoints.save(3, make_state(3)).wait()


def test_a_disk_is_drained_while_its_node_stays(machine: Machine, program: Program) -> None:
    with sdrs.connect(url_of(machine)) as cluster:
        for step in range(1, 5):
            cluster.checkpoints("disks").save(step, make_state(step)).wait()
    wait_for(lambda: any(disk["held_count"] for disk in program.json("disk", "list")), "a survey", SECONDS)
    found = max(program.json("disk", "list"), key=lambda disk: int(disk["held_count"]))
    assert "drain" in program.run("disk", "replace", found["id"], "--yes", expect=4)
    drained = program.json("disk", "drain", found["id"][:10], "--wait", "--wait-at-most", f"{SECONDS:.0f}s")
    assert (drained["id"], drained["drained"], drained["state"]) == (found["id"], True, "draining")
    assert program.json("disk", "drain", found["id"], "--cancel")["state"] == "ok"
    check_readable(url_of(machine), "disks", [1, 4])


def test_what_a_dead_disk_held_is_made_anew_once_it_is_given_up(machine: Machine, program: Program) -> None:
    with sdrs.connect(url_of(machine)) as cluster:
        for step in range(1, 5):
            cluster.checkpoints("dead").save(step, make_state(step)).wait()
    wait_for(lambda: any(disk["held_count"] for disk in program.json("disk", "list")), "a survey", SECONDS)
    found = max(program.json("disk", "list"), key=lambda disk: int(disk["held_count"]))
    machine.kill(found["node"])
    shutil.rmtree(found["path"])
    assert machine.json("up")["started"] == [found["node"]]

    def absent() -> list[Record]:
        return [disk for disk in program.json("disk", "list", "--node", found["node"]) if disk["absent"]]

    wait_for(lambda: [disk["id"] for disk in absent()] == [found["id"]], "the disk to be missed", SECONDS)
    assert program.json("disk", "replace", found["id"], "--yes")["blob_count"] > 0
    wait_for(lambda: not absent(), "what it held to be made anew", SECONDS)
    wait_for(lambda: program.result("status").exit_code == 0, "the cluster to be healthy", SECONDS)
    check_readable(url_of(machine), "dead", [1, 4])


def test_the_pace_of_repair_is_kept(machine: Machine, program: Program) -> None:
    changed = program.json("repair", "set", "--rate", "50MB", "--concurrency", "3")
    assert changed == {"rate_bytes_per_second": 50_000_000, "concurrency": 3}
    machine.kill("controller")
    machine.json("up")
    settings = program.json("repair", "status")["settings"]
    assert settings == {"bytes_per_second": 50_000_000, "concurrency": 3}
    program.run("repair", "set", "--rate", "0")


def test_a_dead_node_goes_once_its_data_is_made_anew_and_what_only_it_had_is_named(tmp_path: Path) -> None:
    quick = {"repair_after_seconds": 0.5, "repair_last_copy_after_seconds": 0.5, "repair_interval_seconds": 1}
    with running_cluster(tmp_path, node_count=4, controller=quick) as cluster, cluster.connect() as client:
        program = Program(cluster.url)
        client.create_pool("coded", "L3", ec="2+1")
        client.create_pool("single", "L1")
        client.checkpoints("kept", pool="coded").save(1, make_state(1)).wait()
        lost = client.checkpoints("lost", pool="single")
        for step in range(1, 9):
            lost.save(step, make_state(step)).wait()
        victim = sorted(holders(program, "lost") & holders(program, "kept"))[0]
        next(node for node in cluster.nodes if node.name == victim).kill()
        wait_for(lambda: client.node_status(victim).node.state == "down", "the node to be found dead", SECONDS)
        assert "alone" in program.run("node", "remove", victim, "--yes", expect=4)
        wait_for(lambda: victim not in holders(program, "kept") or _is_full(client), "repair", SECONDS)
        told = program.json("node", "remove", victim, "--yes", "--accept-data-loss")
        assert told["lost"]
        assert {save["job"] for save in told["lost"]} == {"lost"}
        assert victim not in {node.id for node in client.nodes()}
        assert client.checkpoints("kept").restore(step=1)["seed"] == 1
        assert victim not in holders(program, "kept")


def _is_full(cluster: sdrs.Cluster) -> bool:
    info = cluster.info()
    return info.degraded_blob_count == info.unavailable_count
