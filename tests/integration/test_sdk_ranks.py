"""Several ranks: one checkpoint or none, and one generation for all (P1, P16)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sdrs
from sdrs import errors
from tests.support.cluster import LocalCluster, free_port
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit

RANKS = range(3)


def on_all_ranks(work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(RANKS)) as pool:
        return list(pool.map(work, RANKS))


def save_all(checkpoints: sdrs.Checkpoints, step: int) -> None:
    savings = [checkpoints.save(step, make_state(10 * step + rank), rank=rank, world_size=len(RANKS)) for rank in RANKS]
    assert {saving.wait().save_id for saving in savings} == {checkpoints.get(step).save_id}


def test_a_checkpoint_appears_when_all_ranks_are_in(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("together", attempt="run:1")
        savings = [checkpoints.save(1, make_state(rank), rank=rank, world_size=3) for rank in (0, 2)]
        with pytest.raises(errors.DeadlineExceededError, match="can be waited for again"):
            savings[0].wait(timeout=0.5)
        assert not savings[0].done()
        assert checkpoints.list() == []
        savings.append(checkpoints.save(1, make_state(1), rank=1, world_size=3))
        assert {saving.wait().state for saving in savings} == {"committed"}
        for rank in RANKS:
            assert same(checkpoints.restore(rank=rank), make_state(rank))
        assert [shard.rank for shard in checkpoints.shards(1)] == [0, 1, 2]


def test_ranks_must_agree_on_their_number(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("disagreeing", attempt="run:1")
        first = checkpoints.save(1, make_state(0), rank=0, world_size=2)
        with pytest.raises(errors.DeadlineExceededError):
            first.wait(timeout=0.3)
        with pytest.raises(errors.WorldSizeMismatchError, match="all ranks of a save must agree"):
            checkpoints.save(1, make_state(1), rank=1, world_size=3).wait()
        checkpoints.save(1, make_state(1), rank=1, world_size=2).wait()
        first.wait()


def test_a_hundred_ranks_of_one_process_commit_one_checkpoint(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("hundred", attempt="run:1")
        savings = [checkpoints.save(1, {"rank": rank}, rank=rank, world_size=100) for rank in range(100)]
        assert {saving.wait(timeout=60).step for saving in savings} == {1}
        assert checkpoints.restore(rank=73) == {"rank": 73}


def test_all_ranks_restore_the_same_generation_and_resume_from_it(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        save_all(cluster.checkpoints("rounds", attempt="run:1"), 1)
        save_all(cluster.checkpoints("rounds", attempt="run:1"), 2)
        second = cluster.checkpoints("rounds", attempt="run:2")
        states = on_all_ranks(lambda rank: second.restore(rank=rank, world_size=3))
        assert all(same(state, make_state(20 + rank)) for rank, state in zip(RANKS, states, strict=True))
        # Going back to an older step on purpose sets the later one aside.
        third = cluster.checkpoints("rounds", attempt="run:3")
        on_all_ranks(lambda rank: third.restore(step=1, rank=rank, world_size=3, resume=True))
        assert [checkpoint.step for checkpoint in third.list()] == [1]
        assert {(c.step, str(c.state)) for c in third.list(all_states=True)} == {(1, "committed"), (2, "set_aside")}


@pytest.mark.filterwarnings("ignore::sdrs.RestoreWarning")
def test_one_rank_that_cannot_restore_takes_all_back_one_generation(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        first = cluster.checkpoints("back", attempt="run:1")
        save_all(first, 1)
        save_all(first, 2)
        bad = first.shards(2)[1].blobs[0]
        (fragment,) = [path for path in shared_cluster.fragments() if bad.id in path.name]
        flip_bit(fragment, 4096 + MIB)
        second = cluster.checkpoints("back", attempt="run:2")
        states = on_all_ranks(lambda rank: second.restore(rank=rank, world_size=3))
        assert all(same(state, make_state(10 + rank)) for rank, state in zip(RANKS, states, strict=True))

        # Asked for by its step, the bad generation fails on all ranks.
        third = cluster.checkpoints("back", attempt="run:3")

        def fails(rank: int) -> type[BaseException]:
            with pytest.raises((errors.CorruptDataError, errors.NotRestorableError)) as caught:
                third.restore(step=2, rank=rank, world_size=3)
            return caught.type

        assert errors.CorruptDataError in on_all_ranks(fails)


def test_files_of_a_round_that_fails_are_not_put_in_place(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    with shared_cluster.connect() as cluster:
        first = cluster.checkpoints("files-back", attempt="run:1")
        for step in (1, 2):
            savings = []
            for rank in RANKS:
                source = tmp_path / f"source-{step}-{rank}"
                source.mkdir()
                (source / f"only-in-{step}").write_bytes(bytes([rank]) * (2 * MIB))
                savings.append(first.save_files(step, source, rank=rank, world_size=3))
            for saving in savings:
                saving.wait()
        bad = first.shards(2)[1].blobs[0]
        (fragment,) = [path for path in shared_cluster.fragments() if bad.id in path.name]
        fragment.unlink()
        second = cluster.checkpoints("files-back", attempt="run:2")
        with pytest.warns(sdrs.RestoreWarning, match="step 2"):
            on_all_ranks(lambda rank: second.restore_files(tmp_path / f"dest-{rank}", rank=rank, world_size=3))
        for rank in RANKS:
            assert [path.name for path in (tmp_path / f"dest-{rank}").iterdir()] == ["only-in-1"]


def test_another_number_of_ranks_is_refused_instead_of_restoring_a_part(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        save_all(cluster.checkpoints("fewer", attempt="run:1"), 1)
        second = cluster.checkpoints("fewer", attempt="run:2")

        def restore(rank: int) -> None:
            with pytest.raises(errors.SdrsError) as caught:
                second.restore(rank=rank, world_size=2)
            assert isinstance(caught.value, errors.WorldSizeMismatchError | errors.NotRestorableError)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(restore, range(2)))


def test_each_start_of_torchrun_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    # Into files: what ranks print at the same moment may share a line.
    script.write_text(
        "import os, pathlib\n"
        "from sdrs.attempt import resolve_attempt\n"
        "pathlib.Path(os.environ['RANK']).write_text(resolve_attempt(None, 'job', 2).run)\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    environment = {key: value for key, value in os.environ.items() if key != "SDRS_ATTEMPT" and "SLURM" not in key}
    starts = []
    for _ in range(2):
        ran = subprocess.run(
            [*launcher, script], env=environment, capture_output=True, text=True, timeout=100, cwd=tmp_path
        )
        assert ran.returncode == 0, ran.stderr
        first, second = ((tmp_path / rank).read_text() for rank in "01")
        assert first == second
        starts.append(first)
    assert starts[0] != starts[1]
