"""Which checkpoints of a job are kept in the backup only from now on. Values in, values out."""

from __future__ import annotations

from collections.abc import Sequence, Set

from sdrs_core.checkpoints import Save, newest_by_step
from sdrs_core.ids import SaveId


def decide_eviction(
    saves: Sequence[Save], *, evict_after_seconds: int, pinned: Set[SaveId], now_unix_ms: int
) -> list[Save]:
    """Of one job's readable generations in one pool, newest first, those that are old enough, the oldest first.

    Never the newest sound one that the cluster has, which is what a job resumes from; nor what is held, damaged, being
    restored, or was recalled not long ago.
    """
    if not evict_after_seconds:
        return []
    sound = [save for save in newest_by_step(saves) if not save.damage and not save.evicted]
    newest = {save.save_id for save in sound[:1]}
    old = [
        save
        for save in saves
        if save.save_id not in newest
        and save.save_id not in pinned
        and not (save.evicted or save.damage or save.held)
        and now_unix_ms - max(save.committed_unix_ms, save.recalled_unix_ms) > 1000 * evict_after_seconds
    ]
    return old[::-1] if newest else []
