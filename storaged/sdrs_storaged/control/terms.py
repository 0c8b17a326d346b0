"""The terms of this history, each with an id of its own: whoever followed another history is recognised by it (P18).

A catalog that was put back to the past goes on from there, under term numbers and revisions that were used before. The
numbers alone would not tell, once the new history has grown past the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdrs_core.cluster import Authority
from sdrs_core.errors import FullError
from sdrs_core.ids import random_id
from sdrs_storaged.control import keys
from sdrs_storaged.control.records import Records, put


@dataclass(frozen=True, slots=True)
class TermEntry:
    id: str
    # No transaction of an earlier term has a higher revision.
    began_revision: int


class Terms:
    def __init__(self, records: Records, incarnation: int, own_id: str) -> None:
        self._records = records
        self._incarnation = incarnation
        self.own_id = own_id

    @classmethod
    async def begin(cls, records: Records, incarnation: int) -> Terms:
        """Enter this controller's term, before any node hears of it. A sealed catalog is left as it is, and a full one:
        then nodes are told no id.
        """
        if records.frozen_because:
            return cls(records, incarnation, "")
        entry = TermEntry(random_id(), await records.store.revision())
        try:
            await records.commit([], [put(keys.term(incarnation, records.term.number), entry)])
        except FullError:
            # I7: deleting works on a full store, and for that a controller has to lead.
            return cls(records, incarnation, "")
        return cls(records, incarnation, entry.id)

    async def is_of_another_history(self, seen: Authority) -> bool:
        """Whether a node followed a controller of which this history knows nothing, or not all."""
        if seen.incarnation != self._incarnation or not seen.term_id:
            return False  # a lower one is over, a higher one is found by its number; earlier versions told no id
        entry = await self._records.get(keys.term(self._incarnation, seen.term), TermEntry)
        if entry is None or entry.value.id != seen.term_id:
            return True
        following, _ = await self._records.page(keys.terms(self._incarnation), TermEntry, after=entry.key, limit=1)
        return any(seen.revision > stored.value.began_revision for stored in following)
