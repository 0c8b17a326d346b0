"""One rank of a job: what the training says, what the signals and the notes say, and the answer to "save now?".

The main thread reports and asks; the thread of the beats brings what others say. Between them stands one lock, which is
never held during a call to the controller. Signal handlers take none: they leave a time where both will look.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from sdrs.job.agreement import Answer, Follower, Leader, Proposal, Vote
from sdrs.job.causes import Cause, Causes
from sdrs.job.environment import JobFacts
from sdrs.job.notes import Beat, Orders
from sdrs.saving import Saving
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import check_step

POLL_SECONDS = 2.0
# After a warning, and while the ranks agree.
HURRIED_SECONDS = 0.2
# A controller hears about so many beats a second, however many ranks there are.
MAX_BEATS_PER_SECOND = 100
MAX_HURRIED_PER_SECOND = 500
# The verdict wakes whoever waits for it; this is for the time that is up.
_LOOK_SECONDS = 0.2

log = logging.getLogger("sdrs")


class Rank:
    def __init__(self, facts: JobFacts, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._facts = facts
        self._monotonic = monotonic
        # Also put to by signal handlers: this queue is made for that.
        self.wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._signals: deque[tuple[float, int]] = deque()
        self._changed = threading.Condition()
        self._causes = Causes(facts.interval_seconds, facts.grace_seconds, monotonic())
        self._side: Leader | Follower = Leader(facts.world_size) if facts.rank == 0 else Follower()
        self._warned_unix_ms = 0
        self._is_preempted = False
        self._step: int | None = None
        self._loss: float | None = None
        self._nan_step: int | None = None
        self._saving: Saving | None = None
        self._event = ""
        self._asked_count = 0
        self._answer: tuple[int, bool] | None = None
        self._is_unheard_told = False

    # The training

    def report(self, step: int | None, loss: Any) -> None:
        value = None if loss is None else _number(loss)
        with self._changed:
            if step is not None:
                self._step = check_step(step)
            if value is None:
                return
            if math.isfinite(value):
                self._loss = value
                return
        self.report_nan(self._step if step is None else step)

    def report_nan(self, step: int | None) -> None:
        """The first one stays: what comes after it is a consequence."""
        with self._changed:
            if self._nan_step is not None:
                return
            self._nan_step = check_step(step or 0)
        self.wakes.put(None)

    def note_save(self, step: int, saving: Saving | None) -> None:
        with self._changed:
            self._step = step
            self._saving = saving
            self._causes.saved(self._monotonic())

    def warn(self) -> None:
        """For signal handlers."""
        self._signals.append((self._monotonic(), time.time_ns() // 1_000_000))
        self.wakes.put(None)

    @property
    def is_warned(self) -> bool:
        return bool(self._signals) or self._warned_unix_ms > 0

    @property
    def is_preempted(self) -> bool:
        return self._is_preempted

    def should_save(self, step: int | None, world_size: int | None) -> bool:
        with self._changed:
            if step is None:
                self._asked_count += 1
                step = self._asked_count
            else:
                self._step = check_step(step)
                if self._answer and self._answer[0] == step:
                    return self._answer[1]  # asked twice at one step
            self._take_signals()
            is_alone = (self._facts.world_size if world_size is None else world_size) == 1
            cause = self._causes.due(self._monotonic()) if is_alone else self._agree(step)
            if cause:
                self._causes.settle(cause, self._monotonic())
                self._is_preempted |= cause is Cause.WARNED
            self._answer = (step, cause is not None)
            return cause is not None

    def _agree(self, step: int) -> Cause | None:
        """Why all ranks save at this step, if they do. The lock is free while the verdict is waited for."""
        while True:
            before = self._side.proposal
            answer = self._ask(step)
            proposal = self._side.proposal
            if proposal is not before:
                self.wakes.put(None)
            if answer is Answer.GO_ON:
                return None
            if answer is Answer.GIVE_UP:
                assert proposal is not None
                self._causes.settle(proposal.cause, self._monotonic())
                self._tell_unheard()
                return None
            if answer is Answer.SAVE:
                assert proposal is not None
                self._side.finish()
                return proposal.cause
            self._changed.wait(_LOOK_SECONDS)
            self._take_signals()

    def _ask(self, step: int) -> Answer:
        now = self._monotonic()
        if isinstance(self._side, Follower):
            return self._side.ask(step, now)
        # All were warned, as a rule, and look often; one that was not will have passed, and costs another round.
        poll_seconds = self.hurried_seconds if self._causes.is_warned(now) else self.poll_seconds
        cause = self._causes.due(now)
        return self._side.ask(step, cause, now, poll_seconds=poll_seconds, unix_ms=time.time_ns() // 1_000_000)

    def _tell_unheard(self) -> None:
        if not self._is_unheard_told:
            self._is_unheard_told = True
            log.warning(
                "job %s does not save by its interval: not all of its %s ranks are heard of. All of them must ask "
                "should_save(step), or one asks should_save(step, world_size=1) and tells the others",
                self._facts.id,
                self._facts.world_size,
            )

    def _take_signals(self) -> None:
        while self._signals:
            at, unix_ms = self._signals[0]
            self._causes.warn(at)
            # Only then: ``is_warned`` must not be false in between.
            self._warned_unix_ms = unix_ms
            self._signals.popleft()

    # The thread of the beats

    @property
    def poll_seconds(self) -> float:
        return max(POLL_SECONDS, self._facts.world_size / MAX_BEATS_PER_SECOND)

    @property
    def hurried_seconds(self) -> float:
        return max(HURRIED_SECONDS, self._facts.world_size / MAX_HURRIED_PER_SECOND)

    def pause_seconds(self) -> float:
        """Until the next beat."""
        with self._changed:
            self._take_signals()
            is_hurried = self._side.is_open or self._causes.is_warned(self._monotonic())
            return self.hurried_seconds if is_hurried else self.poll_seconds

    def end(self, event: str) -> None:
        """What the last beat says."""
        with self._changed:
            self._event = self._event or event

    def beat(self, utilization: float | None) -> Beat:
        with self._changed:
            self._take_signals()
            vote = self._side.vote if isinstance(self._side, Follower) else Vote()
            return Beat(
                step=self._step,
                unix_ms=time.time_ns() // 1_000_000,
                rank=self._facts.rank,
                pid=os.getpid(),
                loss=self._loss,
                nan_step=self._nan_step,
                saving=self._saving is not None and not self._saving.outcome.done(),
                utilization=utilization,
                event=self._event,
                warned_unix_ms=self._warned_unix_ms,
                agreed=vote.agreed,
                passed=vote.passed,
            )

    def hear_orders(self, orders: Orders) -> None:
        with self._changed:
            self._causes.interval_seconds = orders.interval_seconds or self._facts.interval_seconds
            if orders.save:
                self._hear_warning("orders", orders.deadline_unix_ms or 1)

    def hear_beats(self, beats: Iterable[tuple[int, int, Vote]]) -> Proposal | None:
        """For rank 0: of each rank when it was warned, and its vote. What the others are to be told now."""
        assert isinstance(self._side, Leader)
        with self._changed:
            votes = {}
            for rank, warned_unix_ms, vote in beats:
                if rank != self._facts.rank:
                    self._hear_warning(rank, warned_unix_ms)
                    votes[rank] = vote
            proposal = self._side.judge(votes)
            self._changed.notify_all()
            return proposal

    def told(self, proposal: Proposal) -> None:
        assert isinstance(self._side, Leader)
        with self._changed:
            self._side.told(proposal)
            self._changed.notify_all()

    def hear_proposal(self, proposal: Proposal) -> bool:
        """For the others: whether there is something to say to it at once."""
        assert isinstance(self._side, Follower)
        with self._changed:
            if proposal.cause is Cause.WARNED:
                self._hear_warning("rank 0", proposal.number)
            is_new = self._side.hear(proposal)
            self._changed.notify_all()
            return is_new

    def _hear_warning(self, teller: object, mark: int) -> None:
        if mark and self._causes.hear(teller, mark, self._monotonic()):
            self._warned_unix_ms = self._warned_unix_ms or time.time_ns() // 1_000_000


def _number(loss: Any) -> float:
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"the loss is {loss!r}: give a number") from None
