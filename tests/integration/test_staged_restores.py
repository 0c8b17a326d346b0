"""Restores from memory that still has what was staged, on real daemons; and from disks when that is not so."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sdrs
from sdrs_core.ids import random_id
from tests.support.cluster import LocalCluster, running_cluster, staging_dir
from tests.support.program import Program
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("staged_first")

# For each node: two segments for what the tests save, and no third one.
ROOM_BYTES = 40 * MIB
SIZE_BYTES = 17 * MIB

# Saves, waits until that is committed, and is killed.
TRAINER = """
import os, signal, sys
import sdrs
from tests.support.states import make_state
url, job, pool, size_bytes = sys.argv[1:]
sdrs.connect(url).checkpoints(job, pool=pool).save(step=1, state=make_state(7, int(size_bytes))).wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Nobody looks after what these tests do to fragments.
    quiet = {"repair_interval_seconds": 3600, "suspect_after_seconds": 10}
    with running_cluster(
        tmp_path_factory.mktemp("staged"), node_count=3, controller=quiet, node={"staging_bytes": ROOM_BYTES}
    ) as cluster:
        with cluster.connect() as client:
            client.create_pool("one", "L1")
            client.create_pool("mirrored", "L2", mirrors=2)
            client.create_pool("coded", "L3", ec="2+1")
        yield cluster


def job_name() -> str:
    return f"job-{random_id()[:8]}"


def fragments_of(cluster: LocalCluster, ckpts: sdrs.Checkpoints, step: int) -> list[Path]:
    """All of the checkpoint's files, on all disks."""
    named = {blob.id for shard in ckpts.shards(step) for blob in shard.blobs}
    found = [path for path in cluster.fragments() if path.name.split(".")[0] in named]
    assert found
    return found


def lose_fragments(cluster: LocalCluster, ckpts: sdrs.Checkpoints, step: int) -> None:
    for path in fragments_of(cluster, ckpts, step):
        path.unlink()


def kept_bytes(client: sdrs.Cluster) -> int:
    return sum(node.staging.kept_bytes for node in client.nodes() if node.staging is not None)


def segments(cluster: LocalCluster) -> list[Path]:
    return [path for node in cluster.nodes for path in staging_dir(cluster.folder, node.name).glob("*.segment")]


