"""kill -9 of the daemon that stages: what it acknowledged becomes a checkpoint, what it did not is sent another way."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sdrs.save import stage_session, staged
from sdrs_core.ids import random_id
from tests.support.battered import stands_still
from tests.support.cluster import LocalCluster, running_cluster, staging_dir
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for


def arm(cluster: LocalCluster, points: str) -> None:
    (cluster.folder / "points").write_text(points)


def seals(cluster: LocalCluster) -> list[Path]:
    return list(staging_dir(cluster.folder, "node-1").glob("*.seal"))


def restart(cluster: LocalCluster) -> None:
    cluster.nodes[0].wait_for_death()
    arm(cluster, "")
    cluster.nodes[0].start()


# Blobs durable and nothing registered; registered and not recorded as such.
@pytest.mark.parametrize("point", ["seal.confirmed", "stage.carried"])
def test_what_was_sealed_is_carried_out_by_the_next_run(armed_cluster: LocalCluster, point: str) -> None:
    with armed_cluster.connect() as client:
        ckpts = client.checkpoints(f"sealed-{random_id()[:6]}")
        arm(armed_cluster, f"{point}=kill")
        saving = ckpts.save(1, make_state(1, 16 * MIB))
        armed_cluster.nodes[0].wait_for_death()
        assert len(seals(armed_cluster)) == 1
        before = {path.name for path in armed_cluster.fragments()}
        restart(armed_cluster)
        assert saving.wait(timeout=30).step == 1
        assert same(ckpts.restore(), make_state(1, 16 * MIB))
        # P11: what was durable before was not stored twice.
        assert {path.name for path in armed_cluster.fragments()} == before
        wait_for(lambda: not seals(armed_cluster), "the record to go")
        ckpts.save(2, make_state(2, 16 * MIB)).wait(timeout=30)  # and staging goes on
        # In another segment: the first one was taken over to the end, and is kept to be read.
        assert len(list(staging_dir(armed_cluster.folder, "node-1").glob("*.segment"))) == 2


def test_trainer_and_daemon_may_both_be_killed_once_it_is_sealed(armed_cluster: LocalCluster) -> None:
    script = """
