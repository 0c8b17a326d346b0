"""Saves through the SDK, on real daemons."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import sdrs
from sdrs import errors
from tests.support.cluster import LocalCluster, free_port
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for


def test_a_saved_state_comes_back_and_is_listed(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("basic")
        saving = checkpoints.save(step=10, state=make_state(1))
        done = saving.wait("L1")
        assert (done.job, done.step, str(done.level), done.world_size) == ("basic", 10, "L1", 1)
        assert saving.done()
        assert saving.exception() is None
        assert saving.progress() == sdrs.Progress(done.size_bytes, done.size_bytes, sdrs.Level.L1)
        checkpoints.save(step=20, state=make_state(2)).wait()
        assert [checkpoint.step for checkpoint in checkpoints.list()] == [20, 10]
        assert checkpoints.latest() == checkpoints.get(20)
        assert same(checkpoints.restore(), make_state(2))
        assert same(checkpoints.restore(step=10), make_state(1))
        assert "basic" in [job.name for job in cluster.jobs()]


def test_the_state_may_change_as_soon_as_save_returns(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("changing")
        state = {"weights": np.zeros(8 * MIB, np.uint8)}
        savings = []
        for step in range(5):
            state["weights"][:] = step
            savings.append(checkpoints.save(step, state))
        state["weights"][:] = 99
        for step, saving in enumerate(savings):
            saving.wait()
            assert (checkpoints.restore(step=step)["weights"] == step).all()


def test_a_state_beyond_the_staging_memory_is_sent_from_where_it_lies(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect(staging_bytes=MIB) as cluster:
        checkpoints = cluster.checkpoints("live")
        state = make_state(3, 12 * MIB)
        saving = checkpoints.save(1, state)
        assert saving.progress().sent_bytes == saving.progress().total_bytes  # durable on its node already
        state["weights"][:] = 0
        saving.wait()
        assert same(checkpoints.restore(), make_state(3, 12 * MIB))


@pytest.mark.parametrize("staging_bytes", [MIB, 64 * MIB], ids=["sent from where it lies", "staged"])
def test_progress_of_a_save_rises_to_all_its_bytes(
    shared_cluster: LocalCluster, tmp_path: Path, staging_bytes: int
) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(12 * MIB))
    with shared_cluster.connect(staging_bytes=staging_bytes) as cluster:
        checkpoints = cluster.checkpoints(f"progress-{staging_bytes}")
        for step, save in enumerate(
            [
                partial(checkpoints.save, state=make_state(4, 12 * MIB)),
                partial(checkpoints.save, state={"small": 1}),
                partial(checkpoints.save_files, path=tmp_path),
            ]
        ):
            seen: list[tuple[int, int]] = []
            done = save(step, progress=lambda sent, total, seen=seen: seen.append((sent, total))).wait()
            assert seen == sorted(seen)
            assert seen[-1] == (done.size_bytes, done.size_bytes)
            assert {total for _, total in seen} == {done.size_bytes}
            assert len(seen) > done.size_bytes // (4 * MIB)  # as it goes, not all at the end


def test_what_the_progress_of_a_save_raises_ends_it(shared_cluster: LocalCluster) -> None:
    def refuse(sent: int, total: int) -> None:
        raise ZeroDivisionError

    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("progress-raises")
        for step, state in enumerate([make_state(4, 2 * MIB), {"small": 1}]):
            with pytest.raises(ZeroDivisionError):
                checkpoints.save(step, state, progress=refuse).wait(timeout=30)
        assert checkpoints.list() == []


def test_saving_the_same_again_is_no_save_and_other_content_is_refused(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("again")
        first = checkpoints.save(1, make_state(1)).wait()
        assert checkpoints.save(1, make_state(1)).wait().save_id == first.save_id
        with pytest.raises(errors.AlreadyExistsError, match='step 1 of job "again"'):
            checkpoints.save(1, make_state(2)).wait()
        with pytest.raises(errors.AlreadyExistsError, match="holds state, this save brings files"):
            checkpoints.save_files(1, Path(__file__).parent).wait()
        assert same(checkpoints.restore(step=1), make_state(1))


def test_a_new_attempt_replaces_a_step_and_an_old_one_is_told_who_took_over(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        old = cluster.checkpoints("replaced", attempt="run:1")
        new = cluster.checkpoints("replaced", attempt="run:2")
        old.save(1, make_state(1)).wait()
        assert new.save(1, make_state(2)).wait().attempt == 2
        assert same(new.restore(step=1), make_state(2))
        with pytest.raises(errors.StaleAttemptError, match="superseded by attempt 2"):
            old.save(2, make_state(3)).wait()


def test_bad_arguments_raise_in_save_itself(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("arguments")
        with pytest.raises(errors.InvalidArgumentError, match="step -1"):
            checkpoints.save(-1, {})
        with pytest.raises(errors.InvalidArgumentError, match="rank 2 does not exist with world_size 2"):
            checkpoints.save(1, {}, rank=2, world_size=2)
        with pytest.raises(errors.AttemptRequiredError, match="SDRS_ATTEMPT"):
            checkpoints.save(1, {}, rank=0, world_size=2)
        with pytest.raises(TypeError, match="object"):
            checkpoints.save(1, {"model": {"layer": object()}})
        with pytest.raises(errors.InvalidArgumentError, match="valid name"):
            cluster.checkpoints("no/slashes")
        with pytest.raises(errors.InvalidArgumentError, match="level 'L9'"):
            cluster.checkpoints("arguments", level="L9")
        assert checkpoints.list() == []


def test_a_level_that_the_pool_does_not_promise_is_refused_at_once(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        saving = cluster.checkpoints("levels").save(1, make_state(1))
        with pytest.raises(errors.UnsupportedError, match="promises L1"):
            saving.wait("L2")
        assert saving.wait("L1").step == 1
        with pytest.raises(errors.UnsupportedError, match="promises L1"):
            cluster.checkpoints("levels", level="L3").save(2, make_state(1)).wait()
        with pytest.raises(errors.NotFoundError, match="nowhere"):
            cluster.checkpoints("levels", pool="nowhere").save(2, make_state(1)).wait()


def test_a_failure_that_nobody_waited_for_is_logged_and_raised_by_the_next_save(
    shared_cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("unseen", pool="nowhere")
        with caplog.at_level(logging.ERROR, logger="sdrs"):
            saving = checkpoints.save(1, make_state(1))
            wait_for(saving.done, "the save to fail")
            wait_for(lambda: 'step 1 of job "unseen" was not saved' in caplog.text, "the log to tell")
        cluster.checkpoints("unseen-other").save(1, {"other": "histories go on"}).wait()
        with pytest.raises(errors.NotFoundError, match="nowhere") as caught:
            checkpoints.save(2, make_state(2))
        assert any("nobody had waited" in note for note in caught.value.__notes__)
        # Seen once: not raised again, and not by close.
        assert isinstance(saving.exception(), errors.NotFoundError)


def test_close_waits_for_saves_under_way_and_raises_what_failed(shared_cluster: LocalCluster) -> None:
    cluster = shared_cluster.connect()
    saving = cluster.checkpoints("closing").save(1, make_state(1, 16 * MIB))
    cluster.close()
    assert saving.done()
    assert saving.wait().step == 1
    with pytest.raises(errors.RefusedError, match="connect again"):
        cluster.nodes()
    failing = shared_cluster.connect()
    failing.checkpoints("closing", pool="nowhere").save(2, {})
    with pytest.raises(errors.NotFoundError, match="nowhere"):
        failing.close()


def test_an_exiting_interpreter_waits_for_saves_under_way(shared_cluster: LocalCluster) -> None:
    script = """
