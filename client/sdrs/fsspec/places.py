"""Paths taken apart: ``job/step/name``."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import MAX_STEP, check_name


@dataclass(frozen=True, slots=True)
class Place:
    """The root has no job, a job no step, a step no parts."""

    job: str = ""
    step: int | None = None
    parts: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return "/".join(
            [*([self.job] if self.job else []), *([] if self.step is None else [str(self.step)]), *self.parts]
        )

    def below(self, *parts: str) -> Place:
        return Place(self.job, self.step, (*self.parts, *parts))


def find_place(path: str) -> Place:
    """The place of a path that is read; FileNotFoundError for what can never be one."""
    place = _place(path)
    if place is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or folder: paths are job/step/name", path)
    return place


def file_place(path: str) -> tuple[Place, int]:
    """The place of a file that is written, and its step."""
    place = _place(path)
    if place is None or place.step is None or not place.parts:
        raise OSError(
            errno.EINVAL, "files are written into a step: job/step/name, where the step is a whole number", path
        )
    return place, place.step


def _place(path: str) -> Place | None:
    job, *rest = path.split("/")
    if not path:
        return Place()
    try:
        check_name(job, "job")
    except InvalidArgumentError:
        return None
    if not rest:
        return Place(job)
    step, *parts = rest
    # One name for each step: 007 is none of 7.
    if not (step.isascii() and step.isdecimal()) or str(int(step)) != step or int(step) > MAX_STEP:
        return None
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    return Place(job, int(step), tuple(parts))
