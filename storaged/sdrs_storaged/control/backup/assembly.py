"""Backups, wired."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.checkpoints import Save
from sdrs_core.cluster import NodeState
from sdrs_core.errors import RefusedError, SdrsError, StaleTermError
from sdrs_core.ids import JobName
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.backing_up import BackingUp
from sdrs_storaged.control.backup.buckets import Buckets
from sdrs_storaged.control.backup.catching_up import CatchingUp
from sdrs_storaged.control.backup.comparing import Comparing
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.listing import Listing
from sdrs_storaged.control.backup.orders import BackupCalls, ProbeStep
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.pruning import Pruning
from sdrs_storaged.control.backup.records import Run
from sdrs_storaged.control.backup.rubbish import Rubbish
from sdrs_storaged.control.backup.runs import RunProgress, Runs
from sdrs_storaged.control.backup.standing import Standing
from sdrs_storaged.control.backup.status import Status
from sdrs_storaged.control.backup.sweeping import Sweeping
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.backup.uploads import Uploads
from sdrs_storaged.control.backup.verifying import Verifying
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records
from sdrs_storaged.logs import get_log

log = get_log("backup")

_LOOK_AGAIN_SECONDS = 5.0
_RUBBISH_SECONDS = 86_400.0


class Backups:
    def __init__(
        self,
        records: Records,
        members: Members,
        catalog: Catalog,
        events: Events,
        nodes: BackupCalls,
        clock: Clock,
    ) -> None:
        cluster_id = members.cluster.id
        self._records = records
        self._members = members
        self._catalog = catalog
        self._nodes = nodes
        self.buckets = Buckets()
        self.targets = Targets(records, self.buckets, events, members.cluster)
        self.copies = Copies(records, self.targets)
        self.policies = Policies(records, self.targets, members, clock)
        self.standing = Standing(self.targets, self.policies, self.copies, clock)
        self.listing = Listing(records, self.targets, self.copies, self.buckets, cluster_id)
        self.status = Status(records, self.policies, self.copies)
        self.catching_up = CatchingUp(self.copies, self.buckets, cluster_id)
        self._comparing = Comparing(
            self.targets, self.copies, self.buckets, cluster_id, incarnation=members.cluster.incarnation
        )
        uploads = Uploads(records, members, nodes)
        self._backing_up = BackingUp(
            records, catalog, self.copies, self.policies, self.buckets, uploads, clock, cluster_id
        )
        self.verifying = Verifying(self.copies, self.buckets, events, clock, cluster_id)
        self.pruning = Pruning(
            records,
            self.copies,
            self.policies,
            self.buckets,
            self.catching_up,
            Sweeping(records, self.copies, self.buckets, cluster_id),
            Rubbish(self.copies, self.buckets, clock, cluster_id, grace_seconds=_RUBBISH_SECONDS),
            cluster_id,
        )
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
        self.runs.kinds |= {
            RunKind.BACKUP: self._back_up,
            RunKind.VERIFY: self.verifying.carry_out,
            RunKind.PRUNE: self._prune,
        }

    async def load(self) -> None:
        """One read where nobody uses backups: a new controller is waited for."""
        await self.targets.load()
        if self.targets.all():
            await self.policies.load()
            await self.runs.load()

    async def run(self) -> None:
        await self._look()
        await self.runs.run()

    async def start(self, kind: RunKind, target: str, selection: Selection, request_id: str) -> Run:
        """By an operator. What does not exist is told at once: it is no failure of the target."""
        self.targets.get(target)
        if kind is RunKind.BACKUP and selection.pool:
            self._members.pool(selection.pool)
        if kind is RunKind.BACKUP and selection.step is not None:
            await self._catalog.get(JobName(selection.job), selection.step)
        if kind is RunKind.IMPORT and selection.into_pool:
            self._members.pool(selection.into_pool)
        return await self.runs.start(kind, target, selection, request_id=request_id)

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

    async def _back_up(self, run: RunProgress) -> None:
        await self._comparing.carry_out(run)
        await self.catching_up.carry_out(run)
        await self._backing_up.carry_out(run)
        if run.record.policy_key:
            await self.pruning.prune(run)

    async def _prune(self, run: RunProgress) -> None:
        await self._comparing.carry_out(run)
        await self.pruning.carry_out(run)

    async def test_target(self, name: str) -> AsyncIterator[tuple[str, ProbeStep]]:
        """From here, and from each node that is up: where, and what was found."""
        target = self.targets.get(name)
        steps = await self.buckets.in_thread(target, partial(_probed, target))
        while (step := await self.buckets.in_thread(target, partial(next, steps, None))) is not None:
            yield "controller", step
        for node in self._members.nodes():
            if node.state is not NodeState.UP:
                yield node.id, ProbeStep("reach", False, f"node {node.id} is down")
                continue
            order = await self._members.order(node.id)
            try:
                async for step in self._nodes.probe_target(node, target, order):
                    yield node.id, step
            except StaleTermError:
                raise
            except SdrsError as error:
                yield node.id, ProbeStep("reach", False, error.message)

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
        self.catching_up.forget(TargetName(name))

    async def only_there(self, target: TargetName) -> int:
        """How many checkpoints are kept in this backup only."""
        count = 0
        async for stored in self._records.all(keys.SAVES, Save):
            count += stored.value.state.is_kept and stored.value.evicted == target
        return count

    def warnings(self) -> list[str]:
        return self.standing.warnings()


def _probed(target: Target) -> Iterator[ProbeStep]:
    from sdrs_storaged.bucket.probing import probe

    return (ProbeStep(step.name, step.ok, step.detail) for step in probe(target))
