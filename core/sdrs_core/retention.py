"""Which checkpoints a pool's policy lets go (P15)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.cluster import Retention
from sdrs_core.ids import SaveId
from sdrs_core.levels import Level


@dataclass(frozen=True, slots=True)
class Expiry:
    save: Save
    why: str


def decide_retention(
    saves: list[Save], policy: Retention, *, pool_level: Level, pinned: Set[SaveId], now_unix_ms: int
) -> list[Expiry]:
    """Of one job's readable generations, newest first, those to delete.

    Only checkpoints at their pool's level and without known damage count towards what is kept, so that a run of poor
    ones never pushes out the good; the newest such one stays whatever the policy says, and so does what is held or
    pinned.
    """
    if policy.keeps_all:
        return []
    expired: list[Expiry] = []
    good_seen = 0
    for save in saves:
        is_good = save.state is SaveState.COMMITTED and save.level >= pool_level and not save.damage
        good_seen += is_good
        is_newest_good = is_good and good_seen == 1
        if save.held or save.save_id in pinned or is_newest_good or good_seen == 0:
            continue
        age_seconds = (now_unix_ms - save.committed_unix_ms) / 1000
        if policy.max_age_seconds and age_seconds > policy.max_age_seconds:
            expired.append(Expiry(save, f"older than {policy.max_age_seconds} s"))
        elif policy.keep_every_steps and save.step % policy.keep_every_steps == 0:
            continue
        elif policy.keep_last and (good_seen > policy.keep_last or (not is_good and good_seen >= policy.keep_last)):
            expired.append(Expiry(save, f"not among the newest {policy.keep_last}"))
    return expired
