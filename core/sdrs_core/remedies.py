"""What can be done about a blob, and how urgent that is: the words of repair's decisions, and what one of them says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.ids import NodeId
from sdrs_core.redundancy import Form, Standing
from sdrs_core.reshaping import Make
from sdrs_core.stocks import fragment_bytes
from sdrs_core.whereabouts import shares


class Urgency(IntEnum):
    """Lower comes first. What is short of redundancy comes before all that only moves, and that before what only saves
    room.
    """

    REBUILD = 0
    DRAIN = 1
    SPREAD = 2
    # Before conversions, which may take a pool hours: a mirror is what the newest checkpoints are safer by.
    MIRROR = 3
    CONVERT = 4
    TRIM = 5
    BALANCE = 6


# The conversions that come first: what survives too little in its form.
SAFER = -1.0


@dataclass(frozen=True, slots=True)
class Copy:
    """Make a fragment of ``blob`` at ``target``, from what ``sources`` hold of ``source``: the blob itself, or its
    twin in another pool.
    """

    blob: Blob
    fragment_index: int
    source: Blob
    sources: tuple[Holder, ...]
    target: NodeId
    urgency: Urgency = Urgency.REBUILD

    @property
    def size_bytes(self) -> int:
        return fragment_bytes(self.blob, self.fragment_index)


@dataclass(frozen=True, slots=True)
class Trim:
    """Let a fragment go. One whose holder is already dropping was begun before, and only has to be finished (P14)."""

    blob: Blob
    holder: Holder


@dataclass(frozen=True, slots=True)
class Forget:
    """Take a holder off the record that will not come back."""

    blob: Blob
    holder: Holder


Action = Copy | Make | Trim | Forget


@dataclass(frozen=True, slots=True)
class Decision:
    form: Form
    standing: Standing
    # Whoever is counted on, also those whose fragments are to move.
    live: tuple[Holder, ...]
    # Live ones, and those on failed disks: whatever a reader can still get at.
    readable: tuple[Holder, ...]
    # Enough of them, or of the twin's, to bring the blob back.
    is_readable: bool
    copies: tuple[Copy, ...]
    make: Make | None
    trims: tuple[Trim, ...]
    forgets: tuple[Forget, ...]
    # Some holder's node was not heard yet by this controller.
    undecided: bool
    # Until a fragment that is waited for is no longer waited for.
    wait_seconds: float | None
    # It survives less in its form than in the one that its pool wants.
    is_weaker: bool
    # It has too little also when all who are waited for have returned.
    is_lacking: bool

    @property
    def is_degraded(self) -> bool:
        return self.standing < Standing.FULL or self.is_weaker

    @property
    def is_awaited(self) -> bool:
        """Whether nothing is done now about too little redundancy, because a node that has some may return."""
        is_waiting = self.undecided or self.wait_seconds is not None
        return self.standing < Standing.FULL and not self.copies and is_waiting

    @property
    def is_unavailable(self) -> bool:
        return not self.is_readable and not self.undecided

    @property
    def action(self) -> Action | None:
        """What to do first; then the blob is looked at again."""
        actions: tuple[Action, ...] = (*self.copies, *([self.make] if self.make else []), *self.trims, *self.forgets)
        return actions[0] if actions else None

    @property
    def urgency(self) -> tuple[float, float, int]:
        """Lower comes first: the kind of thing to do; then the least left beyond what is needed, relative to what may
        be lost; then the most missing.
        """
        kind = Urgency.TRIM
        if self.copies:
            kind = min(copy.urgency for copy in self.copies)
        elif self.make:
            kind = Urgency.CONVERT
        if kind is Urgency.CONVERT and self.is_weaker:
            return (kind, SAFER, 0)
        if kind is not Urgency.REBUILD:
            return (kind, 0.0, 0)
        left = len(shares(self.live, self.form.code))
        return (kind, (left - self.form.needed) / max(1, self.form.spare), left - self.form.total)