import os, signal, sys
import sdrs
from tests.support.states import make_state
sdrs.connect(sys.argv[1]).checkpoints(sys.argv[2]).save(step=1, state=make_state(9, 16 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""
    job = f"both-{random_id()[:6]}"
    arm(armed_cluster, "seal.confirmed=kill")
    command = [sys.executable, "-c", script, armed_cluster.url, job]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -signal.SIGKILL
    restart(armed_cluster)
    with armed_cluster.connect() as client:
        ckpts = client.checkpoints(job)
        wait_for(ckpts.latest, "the next run of the daemon to bring it in")
        assert same(ckpts.restore(), make_state(9, 16 * MIB))


# Before the record has its name; and after, so that the daemon and the process both bring the save in.
@pytest.mark.parametrize("point", ["stage.recorded", "stage.sealed"])
def test_a_seal_that_was_not_acknowledged_is_streamed(
    armed_cluster: LocalCluster, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    with armed_cluster.connect() as client, caplog.at_level(logging.WARNING, logger="sdrs"):
        ckpts = client.checkpoints(f"unsealed-{random_id()[:6]}")
        arm(armed_cluster, f"{point}=kill")
        saving = ckpts.save(1, make_state(1, 16 * MIB))
        assert len(seals(armed_cluster)) == (point == "stage.sealed")
        restart(armed_cluster)
        assert saving.wait(timeout=30).step == 1
        assert caplog.text.count("did not take the save") == 1
        wait_for(lambda: not seals(armed_cluster), "the record to go")
        assert [checkpoint.step for checkpoint in ckpts.list()] == [1]
        assert same(ckpts.restore(), make_state(1, 16 * MIB))


def test_a_stopped_daemon_leaves_what_is_sealed_to_its_next_run(armed_cluster: LocalCluster) -> None:
    with armed_cluster.connect(timeout_seconds=60) as client:
        ckpts = client.checkpoints(f"stopped-{random_id()[:6]}")
        ckpts.save(0, {"x": 1}).wait()
        armed_cluster.controller.kill()  # nothing can be brought in
        saving = ckpts.save(1, make_state(1, 16 * MIB))
        armed_cluster.nodes[0].stop()
        assert len(seals(armed_cluster)) == 1
        armed_cluster.controller.start()
        armed_cluster.nodes[0].start()
        assert saving.wait(timeout=30).step == 1
        assert same(ckpts.restore(), make_state(1, 16 * MIB))


def test_a_daemon_that_lost_its_memory_is_helped_by_the_process_that_has_it(armed_cluster: LocalCluster) -> None:
    with armed_cluster.connect() as client:
        ckpts = client.checkpoints(f"emptied-{random_id()[:6]}")
        arm(armed_cluster, "seal.confirmed=kill")
        saving = ckpts.save(1, make_state(1, 4 * MIB))
        armed_cluster.nodes[0].wait_for_death()
        for path in staging_dir(armed_cluster.folder, "node-1").iterdir():
            path.unlink()
        restart(armed_cluster)
        assert saving.wait(timeout=30).step == 1
        assert same(ckpts.restore(), make_state(1, 4 * MIB))


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_daemon_that_is_gone_or_frozen_costs_nothing_while_the_trainer_lives(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_session, "SILENT_SECONDS", 2.0)
    folder = tmp_path / "pair"
    folder.mkdir()
    environment = {"SDRS_FAULT_POINTS": str(folder / "points")}
    eager = {"suspect_after_seconds": 1}
    with (
        running_cluster(folder, node_count=2, controller=eager, environment=environment) as cluster,
        cluster.connect() as client,
    ):
        ckpts = client.checkpoints("moved")
        ckpts.save(0, {"x": 1}).wait()
        node = cluster.nodes[0]
        arm(cluster, f"fragment.created={fault}@2")  # it has begun to store it
        saving = ckpts.save(1, make_state(1, 48 * MIB))
        if fault == "kill":
            node.wait_for_death()
        else:
            wait_for(lambda: stands_still(node.pid), "it to be frozen")
        arm(cluster, "")
        assert saving.wait(timeout=60).step == 1
        holders = {holder.node_id for shard in ckpts.shards(1) for blob in shard.blobs for holder in blob.holders}
        assert holders == {"node-2"}
        assert same(ckpts.restore(step=1), make_state(1, 48 * MIB))
        # And the daemon, back at last, finds that there is nothing left to do.
        if fault == "kill":
            node.start()
        else:
            node.thaw()
        wait_for(lambda: not seals(cluster), "the record to go")
        assert [checkpoint.step for checkpoint in ckpts.list()] == [1, 0]
        assert ckpts.verify(1).ok


# While its compressed blobs are being written; and with all of them durable, and nothing registered.
@pytest.mark.parametrize("point", ["fragment.synced=kill@2", "seal.confirmed=kill"])
def test_a_compressed_save_is_carried_out_by_the_next_run(
    armed_cluster: LocalCluster, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "RETURN_SECONDS", 60.0)  # on a busy machine this process would send it itself
    state = {str(number): np.arange(number, number + (5 << 20), dtype=np.int32) // 9 for number in range(3)}
    with armed_cluster.connect() as client:
        ckpts = client.checkpoints(f"compressed-{random_id()[:6]}", compress="zstd")
        arm(armed_cluster, point)
        saving = ckpts.save(1, state)
        armed_cluster.nodes[0].wait_for_death()
        before = {path.name for path in armed_cluster.fragments()}
        restart(armed_cluster)
        saved = saving.wait(timeout=30)
        assert saved.stored_bytes < saved.size_bytes // 2
        assert same(ckpts.restore(), state)
        # P11: what was durable before was not stored twice.
        [shard] = ckpts.shards(1)
        names = {path.name for path in armed_cluster.fragments()}
        assert before <= names
        assert names - before <= {f"{blob.id}.0" for blob in shard.blobs}
        if point.startswith("seal"):
            assert names == before
