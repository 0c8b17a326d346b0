"""What a user wants when saves come faster than they can be stored, and when one fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from sdrs.saving import Saving
from sdrs_core.errors import InvalidArgumentError

OnFull = Literal["block", "skip", "fail"]
OnError = Callable[[Saving, BaseException], object]
DEFAULT_MAX_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """``on_full``: wait until there is room, skip the save (and say so), or raise. ``max_in_flight``: saves that are
    not stored yet, at most. ``on_error`` is told of each save that failed after it had begun, in a thread of ours.
    Without ``raise_errors`` no failure of a save is raised: it is logged, told to ``on_error`` and kept in its
    ``Saving``.
    """

    on_full: OnFull = "block"
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    on_error: OnError | None = None
    raise_errors: bool = True

    def __post_init__(self) -> None:
        if self.on_full not in get_args(OnFull):
            raise InvalidArgumentError(f"on_full is {self.on_full!r}: choose one of {', '.join(get_args(OnFull))}")
        if isinstance(self.max_in_flight, bool) or not isinstance(self.max_in_flight, int) or self.max_in_flight < 1:
            raise InvalidArgumentError(f"max_in_flight is {self.max_in_flight!r}: at least 1 save must be allowed")
