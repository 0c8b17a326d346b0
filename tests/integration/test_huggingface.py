"""Hugging Face's Trainer trains, is stopped, loses its folder, and goes on from SDRS as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: nothing here is downloaded

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from sdrs.huggingface import SdrsCallback
from tests.support.cluster import LocalCluster
from tests.support.jobs import enter_job, leave_job

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

STEPS = 6


class StoppedError(Exception):
    pass


class StopsAfter(TrainerCallback):
    """In the middle, after the checkpoint of step 4."""

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 5:
            raise StoppedError


def trainer_in(folder: Path, *callbacks: TrainerCallback) -> Trainer:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        attention_dropout=0.2,
    )
    tokens = torch.randint(0, 32, (24, 8), generator=torch.Generator().manual_seed(5))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=2,
        save_total_limit=1,
        per_device_train_batch_size=4,
        logging_steps=STEPS,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=11,
    )
    return Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=list(callbacks),
    )


def test_a_stopped_run_ends_with_the_weights_of_an_undisturbed_one(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    undisturbed = trainer_in(tmp_path / "a", SdrsCallback(f"{shared_cluster.url}/undisturbed"))
    undisturbed.train()

    folder = tmp_path / "b"
    url = f"{shared_cluster.url}/stopped"
    callback = SdrsCallback(url)
    assert callback.resume_from(folder) is None
    stopped = trainer_in(folder, callback, StopsAfter())
    with pytest.raises(StoppedError):
        stopped.train()
    callback.on_train_end(None, None, None)
    assert [save.step for save in callback.checkpoints.list()] == [4, 2]
    shutil.rmtree(folder)  # the machine is lost

    again = SdrsCallback(url)
    folder = tmp_path / "another machine"
    (folder / "checkpoint-4").mkdir(parents=True)
    (folder / "checkpoint-4" / "half").write_text("torn")  # replaced, not mixed
    path = again.resume_from(folder)
    assert path == str(folder / "checkpoint-4")
    assert not (folder / "checkpoint-4" / "half").exists()
    assert os.listdir(folder) == ["checkpoint-4"]
    resumed = trainer_in(folder, again)
    resumed.train(resume_from_checkpoint=path)
    assert resumed.state.global_step == STEPS
    for name, weights in undisturbed.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weights), name
    assert [save.step for save in again.checkpoints.list()] == [6, 4, 2]


class WarnedAt(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_warned_job_saves_leaves_and_goes_on_where_it_is_told_to(
    shared_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_job(monkeypatch, shared_cluster.url, "warned-trainer", 1)
    callback = SdrsCallback()
    assert callback.resume_from(tmp_path / "a") is None
    with pytest.raises(SystemExit) as left:
        trainer_in(tmp_path / "a", callback, WarnedAt()).train()
    assert left.value.code == 75
    assert [save.step for save in callback.checkpoints.list()] == [3, 2]
    leave_job()
    enter_job(monkeypatch, shared_cluster.url, "warned-trainer", 2, resume_step=3)
    again = SdrsCallback()
    path = again.resume_from(tmp_path / "b")
    assert path == str(tmp_path / "b" / "checkpoint-3")
    trainer = trainer_in(tmp_path / "b", again)
    trainer.train(resume_from_checkpoint=path)
    assert trainer.state.global_step == STEPS
    leave_job()
