"""DataLoader workers fork, whatever the SDK is doing in the parent."""

from __future__ import annotations

import os
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
            assert same(checkpoints.restore(), make_state(1))
            cluster.checkpoints(f"forks-child-{os.getpid()}").save(1, make_state(2)).wait(timeout=20)
            with pytest.raises(errors.RefusedError, match="forked from"):
                waiting.wait()

        for _ in range(8):
            saving = checkpoints.save(100 + _, make_state(_, 8 * MIB))
            assert in_child(work) == ""
            saving.wait()
        ranks.save(1, {"rank": 1}, rank=1, world_size=2).wait()
        assert waiting.wait().world_size == 2
        assert same(checkpoints.restore(step=104), make_state(4, 8 * MIB))
