"""Which checkpoints of a pool have a mirror in another pool: the newest, up to a proportion of all bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sdrs_core.checkpoints import Blob, Save, SaveState, Shard
from sdrs_core.ids import SaveId


def choose_mirrored(saves: Sequence[Save], ratio: float, *, total_bytes: int | None = None) -> frozenset[SaveId]:
    """``saves``: the readable ones of a pool, newest first. At least the newest, unless ``ratio`` is 0.
    ``total_bytes``: of all that the pool has, if these are not all.
    """
    if ratio <= 0:
        return frozenset()
    left_bytes = ratio * (sum(save.stored_bytes for save in saves) if total_bytes is None else total_bytes)
    chosen: set[SaveId] = set()
    for save in saves:
        # One that was set aside is no longer the job's history; a damaged or an evicted one cannot be mirrored whole.
        if save.state is not SaveState.COMMITTED or save.damage or save.evicted:
            continue
        left_bytes -= save.stored_bytes
        if chosen and left_bytes < 0:
            break
        chosen.add(save.save_id)
    return frozenset(chosen)


def age_order(save: Save) -> tuple[int, SaveId]:
    """The newest last."""
    return (save.committed_unix_ms, save.save_id)


def newest_first(saves: Iterable[Save]) -> list[Save]:
    return sorted(saves, key=age_order, reverse=True)


def twin_of(shard: Shard, blob: Blob) -> Blob | None:
    """The same content in the other pool."""
    others = shard.mirrors if any(known.id == blob.id for known in shard.blobs) else shard.blobs
    return next((other for other in others if other.ordinal == blob.ordinal), None)
