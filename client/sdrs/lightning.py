"""Lightning saves its checkpoints to SDRS.

::

    io = SdrsCheckpointIO("sdrs://127.0.0.1:7070/llm-7b")
    trainer = Trainer(plugins=[io], callbacks=[ModelCheckpoint(every_n_train_steps=100)])
    trainer.fit(model, ckpt_path=io.resume_path())      # the newest that can be restored; None before the first

A checkpoint becomes the step of its ``global_step``, and training goes on as soon as it is copied. It is stored as a
state, without pickle: what cannot be stored so is a ``TypeError`` that names its path in the checkpoint.

In a job of ``sdrs job submit`` the URL may be left out; ``callbacks=[io.job_callback()]`` saves when the job is told
to, and leaves after a warning with exit code 75, to be started again. Let it be warned by USR1 (``signal: USR1`` in the
job file): at a SIGTERM Lightning stops by itself, perhaps before all ranks have come to the step to save.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import socket
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from sdrs.address import SCHEME, parse_job_url
from sdrs.checkpoints import Checkpoints
from sdrs.job_url import has_start, open_job, owner_of, resolve_job_url
from sdrs.save.compression import Compress
from sdrs.saving import Saving
from sdrs_core.attempts import Attempt, attempt_from_environment
from sdrs_core.errors import InvalidArgumentError, NotFoundError, RefusedError
from sdrs_core.ids import random_id

if TYPE_CHECKING or ("lightning_fabric" in sys.modules and "lightning" not in sys.modules):
    # Each of the two distributions has a class of its own, and its Trainer takes no other.
    from lightning_fabric.plugins import CheckpointIO
else:
    try:
        from lightning.fabric.plugins import CheckpointIO
    except ImportError:
        from lightning_fabric.plugins import CheckpointIO

_STEP = re.compile(r"step=(\d+)")

log = logging.getLogger("sdrs")


class SdrsCheckpointIO(CheckpointIO):
    """Paths from ModelCheckpoint are names for steps: ``.../epoch=0-step=100.ckpt`` is step 100 of the job."""

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
        # What this process saved: under which paths, and which steps in its current attempt.
        self._steps: dict[str, int] = {}
        self._saved: set[int] = set()
        self._removable: list[int] = []
        self._run = f"lightning:{random_id()}"
        self._attempt_count = 0
        self._last_step = -1

    @property
    def checkpoints(self) -> Checkpoints:
        """The history of the job."""
        if self._opened is None:
            self._opened = open_job(self._url, pool=self._pool, level=self._level, compress=self._compress)
        return self._opened

    def resume_path(self) -> str | None:
        """For ``Trainer.fit(ckpt_path=...)``: the newest checkpoint that can be restored, or None if there is none."""
        return self._url if has_start(self.checkpoints) else None

    def job_callback(self) -> Any:
        """For ``Trainer(callbacks=[...])``: saves when the job is told to, and leaves after a warning."""
        # From the same one of the two distributions as the CheckpointIO.
        is_whole = CheckpointIO.__module__.startswith("lightning.")
        callbacks = importlib.import_module(
            "lightning.pytorch.callbacks" if is_whole else "pytorch_lightning.callbacks"
        )
        io = self

        class SdrsJobCallback(callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                io.after_batch(trainer)

        return SdrsJobCallback()

    def after_batch(self, trainer: Any) -> None:
        job, step = owner_of(self.checkpoints.job), trainer.global_step
        if job is None or step == self._last_step:  # several batches may make one step
            return
        self._last_step = step
        is_logged = step % trainer.log_every_n_steps == 0  # a loss is on its device: to read it has a price
        job.report(step=step, loss=trainer.callback_metrics.get("loss") if is_logged else None)
        if self.checkpoints.should_save(step):
            trainer.save_checkpoint(f"step={step}.ckpt")
            if job.preempted:
                self._wait()
                # A launcher ends all ranks when one is gone: none goes before the checkpoint is durable.
                trainer.strategy.barrier()
                job.leave()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        if storage_options is not None:
            raise TypeError(f"SdrsCheckpointIO takes no storage_options, {storage_options!r} was given")
        step = checkpoint["global_step"]
        self._remove_what_may_go()
        self._steps[os.fspath(path)] = step
        launched = attempt_from_environment(os.environ, "")
        if step in self._saved:
            # A second callback, last.ckpt, or another fit from the start.
            if launched:
                log.warning("step %s was saved by this attempt already: %s is not saved again", step, path)
                return
            self._wait()
            self._attempt_count += 1
            self._saved.clear()
        owner = f"{socket.gethostname()} pid {os.getpid()}"
        attempt = None if launched else Attempt(self._run, self._attempt_count, owner)
        self._saving = self.checkpoints.save(step, checkpoint, attempt=attempt)
        self._saved.add(step)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """``path``: as it was saved, or ``sdrs://host/job/step``; ``sdrs://host/job`` and ``last.ckpt``: the newest."""
        self._wait()
        checkpoints, step = self._find(os.fspath(path))
        state: dict[str, Any] = checkpoints.restore(step)
        return state if map_location is None else _moved(state, map_location)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        _, step = self._find(os.fspath(path))
        self._steps.pop(os.fspath(path), None)
        if step is not None and step not in self._steps.values():
            self._removable.append(step)
        self._remove_what_may_go()

    def teardown(self) -> None:
        """Wait until everything is durable; raises what went wrong."""
        self._wait()
        self._remove_what_may_go()

    def _find(self, path: str) -> tuple[Checkpoints, int | None]:
        """Whose checkpoint that is, and its step; None is the newest."""
        if path.startswith(SCHEME):
            _, _, step = parse_job_url(path)
            is_own = path.rstrip("/") == self._url.rstrip("/")
            return self.checkpoints if is_own else open_job(path), step
        name = PurePath(path).name
        if path in self._steps:
            return self.checkpoints, self._steps[path]
        if match := _STEP.search(name):
            return self.checkpoints, int(match[1])
        if name.startswith("last"):
            return self.checkpoints, None
        raise InvalidArgumentError(
            f"{path!r} names no step, and was not saved by this process: keep {{step}} in ModelCheckpoint's filename, "
            f"or give {self._url}/STEP, or {self._url} for the newest"
        )

    def _wait(self) -> None:
        saving, self._saving = self._saving, None
        if saving:
            saving.wait()

    def _remove_what_may_go(self) -> None:
        # Lightning removes the old checkpoint once the new one is saved: that is when it is durable, not when it is
        # copied.
        if self._saving and not self._saving.done():
            return
        self._wait()
        removable, self._removable = self._removable, []
        for step in removable:
            try:
                self.checkpoints.delete(step)
            except NotFoundError:
                pass
            except RefusedError as error:
                log.warning("%s stays: %s", step, error)


def _moved(value: Any, device: Any) -> Any:
    import torch

    if not isinstance(device, str | torch.device):
        raise TypeError(f"map_location is {device!r}: SdrsCheckpointIO takes a device")
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        moved = type(value)((key, _moved(item, device)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            moved._metadata = value._metadata  # type: ignore[attr-defined]
        return moved
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    return value
