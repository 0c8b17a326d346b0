"""Which backups of a job may go from a bucket.

The newest one of each of the last so many hours, days and weeks (UTC) in which there is one stays, beside the last so
many; what is held stays, and the newest sound one always does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sdrs_core.backup.targets import Keep
from sdrs_core.ids import SaveId

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
# The first day of Unix time was a Thursday; weeks begin on Mondays.
_WEEK_SHIFT_MS = 3 * _DAY_MS


@dataclass(frozen=True, slots=True)
class Kept:
    """One backup of the job. ``is_needed``: the cluster has it nowhere else."""

    save_id: SaveId
    step: int
    attempt: int
    committed_unix_ms: int
    is_held: bool = False
    is_needed: bool = False
    is_good: bool = True


def decide_pruning(backups: Sequence[Kept], keep: Keep) -> frozenset[SaveId]:
    """Those that may go. With no rule on, none does."""
    if keep == Keep():
        return frozenset()
    newest_first = sorted(backups, key=lambda one: (one.committed_unix_ms, one.attempt, one.step), reverse=True)
    good = [one for one in newest_first if one.is_good]
    if not good:
        return frozenset()
    # A damaged one fills nobody's place.
    stays = {one.save_id for one in good[: max(1, keep.last)]}
    for count, period in (
        (keep.hourly, lambda unix_ms: unix_ms // _HOUR_MS),
        (keep.daily, lambda unix_ms: unix_ms // _DAY_MS),
        (keep.weekly, lambda unix_ms: (unix_ms + _WEEK_SHIFT_MS) // (7 * _DAY_MS)),
    ):
        stays |= _newest_of_each(good, count, period)
    return frozenset(
        one.save_id
        for one in newest_first
        if one.save_id not in stays and not one.is_held and not one.is_needed and not _is_newer(one, good[0])
    )


def _newest_of_each(newest_first: Sequence[Kept], count: int, period: Callable[[int], int]) -> set[SaveId]:
    found: dict[int, SaveId] = {}
    for one in newest_first:
        if len(found) == count:
            break
        found.setdefault(period(one.committed_unix_ms), one.save_id)
    return set(found.values())


def _is_newer(one: Kept, good: Kept) -> bool:
    """A damaged one that is newer than all sound ones may still be mended from the cluster."""
    return one.committed_unix_ms > good.committed_unix_ms
