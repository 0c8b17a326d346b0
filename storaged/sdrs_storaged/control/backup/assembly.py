"""Backups, wired."""

from __future__ import annotations

import asyncio

from sdrs_core.backup.targets import TargetName
from sdrs_core.checkpoints import Save
from sdrs_core.errors import RefusedError, SdrsError, StaleTermError
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.buckets import Buckets
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.listing import Listing
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.runs import Runs
from sdrs_storaged.control.backup.standing import Standing
from sdrs_storaged.control.backup.status import Status
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records
from sdrs_storaged.logs import get_log

log = get_log("backup")

_LOOK_AGAIN_SECONDS = 5.0


class Backups:
    def __init__(self, records: Records, members: Members, catalog: Catalog, events: Events, clock: Clock) -> None:
        cluster_id = members.cluster.id
        self._records = records
        self.buckets = Buckets()
        self.targets = Targets(records, self.buckets, events, cluster_id)
        self.copies = Copies(records, self.targets)
        self.policies = Policies(records, self.targets, members, clock)
        self.standing = Standing(self.targets, self.policies, self.copies, clock)
        self.listing = Listing(records, self.targets, self.copies, self.buckets, cluster_id)
        self.status = Status(records, self.policies, self.copies)
        self.runs = Runs(
            records,
            self.targets,
            self.policies,
            self.buckets,
            events,
            clock,
            cluster_id,
            on_ended=self.standing.look,
        )

    async def load(self) -> None:
        await self.targets.load()
        await self.policies.load()
        await self.runs.load()

    async def run(self) -> None:
        try:
            await self._look()
            await self.runs.run()
        finally:
            self.buckets.close()

    async def _look(self) -> None:
        for record in self.targets.all():
            while True:
                try:
                    await self.standing.look(record.target.name)
                    break
                except StaleTermError:
                    raise
                except SdrsError as error:
                    log.warning("backups_not_looked_at", target=record.target.name, why=error.message)
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def committed(self, save: Save) -> None:
        """Nobody waits for what comes of it."""
        if self.policies.committed(save):
            self.runs.wake()

    async def remove_target(self, name: str, *, accept_data_loss: bool) -> None:
        run = self.runs.get(self.targets.get(name).name)
        if run and run.is_under_way:
            raise RefusedError(f"a {run.title} is under way: stop it first, or wait until it is through", target=name)
        await self.targets.remove(name, accept_data_loss=accept_data_loss, only_there=self.only_there)
        self.policies.forget(name)
        self.runs.forget(TargetName(name))
        self.standing.forget(TargetName(name))

    async def only_there(self, target: TargetName) -> int:
        """How many checkpoints are kept in this backup only."""
        count = 0
        async for stored in self._records.all(keys.SAVES, Save):
            count += stored.value.state.is_kept and getattr(stored.value, "evicted", "") == target
        return count

    def warnings(self) -> list[str]:
        return self.standing.warnings()
