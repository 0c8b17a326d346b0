"""``sdrs.current_job()``: the job that this process belongs to.

::

    job = sdrs.current_job()
    ckpts = job.checkpoints()
    state = fresh_state() if job.resume_step is None else ckpts.restore(rank=rank, world_size=world_size)
    while state["step"] < steps:
        loss = train_step(state)
        job.report(step=state["step"], loss=loss)
        if ckpts.should_save(state["step"]):
            ckpts.save(state["step"], state, rank=rank, world_size=world_size)
            if job.preempted:
                job.leave()                     # waits until everything is durable; exit code 75: start me again

The same loop serves one rank and many: all of them save, and leave, at the same step.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from sdrs import forks
from sdrs.job.beats import Beats
from sdrs.job.environment import JobFacts, read_environment
from sdrs.job.rank import Rank
from sdrs.job.signals import Signals
from sdrs_core.errors import SdrsError

if TYPE_CHECKING:
    from sdrs.checkpoints import Checkpoints
    from sdrs.cluster import Cluster

# What a job exits with that wants to be started again: no retry is charged.
REQUEUE_EXIT_CODE = 75
# Of a job that has no grace to speak of.
MIN_LEAVE_SECONDS = 30.0

log = logging.getLogger("sdrs")

# By generation of forks: what belongs to the process that this one was forked from stays untouched.
_jobs: dict[int, CurrentJob] = {}


def current_job() -> CurrentJob | None:
    """None outside of a job. From the first call on this process beats, and takes warnings (from the main thread)."""
    job = existing_job()
    if job is None:
        facts = read_environment(os.environ)
        if facts is None:
            return None
        made = CurrentJob(facts)
        # No lock, which a thread of the parent could have held: of two that race here the first one stays.
        job = _jobs.setdefault(forks.generation(), made)
        if job is made:
            job.start()
    job.take_signals()
    return job


def existing_job() -> CurrentJob | None:
    """The job if this process has asked for it."""
    return _jobs.get(forks.generation())


class CurrentJob:
    """Made by ``current_job()``; one for each process."""

    def __init__(self, facts: JobFacts) -> None:
        self.facts = facts
        self._cluster: Cluster | None = None
        self.rank_state = Rank(facts)
        self._beats = Beats(facts, self.rank_state, lambda: self.cluster.records)
        self._signals = Signals(self.rank_state.warn)
        self._has_signals = False

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def attempt(self) -> int:
        """1 at the first start."""
        return self.facts.attempt

    @property
    def resume_step(self) -> int | None:
        """The step to go on from; None: start from nothing."""
        return self.facts.resume_step

    @property
    def grace_seconds(self) -> float:
        """From a warning until it is killed, if its checkpoint is not durable earlier."""
        return self.facts.grace_seconds

    @property
    def history(self) -> str:
        return self.facts.history

    @property
    def pool(self) -> str:
        """Empty: the default one."""
        return self.facts.pool

    @property
    def level(self) -> str:
        """Empty: what the pool promises."""
        return self.facts.level

    @property
    def node(self) -> str:
        return self.facts.node

    @property
    def node_rank(self) -> int:
        return self.facts.node_rank

    @property
    def rank(self) -> int:
        """Of this process among all of the job, as its launcher says; 0 without one."""
        return self.facts.rank

    @property
    def world_size(self) -> int:
        return self.facts.world_size

    @property
    def cluster(self) -> Cluster:
        """Connected when it is first used."""
        if self._cluster is None:
            from sdrs.cluster import connect

            # No lock: the thread of the beats may be trying for long. Of two connections the first one stays.
            made = connect()
            self._cluster = self._cluster or made
        return self._cluster

    def checkpoints(self, **options: Any) -> Checkpoints:
        """The history of this job, where its job file says; ``options`` are those of ``cluster.checkpoints``."""
        wanted = {"pool": self.pool or None, "level": self.level or None, **options}
        return self.cluster.checkpoints(self.history, **wanted)

    def report(self, *, step: int | None = None, loss: Any = None) -> None:
        """Where the training is; the next beat tells it. A loss that is no finite number is told at once."""
        self.rank_state.report(step, loss)

    def report_nan(self, step: int) -> None:
        """The training has diverged at ``step``: it is to go on from before that."""
        self.rank_state.report_nan(step)

    @property
    def warned(self) -> bool:
        """Whether this rank has heard that the job is to be preempted. Others may hear it later: see ``preempted``."""
        return self.rank_state.is_warned

    @property
    def preempted(self) -> bool:
        """Whether to leave after this save: a ``should_save`` has said yes because of a warning. With several ranks it
        becomes true at the same step for all.
        """
        return self.rank_state.is_preempted

    def leave(self) -> NoReturn:
        """Wait until the saves of ``job.checkpoints()`` are durable, and exit with 75: no retry is charged."""
        if self._cluster:
            try:
                self._cluster.process().saves.finish(max(self.grace_seconds, MIN_LEAVE_SECONDS))
                self._cluster.process().saves.raise_unseen()
            except SdrsError as error:
                log.error("job %s leaves, and its last save failed: %s", self.id, error)
        self._beats.close("leaving")
        sys.exit(REQUEUE_EXIT_CODE)

    def start(self) -> None:
        # Not left to the thread: a process that forks in the middle of an import has a half module in its child.
        importlib.import_module("sdrs.cluster")
        self._beats.start()
        atexit.register(self._end)

    def take_signals(self) -> None:
        if not self._has_signals:
            self._has_signals = self._signals.install()

    def close(self) -> None:
        """Beats and warnings end, connections stay. An interpreter that ends does it by itself."""
        if self._has_signals:
            self._has_signals = False
            self._signals.remove()
        atexit.unregister(self._end)
        self._end()

    def _end(self) -> None:
        # Handlers stay until the very end: what is exiting must not be killed by the warning that made it leave.
        if _jobs.get(forks.generation()) is not self:
            return  # closed before, or of the process that this one was forked from
        del _jobs[forks.generation()]
        self._beats.close("ended")

    def __repr__(self) -> str:
        return f'<CurrentJob "{self.id}" attempt {self.attempt} rank {self.rank} of {self.world_size}>'