import sys, sdrs
from tests.support.states import make_state
sdrs.connect(sys.argv[1]).checkpoints("exiting").save(1, make_state(1, 32 << 20))
"""
    subprocess.run([sys.executable, "-c", script, shared_cluster.url], check=True, cwd=Path(__file__).parents[2])
    with shared_cluster.connect() as cluster:
        assert same(cluster.checkpoints("exiting").restore(), make_state(1, 32 * MIB))


def test_an_exiting_interpreter_does_not_wait_for_lost_ranks_forever(shared_cluster: LocalCluster) -> None:
    script = """
import sys, sdrs
from sdrs.save import commits
commits.MAX_WAIT_MS, commits.EXIT_SECONDS = 300, 0.5
sdrs.connect(sys.argv[1]).checkpoints("lost-ranks", attempt="run:1").save(1, {}, rank=0, world_size=2)
"""
    command = [sys.executable, "-c", script, shared_cluster.url]
    ended = subprocess.run(command, check=True, timeout=30, capture_output=True, text=True)
    assert "was not saved: the process ended before step 1" in ended.stderr
    assert "1 of 2 ranks were in" in ended.stderr


def test_saves_from_several_threads_share_the_staging_memory(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect(staging_bytes=8 * MIB) as cluster:
        failures: list[BaseException] = []

        def train(number: int) -> None:
            try:
                checkpoints = cluster.checkpoints(f"threads-{number}")
                for step in range(4):
                    checkpoints.save(step, make_state(step, 3 * MIB))
                wait_for(lambda: len(checkpoints.list()) == 4, "all steps to be committed")
                assert same(checkpoints.restore(step=2), make_state(2, 3 * MIB))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_pools_are_made_changed_and_deleted(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        made = cluster.create_pool("nightly", keep_last=3)
        assert (made.pool.name, str(made.pool.level), made.pool.retention.keep_last) == ("nightly", "L1", 3)
        cluster.checkpoints("pooled", pool="nightly").save(1, {"x": 1}).wait()
        assert cluster.pool("nightly").checkpoint_count == 1
        assert {group.primary for group in cluster.pool("nightly").groups} == {node.id for node in cluster.nodes()}
        assert cluster.update_pool("nightly", keep_last=0, max_age_seconds=60).pool.retention.max_age_seconds == 60
        with pytest.raises(errors.RefusedError, match=r"needs 6 failure domains for 4\+2, it has 2: add 4 nodes"):
            cluster.create_pool("coded", "L3", ec="4+2")
        with pytest.raises(errors.RefusedError, match="needs 3 failure domains"):
            cluster.create_pool("mirrored", "L2", mirrors=3)
        with pytest.raises(errors.InvalidArgumentError, match="4\\+2"):
            cluster.create_pool("coded", "L3", ec="4-2")
        with pytest.raises(errors.SdrsError):
            cluster.delete_pool("nightly")
        cluster.create_pool("empty")
        cluster.delete_pool("empty")
        assert {"default", "nightly"} == {info.pool.name for info in cluster.pools()}
        node, groups = cluster.node("node-1")
        assert node.id == "node-1"
        assert all(group.primary == "node-1" for group in groups)


def test_deleted_checkpoints_come_back_and_held_ones_stay(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("kept")
        checkpoints.save(1, make_state(1)).wait()
        assert checkpoints.hold(1).held
        with pytest.raises(errors.RefusedError, match="held"):
            checkpoints.delete(1)
        assert not checkpoints.release(1).held
        checkpoints.delete(1)
        assert checkpoints.latest() is None
        assert [c.state for c in checkpoints.list(all_states=True)] == ["deleted"]
        checkpoints.undelete(1)
        assert same(checkpoints.restore(), make_state(1))


def test_a_wrong_address_is_a_clear_error() -> None:
    url = f"sdrs://127.0.0.1:{free_port()}"
    with pytest.raises(errors.UnavailableError) as caught:
        sdrs.connect(url)
    assert url in str(caught.value)
    assert "sdrs up" in str(caught.value)
    with pytest.raises(errors.InvalidArgumentError, match="sdrs://host:port"):
        sdrs.connect("localhost:7070")


def test_the_next_controller_is_tried_when_one_does_not_answer(shared_cluster: LocalCluster) -> None:
    with sdrs.connect(f"sdrs://127.0.0.1:{free_port()},{shared_cluster.address}") as cluster:
        assert cluster.info().id == cluster.id
        cluster.checkpoints("second-controller").save(1, {"x": os.getpid()}).wait()
