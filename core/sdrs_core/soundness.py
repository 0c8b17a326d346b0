"""What was seen of a blob's fragments, and what follows: which bad ones it can do without, and whether it is lost.

A blob may be stored twice, once more in the pool that mirrors its own: each form can be brought back from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import parse_code
from sdrs_core.ids import BlobId
from sdrs_core.redundancy import share_of


class Look(Enum):
    GOOD = "good"
    BAD = "bad"
    # Nobody could look at it now: it may be fine.
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Judgement:
    # Bad fragments that can be made again from others: they need not stay on record (I7).
    dispensable: frozenset[tuple[BlobId, Holder]]
    # Neither what is good nor what is undecided brings it back, in no form of it.
    is_lost: bool


def shares_needed(code: str) -> int:
    known = parse_code(code)
    return known.data if known else 1


def is_readable(blob: Blob, holders: Iterable[Holder]) -> bool:
    """Whether these of its holders have enough of it between them."""
    return len({share_of(holder, blob.code) for holder in holders}) >= shares_needed(blob.code)


def counted(blob: Blob) -> list[Holder]:
    """Who counts: one that is dropping does not (P14)."""
    return [holder for holder in blob.holders if not holder.dropping]


def judge(forms: Sequence[Blob], looks: Mapping[tuple[BlobId, Holder], Look]) -> Judgement:
    """``forms``: the same content under different ids. Only fragments that are in ``looks`` count."""

    def readable_from(blob: Blob, *kinds: Look) -> bool:
        return is_readable(blob, (holder for holder in blob.holders if looks.get((blob.id, holder)) in kinds))

    hopeful = {blob.id for blob in forms if readable_from(blob, Look.GOOD, Look.UNDECIDED)}
    good = {blob.id for blob in forms if readable_from(blob, Look.GOOD)}
    dispensable = {
        (blob.id, holder)
        for blob in forms
        for holder in blob.holders
        # From its own form, or from another one that is certainly good.
        if looks.get((blob.id, holder)) is Look.BAD and (blob.id in hopeful or good - {blob.id})
    }
    return Judgement(frozenset(dispensable), is_lost=not hopeful)
