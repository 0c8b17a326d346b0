"""Running totals of the catalog, so that status, metrics and quotas need no scan.

Of a save that changes, what is counted is remembered together with the revision of its record. So each change counts
once, whoever hears of it first, in whatever order the store's answers come, and if some of them never do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.ids import PoolName, SaveId

_MAX_DAMAGED_NAMES = 1000  # I10
# I10: far more than change while an answer of the store is on its way, or a record that was read is acted on.
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the totals have of a save, if anything, as of this revision of its record."""

    save: Save | None
    revision: int


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
        # Saves whose last change the store left unanswered.
        self.doubtful: dict[SaveId, Save] = {}
        # What is counted of those that are pending or doubtful, and of those that changed last. All others are counted
        # as their records are.
        self._open: dict[SaveId, _Counted] = {}
        self._lately: dict[SaveId, _Counted] = {}

    def load(self, save: Save) -> None:
        """As a former controller left it."""
        self._replace(None, save)

    def expect(self, save: Save) -> None:
        """It counts from now on, before its record is written; ``count`` tells what came of that."""
        self._replace(None, save)
        self._remember(save.save_id, _Counted(save, 0))

    def follow(self, save_id: SaveId, save: Save | None, revision: int) -> None:
        """Before the record is changed: this is how it was read. What is known to be counted of it goes before that:
        the record may have changed since it was read, or since it was counted.
        """
        if self._known(save_id) is None:
            self._remember(save_id, _Counted(save, revision))

    def count(self, save_id: SaveId, save: Save | None, revision: int) -> None:
        """This is its record since ``revision``; None if there is none. Who comes with older news changes nothing."""
        known = self._known(save_id) or _Counted(None, 0)
        if revision >= known.revision:
            self._replace(known.save, save)
            self._remember(save_id, _Counted(save, revision))

    def doubt(self, save: Save) -> None:
        """The store did not say whether it made the change that was followed: what is counted stays, until the next
        one that it tells of, or until somebody looks.
        """
        self.doubtful[save.save_id] = save
        if known := self._known(save.save_id):
            self._remember(save.save_id, known)

    def _known(self, save_id: SaveId) -> _Counted | None:
        return self._open.get(save_id) or self._lately.get(save_id)

    def _remember(self, save_id: SaveId, counted: _Counted) -> None:
        self._open.pop(save_id, None)
        self._lately.pop(save_id, None)
        is_pending = counted.save is not None and counted.save.state is SaveState.PENDING
        if is_pending or save_id in self.doubtful:
            self._open[save_id] = counted
            return
        self._lately[save_id] = counted
        if len(self._lately) > _MAX_REMEMBERED:
            del self._lately[next(iter(self._lately))]

    def _replace(self, before: Save | None, after: Save | None) -> None:
        if before:
            self._add(before, -1)
            self.damaged.pop(before.save_id, None)
        if after:
            self._add(after, 1)
            if after.damage and len(self.damaged) < _MAX_DAMAGED_NAMES:
                self.damaged[after.save_id] = after
        if before and after:
            self.commits_total += before.state is SaveState.PENDING and after.state.is_readable

    def _add(self, save: Save, sign: int) -> None:
        self.saves_by_pool[save.pool] += sign
        self.bytes_by_pool[save.pool] += sign * save.stored_bytes
        self.degraded_saves += sign * save.degraded
        self.retired_saves += sign * (save.state is SaveState.RETIRED)
        if save.mirror_pool:
            self.mirrored_saves[save.pool] += sign
            self.mirrored_bytes[save.pool] += sign * save.stored_bytes
            self.mirrors_in[save.mirror_pool] += sign
