"""kill -9 of the trainer: nothing half-saved is visible, the next save works, leftovers are collected."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sdrs import errors
from sdrs_core.ids import random_id
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

# Saves in a loop until it is killed, and says what was acknowledged.
TRAINER = """
import sys
import sdrs
from tests.support.states import make_state
with sdrs.connect(sys.argv[1], staging_bytes=int(sys.argv[3])) as cluster:
    ckpts = cluster.checkpoints(sys.argv[2])
    step = 0 if ckpts.latest() is None else ckpts.latest().step
    while True:
        step += 1
        ckpts.save(step=step, state=make_state(step, 24 << 20)).wait()
        print(step, flush=True)
"""


def _start_trainer(cluster: LocalCluster, job: str, staging_bytes: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TRAINER, cluster.url, job, str(staging_bytes)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_a_trainer_killed_at_random_moments_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    settings = {"grace_seconds": 0, "save_ttl_seconds": 1}
    with running_cluster(tmp_path, node_count=2, controller=settings) as cluster, cluster.connect() as client:
        ckpts = client.checkpoints("killed")
        acknowledged: list[int] = []
        for staging_bytes in (64 * MIB, MIB, MIB):
            with _start_trainer(cluster, "killed", staging_bytes) as trainer:
                assert trainer.stdout
                acknowledged.append(int(trainer.stdout.readline()))
                time.sleep(moments.uniform(0, 0.15))  # the moment of death, not a wait
                trainer.kill()
                acknowledged += [int(line) for line in trainer.stdout]
            listed = {checkpoint.step for checkpoint in ckpts.list()}
            assert set(acknowledged) <= listed
            for step in sorted(listed)[-3:]:
                assert same(ckpts.restore(step=step), make_state(step, 24 * MIB))
        # What the killed saves left behind goes away by itself, and nothing else does.
        wait_for(lambda: client.info().pending_save_count == 0, "the abandoned save to expire")

        def named() -> set[str]:
            # What was sealed when its trainer died is committed by the daemon, perhaps only now.
            steps = [checkpoint.step for checkpoint in ckpts.list()]
            return {blob.id for step in steps for shard in ckpts.shards(step) for blob in shard.blobs}

        wait_for(lambda: {path.name.split(".")[0] for path in cluster.fragments()} == named(), "the leftovers to go")
        for checkpoint in ckpts.list():
            assert ckpts.verify(checkpoint.step).ok


def test_half_of_the_ranks_of_a_dead_attempt_never_join_the_next_one(local_cluster: LocalCluster) -> None:
    with local_cluster.connect() as client:
        job = f"ranks-{random_id()[:6]}"
        first = client.checkpoints(job, attempt="run:1")
        superseded = first.save(step=5, state=make_state(1), rank=0, world_size=2)
        wait_for(lambda: client.info().pending_save_count == 1, "rank 0 of the first attempt to begin")
        second = client.checkpoints(job, attempt="run:2")
        second.save(step=5, state=make_state(2), rank=1, world_size=2)
        with pytest.raises(errors.StaleAttemptError, match="attempt 2 took over"):
            superseded.wait()
        assert second.list() == []
        second.save(step=5, state=make_state(3), rank=0, world_size=2).wait()
        assert same(second.restore(step=5, rank=0), make_state(3))
        assert same(second.restore(step=5, rank=1), make_state(2))
