"""What a save has been through with its nodes, and what follows: whom to avoid, how long to pause, when to give up.

Decisions only: whoever uploads, a client or the daemon that has its shard staged, carries them out. A killed primary is
replaced within a fraction of a second, so the first pauses are short; one that is cut off takes seconds, a pool that
waits for a node longer, so patience counts in time, not in tries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sdrs_core.backoff import backoff
from sdrs_core.errors import (
    DeadlineExceededError,
    FullError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    UnavailableError,
)
from sdrs_core.ids import NodeId

FIRST_PAUSE_SECONDS = 0.02
MAX_PAUSE_SECONDS = 0.25
# A save is given up when it had trouble for so long, and after so many tries that failed: large ones take their time.
PATIENCE_SECONDS = 30.0
MIN_FAILED_TRIES = 4
# A group that moves on again and again is nobody's failure, but has to end too.
MAX_TROUBLE_SECONDS = 120.0
# Whatever progress is made in between.
MAX_TRIES = 1000
# A node that failed is left out for so long, unless no other is left.
AVOID_SECONDS = 5.0

# What may pass by itself; a full or broken disk does not within one save.
PASSING = (UnavailableError, DeadlineExceededError, RefusedError)


@dataclass(frozen=True, slots=True)
class _Avoided:
    why: SdrsError
    until: float


class Trouble:
    """Of one shard; used by one thread or task."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._avoided: dict[NodeId, _Avoided] = {}
        # The last failure of each node that was tried, in the order in which they failed last.
        self._failures: dict[NodeId, SdrsError] = {}
        self._try_count = 0
        self._pauses: Iterator[float] = iter(())
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._since: float | None = None
        self._failed_count = 0
        self._pauses = backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)

    def note_progress(self) -> None:
        """Something is durable that was not before: what went wrong until then is over."""
        self._begin_anew()

    def note_move(self, node_id: NodeId, error: SdrsError) -> None:
        """The group moved on: nobody failed, and nobody is avoided."""
        self._note(node_id, error)

    def note_failure(self, node_id: NodeId, error: SdrsError, *, avoid: bool) -> None:
        self._note(node_id, error)
        self._failed_count += 1
        if avoid:
            until = self._clock() + AVOID_SECONDS if isinstance(error, PASSING) else float("inf")
            self._avoided.pop(node_id, None)
            self._avoided[node_id] = _Avoided(error, until)

    def _note(self, node_id: NodeId, error: SdrsError) -> None:
        self._try_count += 1
        self._since = self._clock() if self._since is None else self._since
        self._failures.pop(node_id, None)
        self._failures[node_id] = error

    def avoided(self) -> list[NodeId]:
        now = self._clock()
        self._avoided = {node_id: avoided for node_id, avoided in self._avoided.items() if now < avoided.until}
        return list(self._avoided)

    def forgive(self) -> bool:
        """No other node is left: those whose failure may have passed are tried again. False if there are none."""
        lasting = {node_id: avoided for node_id, avoided in self._avoided.items() if avoided.until == float("inf")}
        is_any_forgiven = len(lasting) < len(self._avoided)
        self._avoided = lasting
        return is_any_forgiven

    def lasting(self) -> SdrsError | None:
        """The last failure that does not pass by itself."""
        return next((a.why for a in reversed(self._avoided.values()) if a.until == float("inf")), None)

    def pause_seconds(self) -> float:
        return next(self._pauses)

    @property
    def is_over(self) -> bool:
        """Whether it makes no sense to go on."""
        if self._try_count >= MAX_TRIES:
            return True
        lasted = self._lasted_seconds()
        is_node_failing = self._failed_count >= MIN_FAILED_TRIES
        return lasted >= (PATIENCE_SECONDS if is_node_failing else MAX_TROUBLE_SECONDS)

    def _lasted_seconds(self) -> float:
        return 0.0 if self._since is None else self._clock() - self._since

    def failure(self, title: str) -> SdrsError:
        """What is raised at the end: what was tried, and what came of it."""
        last = next(reversed(self._failures.values()))
        if isinstance(last, FullError):
            return last
        reasons = "; ".join(f"node {node_id}: {error}" for node_id, error in self._failures.items())
        error = SaveFailedError(
            f"{title} could not be saved in {self._try_count} tries, for the last {self._lasted_seconds():.0f} s "
            f"without progress: {reasons}"
        )
        error.__cause__ = last
        return error
