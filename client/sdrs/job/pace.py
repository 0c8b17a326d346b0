"""When one history is saved: as the job says, and outside of jobs by an interval of the environment."""

from __future__ import annotations

import os
import time

from sdrs.job.causes import Causes
from sdrs.job.current import current_job, existing_job
from sdrs.job.environment import launched_world_size, save_interval
from sdrs.saving import Saving
from sdrs_core.errors import InvalidArgumentError


class SavePace:
    """Of one ``Checkpoints``."""

    def __init__(self, history: str) -> None:
        self._history = history
        self._alone: Causes | None = None

    def should_save(self, step: int | None, world_size: int | None) -> bool:
        job = current_job()
        if job:
            return job.rank_state.should_save(step, world_size)
        interval_seconds = save_interval(os.environ)
        if not interval_seconds:
            return False
        if (launched_world_size(os.environ) if world_size is None else world_size) > 1:
            raise InvalidArgumentError(
                "SDRS_SAVE_INTERVAL_SECONDS is set, and several ranks agree on a step inside of a job only: start it "
                "with `sdrs job submit`, or ask should_save(step, world_size=1) on one rank and tell the others"
            )
        now = time.monotonic()
        self._alone = self._alone or Causes(interval_seconds, 0.0, now)
        cause = self._alone.due(now)
        if cause:
            self._alone.settle(cause, now)
        return cause is not None

    def saved(self, step: int, saving: Saving | None) -> None:
        """A save begins."""
        job = existing_job()
        if job and job.history == self._history:
            job.rank_state.note_save(step, saving)
        if self._alone:
            self._alone.saved(time.monotonic())
