"""At which step to save: all ranks at the same one, without a collective.

A save that one rank lacks is never committed, and fails for those that made it. So the ranks agree first:

1. Rank 0 has a cause, and proposes a step a little ahead: so far that the others see it before they are there.
2. Each of the others sees the proposal in its poll, and says in its beat that it *agreed* (from now on it will stop at
   that step to hear the verdict) or that it has *passed* that step already.
3. Rank 0 confirms when all agreed. If one has passed, or not all were heard until rank 0 itself was there for a while,
   it withdraws; the cause is still there, so it proposes again, with twice the margin. An interval is let go after a
   few times: the next one comes.
4. A rank that comes to the step waits for the verdict, if it is not there yet. All save, or none does.

No clock, no lock and no network in here: times and what others say come in, notes go out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sdrs.job.causes import Cause

MIN_MARGIN_STEPS = 2
MAX_MARGIN_STEPS = 100_000
MAX_DOUBLINGS = 8
# So often in a row not all were heard of, and an interval is let go: somebody does not take part at all.
MAX_UNHEARD = 3
# Of the way from rank 0 to the others and back, besides their polls.
SLACK_SECONDS = 0.5
# How long rank 0 stands at the proposed step for those that were not heard, and others for a verdict.
VERDICT_SECONDS = 10.0
LOST_SECONDS = 30.0


class Phase(StrEnum):
    OPEN = "open"
    CONFIRMED = "confirmed"
    WITHDRAWN = "withdrawn"


class Answer(StrEnum):
    SAVE = "save"
    GO_ON = "go on"
    WAIT = "wait"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Proposal:
    # Rises over all that rank 0 ever proposes, also after it was started again.
    number: int
    step: int
    cause: Cause
    phase: Phase = Phase.OPEN


@dataclass(frozen=True, slots=True)
class Vote:
    """What another rank says in its beat, of the last proposal that it has seen."""

    agreed: int = 0
    passed: int = 0


class _Steps:
    """Where this rank is, and how fast it goes."""

    def __init__(self) -> None:
        self.step: int | None = None
        self._at = 0.0
        self.seconds_per_step = 0.0

    def reach(self, step: int, now: float) -> None:
        if self.step is not None and step > self.step:
            measured = (now - self._at) / (step - self.step)
            # The shorter of both: what is too far ahead costs little, what is too near costs another round.
            self.seconds_per_step = min(measured, self.seconds_per_step or measured) * 0.5 + measured * 0.5
        if step != self.step:
            self.step, self._at = step, now

    def has_passed(self, step: int) -> bool:
        return self.step is not None and self.step >= step


class Leader:
    """Rank 0."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._steps = _Steps()
        self._doublings = 0
        self._unheard_count = 0
        self._last_number = 0
        # The last one: it is told again and again, so that nobody misses its verdict.
        self.proposal: Proposal | None = None
        self._is_finished = True
        # Somebody may have read the proposal already, and its confirmation.
        self._is_posted = False
        self._is_telling = False
        self._waiting_since: float | None = None

    @property
    def is_open(self) -> bool:
        return not self._is_finished

    def ask(self, step: int, cause: Cause | None, now: float, *, poll_seconds: float, unix_ms: int) -> Answer:
        """The training is at ``step``."""
        self._steps.reach(step, now)
        proposal = self.proposal
        if proposal is None or self._is_finished:
            if cause:
                self._propose(step, cause, poll_seconds, unix_ms)
            return Answer.GO_ON
        if step < proposal.step:
            return Answer.GO_ON
        if proposal.phase is Phase.CONFIRMED:
            return Answer.SAVE
        if not self._is_posted:
            # No controller, or a slow one: training does not stand still for it.
            self._withdraw(proposal)
            return Answer.GO_ON
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since < (LOST_SECONDS if self._is_telling else VERDICT_SECONDS):
            return Answer.WAIT
        self._withdraw(proposal)
        self._unheard_count += 1
        if proposal.cause is Cause.WARNED or self._unheard_count < MAX_UNHEARD:
            return Answer.GO_ON
        self.finish()
        return Answer.GIVE_UP

    def _propose(self, step: int, cause: Cause, poll_seconds: float, unix_ms: int) -> None:
        per_step = self._steps.seconds_per_step
        ahead = math.ceil((poll_seconds + SLACK_SECONDS) / per_step) if per_step > 0 else 0
        margin = max(MIN_MARGIN_STEPS, ahead + 1) << min(self._doublings, MAX_DOUBLINGS)
        self._last_number = max(self._last_number + 1, unix_ms)
        self.proposal = Proposal(self._last_number, step + min(margin, MAX_MARGIN_STEPS), cause)
        self._is_finished = self._is_posted = self._is_telling = False
        self._waiting_since = None

    def judge(self, votes: Mapping[int, Vote]) -> Proposal | None:
        """The last proposal, to be told with what the votes come to; it counts for this rank once it is ``told``."""
        proposal = self.proposal
        if proposal is None or self._is_finished or proposal.phase is not Phase.OPEN:
            return proposal
        if self._is_telling:
            return replace(proposal, phase=Phase.CONFIRMED)
        if any(vote.passed == proposal.number for vote in votes.values()):
            self._withdraw(proposal)
            return self.proposal
        agreed = {rank for rank, vote in votes.items() if vote.agreed == proposal.number}
        if not agreed >= set(range(1, self._world_size)):
            return proposal
        self._is_telling = True
        return replace(proposal, phase=Phase.CONFIRMED)

    def told(self, proposal: Proposal) -> None:
        """The others can read it now."""
        is_current = self.proposal is not None and self.proposal.number == proposal.number
        if is_current and not self._is_finished:
            self.proposal = proposal
            self._is_posted = True

    def _withdraw(self, proposal: Proposal) -> None:
        self.proposal = replace(proposal, phase=Phase.WITHDRAWN)
        self._is_finished = True
        self._doublings += 1

    def finish(self) -> None:
        """All save now."""
        self._is_finished = True
        self._doublings = self._unheard_count = 0


