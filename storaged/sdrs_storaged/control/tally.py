"""Running totals of the catalog, so that status and metrics need no scan."""

from __future__ import annotations

from collections import Counter

from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.ids import PoolName, SaveId

_MAX_DAMAGED_NAMES = 1000  # I10


class Tally:
    def __init__(self) -> None:
        self.saves_by_pool: Counter[PoolName] = Counter()
        self.bytes_by_pool: Counter[PoolName] = Counter()
        # What another pool has a whole mirror of: by the pool it belongs to, and by the pool that has the mirror.
        self.mirrored_saves: Counter[PoolName] = Counter()
        self.mirrored_bytes: Counter[PoolName] = Counter()
        self.mirrors_in: Counter[str] = Counter()
        self.degraded_saves = 0
        # Deleted ones that others refer to: counted above, since their bytes are there.
        self.retired_saves = 0
        self.commits_total = 0
        # By save, not by title: a step may have several generations, and the damage belongs to one.
        self.damaged: dict[SaveId, Save] = {}

    def add(self, save: Save) -> None:
        self._count(save, 1)
        if save.damage and len(self.damaged) < _MAX_DAMAGED_NAMES:
            self.damaged[save.save_id] = save

    def remove(self, save: Save) -> None:
        self._count(save, -1)
        self.damaged.pop(save.save_id, None)

    def _count(self, save: Save, sign: int) -> None:
        self.saves_by_pool[save.pool] += sign
        self.bytes_by_pool[save.pool] += sign * save.stored_bytes
        self.degraded_saves += sign * save.degraded
        self.retired_saves += sign * (save.state is SaveState.RETIRED)
        if save.mirror_pool:
            self.mirrored_saves[save.pool] += sign
            self.mirrored_bytes[save.pool] += sign * save.stored_bytes
            self.mirrors_in[save.mirror_pool] += sign

    def change(self, before: Save, after: Save) -> None:
        self.remove(before)
        self.add(after)
        self.commits_total += before.state is SaveState.PENDING and after.state.is_readable
