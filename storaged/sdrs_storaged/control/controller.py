"""The control plane of one active controller: its parts, wired for one term."""

from __future__ import annotations

from typing import Protocol

from sdrs_core.attempts import Job
from sdrs_core.cluster import DiskState, NodeState
from sdrs_core.failover import Liveness
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control.backup.assembly import Backups
from sdrs_storaged.control.backup.orders import BackupCalls
from sdrs_storaged.control.backup.recovery import Recovery
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.cluster_map import ClusterMap
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.detector import Change, Detector, Probe
from sdrs_storaged.control.disks import Disks
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.export import check_sealed
from sdrs_storaged.control.failover import Failover
from sdrs_storaged.control.fresh_look import FreshLook
from sdrs_storaged.control.groups import Groups
from sdrs_storaged.control.loops import run_until_one_fails
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import MetaStore, Term
from sdrs_storaged.control.moves import Moves
from sdrs_storaged.control.node_questions import NodeQuestions
from sdrs_storaged.control.nodes import Nodes
from sdrs_storaged.control.notes import Notes
from sdrs_storaged.control.pools import Pools
from sdrs_storaged.control.receipts import Receipts
from sdrs_storaged.control.records import Records
from sdrs_storaged.control.referrals import Referrals
from sdrs_storaged.control.replacement import undo_interrupted
from sdrs_storaged.control.rounds import Rounds
from sdrs_storaged.control.saves import Saves
from sdrs_storaged.control.schedule_records import ScheduleRecords
from sdrs_storaged.control.stale_reads import StaleReads
from sdrs_storaged.control.tables import ClusterRecord, Tables, found_cluster
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.control.terms import Terms
from sdrs_storaged.control.upkeep import FragmentCalls, Upkeep
from sdrs_storaged.logs import get_log

log = get_log("controller")

_MAX_NAMED = 10


class NodeCalls(FragmentCalls, BackupCalls, Probe, Protocol):
    """All that a controller asks of nodes."""


