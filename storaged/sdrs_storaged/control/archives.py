"""The catalog outside of its store, wired: exported, imported, copied to nodes, rebuilt (P18, P19)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sdrs_core.errors import StaleTermError
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.export import Exporter
from sdrs_storaged.control.imports import Importer
from sdrs_storaged.control.loops import run_until_one_fails
from sdrs_storaged.control.rebuild import Rebuilder
from sdrs_storaged.control.replacement import Replacement
from sdrs_storaged.control.snapshots import Snapshots
from sdrs_storaged.control.witnesses import Witnesses


class Archives:
    def __init__(self, controller: Controller, witnesses: Witnesses, clock: Clock, folder: Path) -> None:
        records = controller.records
        self._replaced = asyncio.Event()
        replacement = Replacement(records, on_replaced=self._replaced.set)
        self.exporter = Exporter(records, clock)
        self.importer = Importer(replacement, folder)
        self.rebuilder = Rebuilder(replacement, witnesses, clock, folder)
        self._snapshots = Snapshots(
            records,
            controller.members,
            witnesses,
            clock,
            folder,
            interval_seconds=controller.config.snapshot_interval_seconds,
        )

    async def run(self) -> None:
        """Until it is cancelled, or the catalog is another one."""
        await run_until_one_fails(self._snapshots.run(), self._until_replaced())

    async def _until_replaced(self) -> None:
        await self._replaced.wait()
        raise StaleTermError("the catalog was replaced: this controller starts anew with what is there now")
