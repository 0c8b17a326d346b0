"""The way back from backups, and what is kept there only, wired."""

from __future__ import annotations

from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import TargetName
from sdrs_core.errors import CorruptDataError
from sdrs_core.ids import random_id
from sdrs_storaged.control.backup.adoption import Adoption
from sdrs_storaged.control.backup.assembly import Backups
from sdrs_storaged.control.backup.eviction import Evictor
from sdrs_storaged.control.backup.importing import Importer
from sdrs_storaged.control.backup.locks import SaveLocks
from sdrs_storaged.control.backup.presence import Presence
from sdrs_storaged.control.backup.recall import Recalls
from sdrs_storaged.control.backup.recalled_blobs import RecalledBlobs
from sdrs_storaged.control.backup.records import Copy, Run
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.backup.sources import BackupSources
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.copier import CopyCommands
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records
from sdrs_storaged.control.rounds import Rounds
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.control.upkeep import Upkeep


class Recovery:
    def __init__(
        self,
        records: Records,
        members: Members,
        catalog: Catalog,
        commits: Commits,
        rounds: Rounds,
        tally: Tally,
        upkeep: Upkeep,
        backups: Backups,
        nodes: CopyCommands,
        events: Events,
        clock: Clock,
        *,
        interval_seconds: float,
    ) -> None:
        cluster_id = members.cluster.id
        self._backups = backups
        self._clock = clock
        locks = SaveLocks()
        sources = BackupSources(backups.targets, backups.copies, backups.buckets, cluster_id)
        self.recalls = Recalls(
            records,
            members,
            catalog,
            commits,
            tally,
            sources,
            Presence(members, upkeep.stocks, nodes),
            RecalledBlobs(members, upkeep.stocks, upkeep.holders, upkeep.copier, upkeep.claims),
            locks,
            events,
            clock,
            poke_repair=upkeep.repairer.poke,
        )
        adoption = Adoption(records, members, catalog, sources)
        importer = Importer(records, members, backups.buckets, sources, adoption, self.recalls, cluster_id)
        backups.runs.kinds[RunKind.IMPORT] = importer.carry_out
        self.evictor = Evictor(
            records,
            catalog,
            rounds,
            backups.policies,
            backups.copies,
            locks,
            events,
            clock,
            verify=self._verify,
            is_busy=self._is_busy,
            interval_seconds=interval_seconds,
        )

    async def _verify(self, copy: Copy) -> str:
        run = Run(random_id(), copy.target, RunKind.VERIFY, "eviction", Selection(full=True), "", self._clock.unix_ms())

        async def keep() -> None:
            return

        progress = RunProgress(self._backups.targets.get(copy.target), run, keep, self._clock)
        try:
            await self._backups.verifying.verify_whole(progress, copy)
        except CorruptDataError as error:
            return error.message
        return ""

    def _is_busy(self, target: TargetName) -> bool:
        run = self._backups.runs.get(target)
        return run is not None and run.is_under_way

    async def run(self) -> None:
        try:
            await self.evictor.run()
        finally:
            await self.recalls.close()