class Controller:
    def __init__(
        self,
        records: Records,
        cluster: ClusterRecord,
        tables: Tables,
        terms: Terms,
        clock: Clock,
        nodes: NodeCalls,
        config: ControllerConfig,
    ) -> None:
        self.records = records
        self.config = config
        self.tables = tables
        self.map = ClusterMap()
        self.tables.on_read_again = self.map.raise_number
        self.tally = Tally()
        self.events = Events(records, clock)
        self.detector = Detector(
            clock, nodes, suspect_after_seconds=config.suspect_after_seconds, wake=lambda: self.failover.wake()
        )
        self.groups = Groups(records, cluster, tables, self.events, clock, self.map)
        self.members = Members(records, cluster, tables, self.groups, self.detector, self.map, terms)
        self.pools = Pools(records, tables, self.members, self.groups, self.events, self.map)
        self.commits = Commits(records, self.members, clock, self.tally, ttl_seconds=config.save_ttl_seconds)
        self.members.busy_groups = self.commits.busy_groups
        referrals = Referrals(records, self.members)
        self.receipts = Receipts(records, self.members, self.commits, referrals)
        self.saves = Saves(records, self.members, clock, self.tally, self.commits, referrals)
        self.rounds = Rounds(records, self.saves, self.commits, clock)
        self.catalog = Catalog(records, clock, self.tally, unpinned=self.rounds.unpinned)
        self.stale_reads = StaleReads(records, self.catalog, clock)
        upkeep = Upkeep(
            records,
            self.members,
            self.detector,
            self.commits,
            self.catalog,
            self.rounds,
            nodes,
            clock,
            config,
            self.events,
        )
        self.verifier, self.repairer, self.scrubber = upkeep.verifier, upkeep.repairer, upkeep.scrubber
        self.collector, self.losses, self.claims = upkeep.collector, upkeep.losses, upkeep.claims
        self.commits.on_unfinished = self.repairer.poke
        self.failover = Failover(
            records,
            self.members,
            self.detector,
            self.groups,
            self.events,
            clock,
            self.map,
            suspect_after_seconds=config.suspect_after_seconds,
            settle_seconds=config.settle_seconds,
            on_lag=self.commits.renew_all,
            on_change=self._nodes_changed,
        )
        self.moves = Moves(
            records,
            tables,
            self.members,
            self.groups,
            self.commits,
            self.events,
            find_lost=self.losses.unavailable,
            give_up=self.losses.give_up,
            wake=self.failover.wake,
        )
        look = FreshLook(records, self.members, upkeep.stocks.now)
        self.nodes = Nodes(
            records,
            tables,
            self.members,
            self.groups,
            self.events,
            look,
            give_up=self.losses.give_up,
            wake=self._membership_changed,
        )
        self.backups = Backups(records, self.members, self.catalog, self.events, nodes, clock)
        self.commits.on_committed = self.backups.committed
        self.recovery = Recovery(
            records,
            self.members,
            self.catalog,
            self.commits,
            self.rounds,
            self.tally,
            upkeep,
            self.backups,
            nodes,
            clock,
            interval_seconds=config.collect_interval_seconds,
        )
        self.rounds.has_backup = self.recovery.recalls.has_backup
        self.schedule_records = ScheduleRecords(records)
        self.notes = Notes(clock)
        self.node_questions = NodeQuestions(self.members, look)
        self.disks = Disks(
            tables,
            self.members,
            self.events,
            look,
            self.losses,
            lambda: upkeep.stocks.held,
            changed=self._membership_changed,
        )

    @classmethod
    async def start(
        cls, store: MetaStore, term: Term, clock: Clock, nodes: NodeCalls, config: ControllerConfig
    ) -> Controller:
        records = Records(store, term)
        await undo_interrupted(records)
        sealed_because = await check_sealed(records)
        cluster = await found_cluster(records)
        tables = Tables(records)
        await tables.read()
        terms = await Terms.begin(records, cluster.incarnation)
        controller = cls(records, cluster, tables, terms, clock, nodes, config)
        if config.default_pool and not sealed_because:
            await controller.pools.make_default()
        await controller.commits.load()
        await controller.rounds.load()
        await controller.repairer.load_settings()
        await controller.backups.load()
        log.info("controller_active", cluster=cluster.id, term=term.number, pending_saves=len(controller.commits))
        return controller

    async def run(self) -> None:
        """All that goes on by itself, until it is cancelled or the term is over."""
        try:
            await run_until_one_fails(
                self.failover.run(),
                self.repairer.run(),
                self.collector.run(),
                self.scrubber.run(),
                self.backups.run(),
                self.recovery.run(),
            )
        finally:
            await self.detector.close()

    def _membership_changed(self) -> None:
        """An operator took a node or a disk out of use, or back: groups and data follow."""
        self.failover.wake()
        self.repairer.poke()

    def _nodes_changed(self, changes: list[Change]) -> None:
        for change in changes:
            if change.before is Liveness.DOWN and change.after is Liveness.UP:
                self.repairer.node_returned(change.node_id)
        self.repairer.poke()

    async def jobs(self, *, after: str, limit: int) -> tuple[list[Job], bool]:
        found, _ = await self.stale_reads.read(lambda catalog: catalog.jobs(after=after, limit=limit))
        return found

    async def trash_count(self) -> int:
        """Up to a page: whoever connects asks for it, so it must stay cheap, and may be of the past."""
        count, _ = await self.stale_reads.read(lambda catalog: catalog.trash_count())
        return count

    def warnings(self) -> list[str]:
        """What an operator should know, in sentences."""
        found = [self.records.frozen_because] if self.records.frozen_because else []
        found += self.records.store.warnings()
        what_follows = "its copies are made elsewhere if it stays away"
        if any(pool.member_count == 1 for pool in self.members.pools()) or self.repairer.unavailable:
            what_follows = "what only it holds cannot be read until it returns"
        for node in self.members.nodes():
            if node.state is NodeState.DOWN:
                found.append(f"node {node.id} is down: {what_follows}")
            for disk in node.disks:
                percent = 100 * disk.used_bytes / max(1, disk.capacity_bytes)
                if disk.state is DiskState.NEAR_FULL:
                    found.append(f"disk {disk.path} of node {node.id} is nearly full ({percent:.0f} %)")
                elif disk.state is DiskState.FULL:
                    found.append(
                        f"disk {disk.path} of node {node.id} is full ({percent:.0f} %): it takes no more writes"
                    )
                elif disk.state is DiskState.FAILED:
                    found.append(f"disk {disk.path} of node {node.id} failed: {disk.detail}")
        troubled = [group.problem for group in self.members.with_problems(self.members.groups()) if group.problem]
        found += _some(troubled, "groups are in trouble")
        found += _some(
            [
                f"checkpoint {save.title} is not in reach: it comes back with the nodes and disks that hold it"
                for save in self.repairer.unavailable.values()
            ],
            "checkpoints are unavailable",
        )
        found += _some(
            [
                f"checkpoint {save.title} is damaged: {save.damage}; restores pass it over, and "
                f'"sdrs ckpt delete {save.job} {save.step}" gives it up'
                for save in self.tally.damaged.values()
            ],
            "checkpoints are damaged",
        )
        found += _some(self.backups.warnings(), "warnings are about backups")
        return found


def _some(sentences: list[str], what: str) -> list[str]:
    """The first few: hundreds would hide everything else."""
    left = len(sentences) - _MAX_NAMED
    return [*sentences[:_MAX_NAMED], f"{left} more {what}"] if left > 0 else sentences
