"""DataLoader workers fork, whatever the SDK is doing in the parent."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

import pytest

from sdrs import errors
from tests.support.cluster import LocalCluster
from tests.support.states import MIB, make_state, same


def in_child(work: Callable[[], None]) -> str:
    """Run ``work`` in a forked child; empty, or what went wrong there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-3000:])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"the child died with {os.waitstatus_to_exitcode(status)}: {said}"


def test_a_forked_child_restores_and_saves_while_the_parent_saves(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("forks")
        checkpoints.save(1, make_state(1)).wait()
        # A save that waits for another rank: a long poll is under way at every fork.
        ranks = cluster.checkpoints("forks-ranks", attempt="run:1")
        waiting = ranks.save(1, {"rank": 0}, rank=0, world_size=2)

        def work() -> None:
            assert same(checkpoints.restore(step=1), make_state(1))
            cluster.checkpoints(f"forks-child-{os.getpid()}").save(1, make_state(2)).wait(timeout=20)
            with pytest.raises(errors.RefusedError, match="forked from"):
                waiting.wait()

        for step in range(100, 108):
            saving = checkpoints.save(step, make_state(step, 8 * MIB))
            assert in_child(work) == ""
            saving.wait()
        ranks.save(1, {"rank": 1}, rank=1, world_size=2).wait()
        assert waiting.wait().world_size == 2
        assert same(checkpoints.restore(step=104), make_state(104, 8 * MIB))


def test_forks_in_the_middle_of_calls_neither_crash_the_child_nor_disturb_the_parent(
    shared_cluster: LocalCluster,
) -> None:
    # No patience: a call that fails because of a fork is not repeated until it works.
    with shared_cluster.connect(timeout_seconds=0) as cluster:
        ranks = cluster.checkpoints("forks-often", attempt="run:1")
        waiting = ranks.save(1, {"rank": 0}, rank=0, world_size=2)
        over = threading.Event()
        failures: list[BaseException] = []

        def call_all_the_time() -> None:
            try:
                while not over.is_set():
                    cluster.info()
            except BaseException as error:
                failures.append(error)

        callers = [threading.Thread(target=call_all_the_time) for _ in range(2)]
        for caller in callers:
            caller.start()
        try:
            for _ in range(60):
                assert in_child(lambda: cluster.info() and None) == ""
        finally:
            over.set()
            for caller in callers:
                caller.join()
        assert failures == []
        ranks.save(1, {"rank": 1}, rank=1, world_size=2).wait()
        assert waiting.wait().world_size == 2
