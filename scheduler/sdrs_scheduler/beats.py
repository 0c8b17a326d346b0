"""What running jobs tell of themselves (notes ``beat/JOB/ATTEMPT/RANK``), and whether they fell silent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdrs_scheduler.jobs.spec import HangWatch

if TYPE_CHECKING:
    from sdrs.records import Note


@dataclass(frozen=True, slots=True)
class Beat:
    rank: int
    age_seconds: float
    step: int | None = None
    nan_step: int | None = None
    is_saving: bool = False
    utilization: float | None = None


def parse_beat(note: Note) -> Beat | None:
    """None for what is no beat: anybody may post notes."""
    try:
        told = json.loads(note.value)
        rank = int(note.key.rpartition("/")[2])
        return Beat(
            rank,
            note.age_seconds,
            _number(told.get("step")),
            _number(told.get("nan_step")),
            bool(told.get("saving")),
            float(told["utilization"]) if told.get("utilization") is not None else None,
        )
    except (ValueError, TypeError, AttributeError):
        return None


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass
class Pulse:
    """The beats of one run, over time, by the scheduler's own clock.

    Beats are lost with their controller: a rank that was heard and has no beat any more counts as silent since it was
    last heard, or since the controller answered again.
    """

    heard: dict[int, float] = field(default_factory=dict)
    step: int | None = None
    step_changed: float = 0.0
    nan_step: int | None = None
    utilization: float | None = None
    is_saving: bool = False

    def take(self, beats: Iterable[Beat], now: float) -> None:
        found = list(beats)
        for beat in found:
            self.heard[beat.rank] = max(self.heard.get(beat.rank, 0.0), now - beat.age_seconds)
        steps = [beat.step for beat in found if beat.step is not None]
        if steps and max(steps) != self.step:
            self.step, self.step_changed = max(steps), now
        self.nan_step = next((beat.nan_step for beat in found if beat.nan_step is not None), self.nan_step)
        self.is_saving = any(beat.is_saving for beat in found)
        shares = [beat.utilization for beat in found if beat.utilization is not None]
        if shares:
            self.utilization = sum(shares) / len(shares)

    def controller_was_away(self, now: float) -> None:
        """Nobody could beat: all timers start again."""
        self.heard = dict.fromkeys(self.heard, now)
        self.step_changed = now

    def hang(self, watch: HangWatch, now: float) -> str:
        """Why it is believed to hang; empty: it is not. One that was never heard is not watched."""
        if watch.heartbeat_seconds and self.heard:
            rank, heard = min(self.heard.items(), key=lambda item: item[1])
            if now - heard > watch.heartbeat_seconds:
                return f"rank {rank} gave no sign of life for {now - heard:.0f} s"
        if self.step is None or not watch.progress_seconds or self.is_saving:
            return ""
        if now - self.step_changed > watch.progress_seconds:
            return f"it has been at step {self.step} for {now - self.step_changed:.0f} s"
        return ""
