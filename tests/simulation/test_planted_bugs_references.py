"""The simulator sees to references: each bug that is planted here must be found by one of a few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sdrs_core.checkpoints import Save, Shard
from sdrs_core.ids import SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.collector import Collector
from sdrs_storaged.control.homes import Homes
from sdrs_storaged.control.meta.store import Delete
from sdrs_storaged.control.records import Stored
from sdrs_storaged.control.referrals import Referrals
from sdrs_storaged.control.retired import Retired
from tests.simulation.planted import found_by

Plant = pytest.MonkeyPatch
# It is the operators' deletes that matter, and little else must be in their way.
QUIET = {"kinds": ("clock_jump",), "commands": ("delete",)}


def test_a_collector_that_ignores_references(monkeypatch: Plant) -> None:
    async def is_referred(self: Homes, save: Save) -> bool:
        return False

    monkeypatch.setattr(Homes, "is_referred", is_referred)
    found_by("I4", "I7", "P14", **QUIET)


def test_a_save_that_lets_go_of_what_it_refers_to_while_it_can_be_undeleted(monkeypatch: Plant) -> None:
    production = Collector._empty_trash

    async def empty_trash(self: Collector, stored: Stored[Save]) -> None:
        for home in stored.value.homes:
            await self._records.store.txn([], [Delete(keys.reference(home, stored.value.save_id))])
        await production(self, stored)

    monkeypatch.setattr(Collector, "_empty_trash", empty_trash)
    found_by("I4", "I7", "P14", **QUIET)


def test_a_trim_that_ignores_one_who_refers(monkeypatch: Plant) -> None:
    production = Retired._trimmed

    async def trimmed(self: Retired, shard: Shard, who: Sequence[SaveId]) -> Shard:
        return await production(self, shard, who[1:])

    monkeypatch.setattr(Retired, "_trimmed", trimmed)
    found_by("I7", **QUIET)


def test_a_reference_that_is_not_on_record(monkeypatch: Plant) -> None:
    async def write(self: Referrals, pending: Any, shards: Any) -> None:
        return None

    monkeypatch.setattr(Referrals, "write", write)
    found_by("I4", "I7", "P13", "P14", **QUIET)
