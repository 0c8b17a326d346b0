"""From which generation of its history an attempt goes on.

The choice is made step by step: it may ask for a generation to be verified first, and is then made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdrs_core.levels import Level
from sdrs_scheduler.jobs.spec import Resume

FROM_THE_BEGINNING = -1


@dataclass(frozen=True, slots=True)
class Generation:
    """A committed checkpoint of a history, as far as it matters here."""

    save_id: str
    step: int
    level: Level = Level.L1
    # By the controller's clock.
    created_unix_ms: int = 0
    committed_unix_ms: int = 0
    held: bool = False
    # Why it cannot be restored; empty: nobody knows of anything.
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What a verification found: ``is_whole`` None if it could not be decided now."""

    is_whole: bool | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Resumption:
    """``step`` None: from the beginning. ``note`` tells why it is not the newest; empty: it is."""

    step: int | None
    note: str = ""
    is_verified: bool = False
    # The newest commit of the history at that time, by the controller's clock; 0: it has none.
    newest_unix_ms: int = 0

    @property
    def text(self) -> str:
        if self.step is None:
            return "from the beginning" + (f" ({self.note})" if self.note else "")
        return (
            f"from step {self.step}"
            + (", verified" if self.is_verified else "")
            + (f" ({self.note})" if self.note else "")
        )


def choose(
    generations: Sequence[Generation],
    checks: Mapping[str, Check],
    *,
    resume: Resume,
    roll_back: int = 0,
    at_most_step: int | None = None,
    progress_step: int | None = None,
) -> Resumption | Generation:
    """Where to go on; or the generation that has to be verified before that can be said.

    ``generations`` are newest first, ``checks`` what is known of them by save id. ``roll_back``: so many sound ones are
    passed over. ``at_most_step``: an earlier roll back went here, and nothing new came of it. ``progress_step``: one
    that was durable once; nobody goes back behind it without a word.
    """
    newest_unix_ms = max((generation.committed_unix_ms for generation in generations), default=0)
    if resume is Resume.NONE:
        return Resumption(None, newest_unix_ms=newest_unix_ms)
    notes: list[str] = []
    if progress_step is not None and all(generation.step < progress_step for generation in generations):
        notes.append(f"step {progress_step} is not there any more")
    to_skip = roll_back
    for generation in generations:
        if at_most_step is not None and generation.step > at_most_step:
            continue
        if generation.damage:
            notes.append(f"step {generation.step} is damaged: {generation.damage}")
            continue
        if resume is Resume.LATEST_VERIFIED:
            check = checks.get(generation.save_id)
            if check is None:
                return generation
            if not check.is_whole:
                found = "is damaged" if check.is_whole is False else "is out of reach"
                notes.append(f"step {generation.step} {found}: {check.problem}")
                continue
        if to_skip:
            to_skip -= 1
            notes.append(f"step {generation.step} is passed over, one generation further back")
            continue
        return Resumption(generation.step, "; ".join(notes), resume is Resume.LATEST_VERIFIED, newest_unix_ms)
    return Resumption(None, "; ".join(notes), newest_unix_ms=newest_unix_ms)
