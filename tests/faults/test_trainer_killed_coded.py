"""kill -9 of the trainer the moment ``save`` has returned, in a pool at L3: what was sealed is coded, committed and
whole, also if the daemon that has it is killed on the way.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sdrs
from sdrs_core.codes import MIRROR
from sdrs_core.ids import random_id
from tests.support.cluster import LocalCluster, running_cluster, staging_dir
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

SIZE_BYTES = 24 * MIB
SEED = 11

TRAINER = """
import os, signal, sys
import sdrs
from tests.support.states import make_state
url, job, size_bytes, seed = sys.argv[1:]
sdrs.connect(url).checkpoints(job, pool="coded").save(step=1, state=make_state(int(seed), int(size_bytes)))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("coded")
    settings = {"settle_seconds": 0.5, "repair_after_seconds": 1, "repair_interval_seconds": 0.5}
    environment = {"SDRS_FAULT_POINTS": str(folder / "points")}
    with running_cluster(folder, node_count=3, controller=settings, environment=environment) as cluster:
        with cluster.connect() as client:
            client.create_pool("coded", "L3", ec="2+1")
        yield cluster


def arm(cluster: LocalCluster, points: str) -> None:
    (cluster.folder / "points").write_text(points)


def kill_after_save(cluster: LocalCluster, job: str) -> None:
    arguments = [cluster.url, job, str(SIZE_BYTES), str(SEED)]
    ended = subprocess.run([sys.executable, "-c", TRAINER, *arguments], cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL


def check_whole(client: sdrs.Cluster, job: str) -> None:
    """It is committed at L3, comes back from its fragments bit for bit, and has all of these."""
    ckpts = client.checkpoints(job)
    found = wait_for(ckpts.latest, "the dead trainer's save to be committed", 60)
    assert (found.step, str(found.level)) == (1, "L3")
    assert same(ckpts.restore(), make_state(SEED, SIZE_BYTES))
    wait_for(lambda: not ckpts.latest().degraded, "what it lacks to be made", 60)
    (shard,) = ckpts.shards(1)
    assert any(blob.code == "2+1" for blob in shard.blobs)
    for blob in shard.blobs:
        wanted = 2 if blob.code == MIRROR else 3
        assert len({holder.node_id for holder in blob.holders}) >= wanted
    assert ckpts.verify(1).ok


def test_a_trainer_killed_right_after_save_gets_its_checkpoint_coded(cluster: LocalCluster) -> None:
    job = f"killed-{random_id()[:6]}"
    kill_after_save(cluster, job)
    with cluster.connect() as client:
        check_whole(client, job)


# In the middle of the first stripes; all fragments durable and nothing registered; registered and not recorded as such.
@pytest.mark.parametrize("point", ["stripe.encoded=kill@3", "seal.confirmed=kill", "stage.carried=kill"])
def test_trainer_and_daemon_killed_do_not_cost_a_coded_checkpoint(cluster: LocalCluster, point: str) -> None:
    job = f"both-{random_id()[:6]}"
    daemon = cluster.nodes[0]
    with cluster.connect() as client:
        wait_for(lambda: not any(group.problem for group in client.groups("coded")), "the pool to be whole", 60)
        arm(cluster, point)
        kill_after_save(cluster, job)
        daemon.wait_for_death()
        assert list(staging_dir(cluster.folder, daemon.name).glob("*.seal"))
        arm(cluster, "")
        daemon.start()
        check_whole(client, job)
