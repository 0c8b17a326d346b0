"""Lightning trains, is killed, and goes on from SDRS as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from sdrs.errors import InvalidArgumentError, UnsupportedObjectError
from sdrs.lightning import SdrsCheckpointIO
from tests.support.cluster import LocalCluster
from tests.support.jobs import enter_job, leave_job
from tests.support.tiny_lightning import STEPS, train

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    url = f"{shared_cluster.url}/killed"
    program = [sys.executable, "-m", "tests.support.tiny_lightning", url, str(tmp_path / "killed")]
    killed = subprocess.Popen(program, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
    undisturbed = train(SdrsCheckpointIO(f"{shared_cluster.url}/undisturbed"), tmp_path / "a")
    assert killed.wait(100) == -signal.SIGKILL, killed.stderr.read() if killed.stderr else ""
    killed.communicate()
    with shared_cluster.connect() as cluster:
        assert [save.step for save in cluster.checkpoints("killed").list()] == [4]
    resumed = train(SdrsCheckpointIO(url), tmp_path / "another machine")
    for name, weights in undisturbed.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weights), name
    with shared_cluster.connect() as cluster:
        # ModelCheckpoint keeps one: what it removed was deleted, once the next was durable.
        assert [save.step for save in cluster.checkpoints("killed").list()] == [STEPS, 4]


class WarnedAt(Callback):
    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)


def test_a_warned_job_saves_leaves_and_goes_on_where_it_is_told_to(
    shared_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_job(monkeypatch, shared_cluster.url, "warned-lightning", 1)
    io = SdrsCheckpointIO()
    assert io.resume_path() is None
    with pytest.raises(SystemExit) as left:
        train(io, tmp_path / "a", io.job_callback(), WarnedAt(), every_n_train_steps=STEPS)
    assert left.value.code == 75
    assert [save.step for save in io.checkpoints.list()] == [3]
    leave_job()
    enter_job(monkeypatch, shared_cluster.url, "warned-lightning", 2, resume_step=3)
    again = SdrsCheckpointIO()
    assert again.resume_path() == f"{shared_cluster.url}/warned-lightning"
    train(again, tmp_path / "b", again.job_callback(), every_n_train_steps=STEPS)
    assert [save.step for save in again.checkpoints.list()] == [STEPS, 3]
    leave_job()


def test_paths_are_names_of_steps(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    url = f"{shared_cluster.url}/paths"
    io = SdrsCheckpointIO(url)
    assert io.resume_path() is None
    train(io, tmp_path, resume=False, save_top_k=-1, save_last=True)
    assert [save.step for save in io.checkpoints.list()] == [8, 6, 4, 2]
    another = SdrsCheckpointIO(url)
    for path, step in (
        ("elsewhere/epoch=0-step=4.ckpt", 4),
        (f"{url}/6", 6),
        (url, 8),
        ("checkpoints/last.ckpt", 8),
    ):
        assert another.load_checkpoint(path, map_location="cpu")["global_step"] == step
    with pytest.raises(InvalidArgumentError, match="names no step"):
        another.load_checkpoint("best.ckpt")
    another.remove_checkpoint("epoch=0-step=2.ckpt")
    another.remove_checkpoint("epoch=0-step=2.ckpt")
    assert [save.step for save in io.checkpoints.list()] == [8, 6, 4]


def test_what_cannot_be_stored_without_pickle_is_named(shared_cluster: LocalCluster) -> None:
    io = SdrsCheckpointIO(f"{shared_cluster.url}/unsafe")
    with pytest.raises(UnsupportedObjectError, match=r"callbacks.*mine"):
        io.save_checkpoint({"global_step": 1, "callbacks": {"mine": object()}}, "x/step=1.ckpt")
    assert io.checkpoints.latest() is None
