"""Hugging Face's Trainer keeps its checkpoints in SDRS as well.

::

    sdrs_callback = SdrsCallback("sdrs://127.0.0.1:7070/llm-7b")
    trainer = Trainer(..., callbacks=[sdrs_callback])
    trainer.train(resume_from_checkpoint=sdrs_callback.resume_from(args.output_dir))

Each ``checkpoint-N`` that the Trainer has written becomes step N of the job, its files as they are. ``resume_from``
brings the newest one that can be restored back into the folder, on whichever machine, or gives None if there is none.

In a job of ``sdrs job submit`` the URL may be left out. The Trainer then saves when the job is told to as well, begins
where it is told to, and after a warning saves, leaves ``train`` and exits with 75, to be started again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback

from sdrs.checkpoints import Checkpoints
from sdrs.job_url import has_start, open_job, owner_of, resolve_job_url
from sdrs.save.compression import Compress
from sdrs.saving import Saving
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import random_id


class SdrsCallback(TrainerCallback):
    """With several processes the first one saves for all: the folder must be the same for all of them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: str | None = None,
        level: str | None = None,
        compress: Compress | None = None,
    ) -> None:
        self._url = resolve_job_url(url)
        self._pool = pool
        self._level = level
        self._compress = compress
        self._opened: Checkpoints | None = None
        self._saving: Saving | None = None

    @property
    def checkpoints(self) -> Checkpoints:
        """The history of the job."""
        if self._opened is None:
            self._opened = open_job(self._url, pool=self._pool, level=self._level, compress=self._compress)
        return self._opened

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Returns once the files are copied, or durable if they are larger than the staging memory."""
        _wait_for_all_ranks()
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if not folder.is_dir():
            raise InvalidArgumentError(f"{str(folder)!r} is not there: the Trainer saved its checkpoint somewhere else")
        self._saving = self.checkpoints.save_files(state.global_step, folder)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        job = owner_of(self.checkpoints.job)
        if job:
            job.report(step=state.global_step)
            control.should_save |= self.checkpoints.should_save(state.global_step)
            control.should_training_stop |= job.preempted

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        job = owner_of(self.checkpoints.job)
        if job and logs and "loss" in logs:
            job.report(step=state.global_step, loss=logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Training has ended when everything is durable; raises what went wrong."""
        saving, self._saving = self._saving, None
        if saving:
            saving.wait()
        job = owner_of(self.checkpoints.job)
        if job and job.preempted:
            # A launcher ends all ranks when one is gone: none goes before the checkpoint is durable.
            _wait_for_all_ranks()
            job.leave()

    def resume_from(self, output_dir: str | os.PathLike[str], step: int | None = None) -> str | None:
        """Bring ``step``, else the newest checkpoint that can be restored, into ``output_dir``; its folder.

        A folder of that name is replaced: it may be what a killed process had half written. With several processes on
        a machine call it ``with args.main_process_first():``.
        """
        if step is None and not has_start(self.checkpoints):
            return None
        top = Path(output_dir)
        top.mkdir(parents=True, exist_ok=True)
        coming = top / f".sdrs-{random_id()}"
        try:
            restored = self.checkpoints.restore_files(coming, step)
            folder = top / f"checkpoint-{restored.step}"
            if folder.exists():
                folder.replace(top / f"{coming.name}-old")
            coming.replace(folder)
        finally:
            for left in top.glob(f"{coming.name}*"):
                shutil.rmtree(left)
        return str(folder)


def _wait_for_all_ranks() -> None:
    """Each rank writes files of its own (its random state) into the folder."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()