class Follower:
    """Any other rank."""

    def __init__(self) -> None:
        self._steps = _Steps()
        self.proposal: Proposal | None = None
        self.vote = Vote()
        self._finished = 0
        self._waiting_since: float | None = None

    @property
    def is_open(self) -> bool:
        return self.proposal is not None and self.proposal.phase is Phase.OPEN

    def hear(self, proposal: Proposal) -> bool:
        """Whether there is something to say to it."""
        if proposal.number <= self._finished:
            return False
        if self.proposal is not None and proposal.number == self.proposal.number:
            self.proposal = proposal
            if proposal.phase is Phase.WITHDRAWN:
                self._forget(proposal)
            return False
        if proposal.phase is not Phase.OPEN:
            self._forget(proposal)  # decided without this rank, or withdrawn before it was seen
            return False
        if self._steps.has_passed(proposal.step):
            self._forget(proposal)
            self.vote = Vote(passed=proposal.number)
        else:
            self.proposal = proposal
            self.vote = Vote(agreed=proposal.number)
        self._waiting_since = None
        return True

    def _forget(self, proposal: Proposal) -> None:
        self.proposal = None
        self._finished = proposal.number

    def ask(self, step: int, now: float) -> Answer:
        """The training is at ``step``."""
        self._steps.reach(step, now)
        proposal = self.proposal
        if proposal is None or step < proposal.step:
            return Answer.GO_ON
        if proposal.phase is Phase.CONFIRMED:
            return Answer.SAVE
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since < LOST_SECONDS:
            return Answer.WAIT
        self._forget(proposal)
        return Answer.GO_ON

    def finish(self) -> None:
        """All save now."""
        if self.proposal:
            self._forget(self.proposal)
