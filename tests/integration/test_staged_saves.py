"""Saves that are staged with the daemon of this host, on real daemons."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sdrs
from sdrs import errors
from sdrs_core.ids import random_id
from tests.support.cluster import LocalCluster, running_cluster, staging_dir
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

# Saves once and is killed in the next instruction.
TRAINER = """
import os, signal, sys
import sdrs
from tests.support.states import make_state
url, job, pool, attempt, rank, world_size = sys.argv[1:]
ckpts = sdrs.connect(url).checkpoints(job, pool=pool, attempt=attempt)
state = make_state(7, 24 << 20)
ckpts.save(step=1, state=state, rank=int(rank), world_size=int(world_size))
os.kill(os.getpid(), signal.SIGKILL)
"""
# For each node: one segment for what the tests save, and no second one.
ROOM_BYTES = 40 * MIB


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("staged")
    with running_cluster(
        folder, node_count=2, controller={"save_ttl_seconds": 1}, node={"staging_bytes": ROOM_BYTES}
    ) as cluster:
        with cluster.connect() as client:
            client.create_pool("mirrored", "L2", mirrors=2)
        yield cluster


def segments(cluster: LocalCluster, node: str = "node-1") -> list[Path]:
    return sorted(staging_dir(cluster.folder, node).glob("*.segment"))


def is_all_kept(client: sdrs.Cluster) -> bool:
    """Whether the processes that had segments of the first node are gone, by its word: they are kept to be read."""
    staging = client.node_status("node-1").node.staging
    return staging is not None and 0 < staging.kept_bytes == staging.taken_bytes


def staged_in(cluster: LocalCluster, job: str, node: str = "node-1") -> list[str]:
    """The saves of the job that the daemon brought in."""
    lines = map(json.loads, (cluster.folder / f"{node}.log").read_text().splitlines())
    return [line["save"] for line in lines if line["event"] == "staged_save_in" and f'"{job}"' in line["save"]]


def job_name() -> str:
    return f"job-{random_id()[:8]}"


def kill_after_save(cluster: LocalCluster, job: str, *, rank: int = 0, world_size: int = 1) -> None:
    arguments = [cluster.url, job, "mirrored", "run:1", str(rank), str(world_size)]
    ended = subprocess.run([sys.executable, "-c", TRAINER, *arguments], cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL


def test_a_trainer_killed_right_after_save_still_gets_its_checkpoint(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        ckpts = client.checkpoints(job_name(), pool="mirrored")
        kill_after_save(cluster, ckpts.job)
        found = wait_for(ckpts.latest, "the dead trainer's save to be committed")
        assert (found.step, str(found.level)) == (1, "L2")
        assert same(ckpts.restore(), make_state(7, 24 * MIB))
        (left,) = segments(cluster)  # to be read; another process that needs the room gets another one
        client.checkpoints(job_name()).save(1, make_state(8, 24 * MIB)).wait()
        (other,) = segments(cluster)
        assert other != left


def test_a_dead_trainers_save_waits_for_the_other_ranks(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        ckpts = client.checkpoints(job_name(), pool="mirrored", attempt="run:1")
        kill_after_save(cluster, ckpts.job, rank=0, world_size=2)
        wait_for(lambda: staged_in(cluster, ckpts.job), "rank 0 to be in")
        time.sleep(3)  # three times as long as a save lives that nobody renews
        ckpts.save(step=1, state={"rank": 1}, rank=1, world_size=2).wait(timeout=30)
        assert same(ckpts.restore(rank=0), make_state(7, 24 * MIB))
        assert ckpts.restore(rank=1) == {"rank": 1}


def test_a_segment_is_used_again_and_the_state_may_change_at_once(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        ckpts = client.checkpoints(job_name())
        state = make_state(1, 24 * MIB)
        inodes = set()
        for step in range(3):
            state["weights"][:] = step
            saving = ckpts.save(step, state)
            state["weights"][:] = 99
            saving.wait()
            inodes |= {path.stat().st_ino for path in segments(cluster)}
            assert saving.progress() == sdrs.Progress(
                saving.progress().total_bytes, saving.progress().total_bytes, sdrs.Level.L1
            )
        assert len(inodes) == 1
        for step in range(3):
            assert (ckpts.restore(step=step)["weights"] == step).all()
    with cluster.connect() as client:
        wait_for(lambda: is_all_kept(client), "it to be nobody's")


def test_without_room_a_save_is_streamed_and_that_is_said_once(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.connect() as client, caplog.at_level(logging.INFO, logger="sdrs"):
        ckpts = client.checkpoints(job_name())
        for step in range(2):
            ckpts.save(step, make_state(step, 48 * MIB)).wait()
            assert same(ckpts.restore(step=step), make_state(step, 48 * MIB))
        assert len([record for record in caplog.records if "has no room" in record.message]) == 1
        assert not staged_in(cluster, ckpts.job)


def test_a_daemon_that_is_not_the_primary_sends_the_shard_to_who_is(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        group = next(info.id for info in client.groups("mirrored") if info.primary == "node-1")
        client.switchover(group, to="node-2")
        try:
            ckpts = client.checkpoints(job_name(), pool="mirrored")
            state = {"large": make_state(3, 20 * MIB), "second": make_state(4, 17 * MIB)["weights"]}
            saving = ckpts.save(1, state)
            saving.wait()
            assert staged_in(cluster, ckpts.job)  # by node-1, which has the segment
            holders = {holder.node_id for shard in ckpts.shards(1) for b in shard.blobs for holder in b.holders}
            assert holders == {"node-1", "node-2"}
            assert same(ckpts.restore(), state)
            assert saving.progress().sent_bytes == saving.progress().total_bytes
        finally:
            client.switchover(group, to="node-1")


def test_when_too_many_saves_are_under_way_the_policy_decides(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.connect() as client:
        blocking, skipping, failing = (
            client.checkpoints(job_name(), max_in_flight=1, on_full=on_full) for on_full in ("block", "skip", "fail")
        )
        small = make_state(0, 2 * MIB)
        for ckpts in (blocking, skipping, failing):
            ckpts.save(0, small).wait()
        cluster.controller.freeze()  # nothing comes in
        try:
            under_way = [ckpts.save(1, small) for ckpts in (blocking, skipping, failing)]
            assert not any(saving.done() for saving in under_way)
            with caplog.at_level(logging.WARNING, logger="sdrs"):
                skipped = skipping.save(2, small)
            assert skipped.skipped
            assert skipped.done()
            assert skipping.skipped_count == 1
            assert f'step 2 of job "{skipping.job}" was skipped' in caplog.text
            with pytest.raises(errors.RefusedError, match="1 saves are under way"):
                failing.save(2, small)
            blocked: list[sdrs.Saving] = []
            thread = threading.Thread(target=lambda: blocked.append(blocking.save(2, small)))
            thread.start()
            thread.join(0.3)
            assert thread.is_alive()
        finally:
            cluster.controller.thaw()
        thread.join(30)
        blocked[0].wait(timeout=30)
        for saving in under_way:
            assert not saving.skipped
            saving.wait(timeout=30)
        with pytest.raises(errors.SaveSkippedError, match="step 2"):
            skipped.wait()
        skipping.save(3, small).wait(timeout=30)  # what was skipped is not raised again
        assert [c.step for c in skipping.list()] == [3, 1, 0]
        assert [c.step for c in failing.list()] == [1, 0]
        assert [c.step for c in blocking.list()] == [2, 1, 0]


def test_room_that_an_earlier_save_will_give_back_is_waited_for_or_not(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        ckpts = client.checkpoints(job_name(), on_full="skip")
        state = make_state(5, 24 * MIB)
        ckpts.save(0, state).wait()
        cluster.controller.freeze()
        try:
            first = ckpts.save(1, state)
            assert ckpts.save(2, state).skipped
        finally:
            cluster.controller.thaw()
        first.wait(timeout=30)
        assert not ckpts.save(3, state).skipped


def test_a_save_that_fails_is_told_and_by_policy_never_raised(cluster: LocalCluster) -> None:
    told: list[tuple[int, BaseException]] = []

    def on_error(saving: sdrs.Saving, error: BaseException) -> None:
        told.append((saving.step, error))
        raise ZeroDivisionError("a callback that is itself broken")

    with cluster.connect() as client:
        raising = client.checkpoints(job_name(), pool="nowhere", on_error=on_error)
        saving = raising.save(1, make_state(1))
        wait_for(lambda: told, "the callback")
        assert told[0][0] == 1
        assert told[0][1] is saving.outcome.exception()
        with pytest.raises(errors.NotFoundError, match="nowhere"):
            raising.save(2, make_state(2))
        told.clear()
        quiet = client.checkpoints(job_name(), pool="nowhere", on_error=on_error, raise_errors=False)
        savings = [quiet.save(step, make_state(step)) for step in (1, 2)]
        wait_for(lambda: len(told) == 2, "both to be told")
        savings.append(quiet.save(3, make_state(3)))
        assert all(isinstance(s.exception(), errors.NotFoundError) for s in savings[:2])
        with pytest.raises(errors.NotFoundError):
            savings[0].wait()
        with pytest.raises(errors.InvalidArgumentError):
            quiet.save(-1, {})  # the caller's mistake is
        with pytest.raises(errors.InvalidArgumentError, match="on_full"):
            client.checkpoints("x", on_full="explode")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgumentError, match="max_in_flight"):
            client.checkpoints("x", max_in_flight=0)


def test_a_forked_child_does_not_keep_its_parents_segments(cluster: LocalCluster) -> None:
    script = """
import os, signal, sys, time
import sdrs
sdrs.connect(sys.argv[1]).checkpoints(sys.argv[2]).save(1, {"x": bytes(4 << 20)}).wait()
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script, cluster.url, job_name()]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        with cluster.connect() as client:
            wait_for(lambda: is_all_kept(client), "the segments of the killed parent to be nobody's", seconds=10)
    finally:
        os.kill(int(ended.stdout), signal.SIGKILL)
