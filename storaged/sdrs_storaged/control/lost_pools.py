"""Pools whose records were lost, as fragments tell of them (P19). Their settings are for an operator to set again."""

from __future__ import annotations

import math

from sdrs_core.cluster import MAX_MIRRORS, Pool
from sdrs_core.codes import parse_code
from sdrs_core.ids import PoolName
from sdrs_core.levels import Level
from sdrs_storaged.control.evidence import Evidence


class LostPools:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._mirrors = dict(evidence.mirrors())
        # Of pools without a code: the fewest copies that a whole checkpoint has.
        self._copies: dict[PoolName, int] = {}

    def names(self) -> set[PoolName]:
        """Those that hold mirrors: no checkpoint may name them."""
        return {PoolName(name) for name in self._mirrors.values()}

    def count(self, name: PoolName, copies: int) -> None:
        self._copies[name] = min(self._copies.get(name, MAX_MIRRORS), copies)

    def coded(self, name: PoolName) -> Pool | None:
        """The pool at L3, if its blobs are in an erasure code: in the one that most are in."""
        code = next((code for text in self._evidence.codes(name) if (code := parse_code(text))), None)
        if code is None:
            return None
        pool = Pool(name, Level.L3, data_fragments=code.data, parity_fragments=code.parity)
        mirror = self._mirrors.get(name)
        if mirror is None:
            return pool
        # What is mirrored stays so.
        mirrored_bytes, all_bytes = self._evidence.blob_bytes(name, mirror), self._evidence.blob_bytes(name)
        ratio = min(1.0, math.ceil(100 * mirrored_bytes / max(1, all_bytes)) / 100)
        return Pool(
            name,
            Level.L3,
            data_fragments=code.data,
            parity_fragments=code.parity,
            mirror_pool=mirror,
            mirror_ratio=ratio or 1.0,
        )

    def made_anew(self, name: PoolName) -> Pool:
        """At the level that its checkpoints have."""
        coded = self.coded(name)
        if coded:
            return coded
        mirrors = self._copies.get(name)
        if mirrors is None:
            mirrors = min(self._evidence.copies(name), MAX_MIRRORS) if name in self.names() else 1
        return Pool(name, Level.L2, mirrors=mirrors) if mirrors > 1 else Pool(name, Level.L1)
