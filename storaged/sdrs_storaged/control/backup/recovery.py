"""The way back from backups, and what is kept there only, wired."""

from __future__ import annotations

from sdrs_storaged.control.backup.adoption import Adoption
from sdrs_storaged.control.backup.assembly import Backups
from sdrs_storaged.control.backup.eviction import Evictor
from sdrs_storaged.control.backup.full_read import FullRead
from sdrs_storaged.control.backup.importing import Importer
from sdrs_storaged.control.backup.locks import SaveLocks
from sdrs_storaged.control.backup.presence import Presence
from sdrs_storaged.control.backup.recall import Recalls
from sdrs_storaged.control.backup.recalled_blobs import RecalledBlobs
from sdrs_storaged.control.backup.records import RunKind
from sdrs_storaged.control.backup.sources import BackupSources
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.copier import CopyCommands
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
        clock: Clock,
        *,
        interval_seconds: float,
    ) -> None:
        cluster_id = members.cluster.id
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
            clock,
            verify=FullRead(backups.targets, backups.buckets, sources).damage_of,
            interval_seconds=interval_seconds,
        )

    async def run(self) -> None:
        try:
            await self.evictor.run()
        finally:
            await self.recalls.close()