def kill_after_commit(cluster: LocalCluster, job: str, pool: str, size_bytes: int = SIZE_BYTES) -> None:
    arguments = [cluster.url, job, pool, str(size_bytes)]
    ended = subprocess.run([sys.executable, "-c", TRAINER, *arguments], cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("pool", ["one", "mirrored", "coded"])
def test_without_any_fragment_on_disk_the_staged_copy_serves_every_kind_of_read(
    cluster: LocalCluster, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = make_state(1, SIZE_BYTES)
    with cluster.connect() as client, caplog.at_level(logging.INFO, logger="sdrs"):
        ckpts = client.checkpoints(job_name(), pool=pool)
        ckpts.save(1, state).wait()
        lose_fragments(cluster, ckpts, 1)
        assert same(ckpts.restore(), state)
        into = {"weights": np.zeros_like(state["weights"]), "layers": state["layers"], "seed": 0}
        ckpts.restore(into=into)
        assert same(into["weights"], state["weights"])
        shard = ckpts.open(1)
        assert shard.read("weights", 3 * MIB - 5, 3 * MIB + 5) == state["weights"][3 * MIB - 5 : 3 * MIB + 5].tobytes()
        assert "from the memory of this host" in caplog.text
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert client.info().damaged_count == 0


def test_parts_that_are_stored_by_an_earlier_checkpoint_are_read_from_memory_too(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        ckpts = client.checkpoints(job_name(), pool="coded")
        state = {"frozen": make_state(1, SIZE_BYTES)["weights"], "step": 0}
        ckpts.save(1, state).wait()
        assert ckpts.save(2, state | {"step": 1}).wait().stored_bytes < MIB
        lose_fragments(cluster, ckpts, 2)
        lose_fragments(cluster, ckpts, 1)
        assert same(ckpts.restore(step=2), state | {"step": 1})


def test_what_the_next_save_overwrote_is_read_from_disks_and_is_no_damage(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.connect() as client, caplog.at_level(logging.INFO, logger="sdrs"):
        ckpts = client.checkpoints(job_name(), pool="coded")
        for step in (1, 2):
            ckpts.save(step, make_state(step, SIZE_BYTES)).wait()  # one after the other: in the same segment
        assert same(ckpts.restore(step=1), make_state(1, SIZE_BYTES))
        assert "from the memory of this host" not in caplog.text
        # As the owner does while it copies its next state, of which it tells nobody: from the middle of the blob on.
        for path in segments(cluster):
            with open(path, "r+b") as segment:
                os.pwrite(segment.fileno(), b"\1" * (5 * MIB), 7 * MIB)
        assert same(ckpts.restore(step=2), make_state(2, SIZE_BYTES))
        assert "from the memory of this host" in caplog.text  # as far as it was good
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert client.info().damaged_count == 0


def test_a_process_that_takes_no_staging_reads_disks(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    with (
        cluster.connect() as client,
        cluster.connect(staging_bytes=0) as other,
        caplog.at_level(logging.INFO, logger="sdrs"),
    ):
        ckpts = client.checkpoints(job_name(), pool="mirrored")
        ckpts.save(1, make_state(1, SIZE_BYTES)).wait()
        assert same(other.checkpoints(ckpts.job).restore(), make_state(1, SIZE_BYTES))
        assert "from the memory of this host" not in caplog.text


def test_what_a_killed_trainer_left_in_memory_is_read_until_others_need_the_room(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        killed, other = client.checkpoints(job_name(), pool="coded"), client.checkpoints(job_name(), pool="coded")
        kill_after_commit(cluster, killed.job, "coded")
        found = fragments_of(cluster, killed, 1)
        hidden = {path: cluster.folder / f"hidden-{number}" for number, path in enumerate(found)}
        for path in found:
            path.rename(hidden[path])
        assert same(killed.restore(), make_state(7, SIZE_BYTES))
        for path in found:
            hidden[path].rename(path)
        wait_for(lambda: kept_bytes(client) >= SIZE_BYTES, "it to be told")
        # More than is left beside it: it goes, the save is staged all the same, and disks have what was there.
        before = segments(cluster)
        other.save(1, make_state(2, 36 * MIB)).wait()
        (after,) = segments(cluster)
        assert after not in before
        assert same(killed.restore(), make_state(7, SIZE_BYTES))
        assert same(other.restore(), make_state(2, 36 * MIB))


def test_staging_is_shown_with_what_is_under_way(cluster: LocalCluster) -> None:
    program = Program(cluster.url)
    with cluster.connect() as client:
        ckpts = client.checkpoints(job_name(), pool="mirrored")
        group = next(group for group in client.groups("mirrored") if group.primary == "node-1")
        member = next(node for node in cluster.nodes if node.name == group.members[1])
        member.freeze()  # nothing of it gets in
        try:
            saving = ckpts.save(1, make_state(1, SIZE_BYTES))

            def shown() -> dict[str, Any]:
                return dict(program.json("node", "show", "node-1")["staging"])

            wait_for(lambda: shown()["waiting_count"] == 1 and shown()["oldest_waiting_ms"] > 0, "it to be told")
            assert shown()["budget_bytes"] == ROOM_BYTES
            assert SIZE_BYTES <= shown()["taken_bytes"] <= ROOM_BYTES
            assert "1 save under way, the oldest for" in program.run("node", "show", "node-1")
            assert "of 120.0 MiB" in program.run("status")
        finally:
            member.thaw()
        saving.wait(timeout=30)
        wait_for(lambda: shown()["waiting_count"] == 0, "the end to be told")
        assert "no save under way" in program.run("status")
