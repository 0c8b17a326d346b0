"""Which checkpoints a pool's policy lets go (P15)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from sdrs_core.checkpoints import Save, newest_by_step
from sdrs_core.cluster import Retention
from sdrs_core.ids import SaveId
from sdrs_core.levels import Level


@dataclass(frozen=True, slots=True)
class Expiry:
    save: Save
    why: str
    # What makes ``save`` dispensable. If that changed meanwhile, the decision is void.
    newest_good: SaveId


def decide_retention(
    saves: list[Save], policy: Retention, *, pool_level: Level, pinned: Set[SaveId], now_unix_ms: int
) -> list[Expiry]:
    """Of one job's readable generations, newest first, those to delete.

    Of several generations of a step only the newest that is committed counts, the others are set aside (P1). Only
    checkpoints that the cluster itself has, at their pool's level and without known damage, count towards what is kept,
    so that a run of poor ones never pushes out the good; the newest such one stays whatever the policy says, and so
    does what is held or pinned.
    """
    if policy.keeps_all:
        return []
    expired: list[Expiry] = []
    current = {save.save_id for save in newest_by_step(saves)}
    newest_good: SaveId | None = None
    good_seen = 0
    for save in saves:
        is_good = save.save_id in current and save.level >= pool_level and not (save.damage or save.evicted)
        good_seen += is_good
        if is_good and newest_good is None:
            newest_good = save.save_id
        if newest_good is None or save.held or save.save_id in pinned or save.save_id == newest_good:
            continue
        age_seconds = (now_unix_ms - save.committed_unix_ms) / 1000
        if policy.max_age_seconds and age_seconds > policy.max_age_seconds:
            expired.append(Expiry(save, f"older than {policy.max_age_seconds} s", newest_good))
        elif policy.keep_every_steps and save.step % policy.keep_every_steps == 0:
            continue
        elif policy.keep_last and (good_seen > policy.keep_last or (not is_good and good_seen >= policy.keep_last)):
            expired.append(Expiry(save, f"not among the newest {policy.keep_last}", newest_good))
    return expired
