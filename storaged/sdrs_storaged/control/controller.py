"""The control plane of one active controller: its parts, wired for one term."""

from __future__ import annotations

from typing import Protocol

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save
from sdrs_core.cluster import DiskState, NodeState
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId
from sdrs_core.repair import Patience
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.claims import Claims
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.collector import Collector, NodeCommands
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.copier import Copier, CopyCommands
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.losses import Losses
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import MetaStore, Term
from sdrs_storaged.control.receipts import Receipts
from sdrs_storaged.control.records import Records
from sdrs_storaged.control.repairer import Repairer
from sdrs_storaged.control.roll_call import RollCall
from sdrs_storaged.control.rounds import Rounds
from sdrs_storaged.control.saves import Saves
from sdrs_storaged.control.stocks import Stocks
from sdrs_storaged.control.strays import Strays
from sdrs_storaged.control.survey import Surveyor
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.control.verifier import FragmentVerifier, Verifier
from sdrs_storaged.logs import get_log

log = get_log("controller")

MAX_REPAIR_JOBS = 10_000  # I10; the next survey finds the rest


class NodeCalls(NodeCommands, FragmentVerifier, CopyCommands, Protocol):
    """All that a controller asks of nodes."""


class Controller:
    def __init__(
        self, records: Records, members: Members, clock: Clock, nodes: NodeCalls, config: ControllerConfig
    ) -> None:
        self.records = records
        self._clock = clock
        self.config = config
        self.members = members
        self.tally = Tally()
        self.commits = Commits(records, members, clock, self.tally, ttl_seconds=config.save_ttl_seconds)
        self.receipts = Receipts(records, members, self.commits)
        self.saves = Saves(records, members, clock, self.tally, self.commits)
        self.rounds = Rounds(records, self.saves, self.commits, clock)
        self.catalog = Catalog(records, clock, self.tally, unpinned=self.rounds.unpinned)
        self.claims = Claims()
        holders = HolderRecords(records)
        self.verifier = Verifier(self.catalog, members, holders, nodes, poke_repair=lambda: self.repairer.poke())
        stocks = Stocks(members, liveness=self._liveness, down_for_seconds=self._down_for_seconds)
        roll_call = RollCall(records, members, self.catalog, holders, nodes)
        strays = Strays(members, holders, nodes, self.claims)
        patience = Patience(config.repair_after_seconds, config.repair_last_copy_after_seconds)
        self.repairer = Repairer(
            records,
            Surveyor(
                records,
                members,
                self.catalog,
                stocks,
                roll_call,
                strays,
                self.claims,
                patience=patience,
                limit=MAX_REPAIR_JOBS,
            ),
            roll_call,
            Copier(records, members, holders, nodes, self.claims),
            clock,
            record_event=self._record_event,
            inspect=self.verifier.inspect,
            interval_seconds=config.repair_interval_seconds,
            concurrency=config.repair_concurrency,
        )
        self.losses = Losses(records, self.catalog, stocks, strays)
        self.collector = Collector(
            records,
            members,
            self.commits,
            self.catalog,
            self.rounds,
            nodes,
            self.claims,
            clock,
            grace_seconds=config.grace_seconds,
            interval_seconds=config.collect_interval_seconds,
            scan_interval_seconds=config.scan_interval_seconds,
        )

    @classmethod
    async def start(
        cls, store: MetaStore, term: Term, clock: Clock, nodes: NodeCalls, config: ControllerConfig
    ) -> Controller:
        records = Records(store, term)
        cluster = await Members.found_cluster(records)
        members = Members(records, clock, cluster, suspect_after_seconds=config.suspect_after_seconds)
        await members.load(default_pool=config.default_pool)
        controller = cls(records, members, clock, nodes, config)
        await controller.commits.load()
        await controller.rounds.load()
        log.info("controller_active", cluster=cluster.id, term=term.number, pending_saves=len(controller.commits))
        return controller

    def _liveness(self, node_id: NodeId) -> Liveness:
        node = self.members.node(node_id)
        if node.state is NodeState.UP:
            return Liveness.UP
        return Liveness.DOWN if node.last_seen_unix_ms else Liveness.UNKNOWN

    def _down_for_seconds(self, node_id: NodeId) -> float | None:
        node = self.members.node(node_id)
        if node.state is NodeState.UP or not node.last_seen_unix_ms:
            return None
        return (self._clock.unix_ms() - node.last_seen_unix_ms) / 1000

    async def _record_event(self, kind: str, text: str, **_: object) -> None:
        log.info(kind, text=text)

    async def jobs(self, *, after: str, limit: int) -> tuple[list[Job], bool]:
        found, more = await self.records.page(keys.JOBS, Job, after=after, limit=limit)
        return [stored.value for stored in found], more

    async def trash_count(self) -> int:
        """Up to a page: whoever connects asks for it, so it must stay cheap."""
        found, _ = await self.records.page(keys.TRASH, Save)
        return len(found)

    def warnings(self) -> list[str]:
        """What an operator should know, in sentences."""
        found = [self.records.frozen_because] if self.records.frozen_because else []
        for node in self.members.nodes():
            if node.state is NodeState.DOWN:
                found.append(f"node {node.id} is down: what only it holds cannot be read until it returns")
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
        found += [
            f"checkpoint {save.title} is damaged: {save.damage}; restores pass it over, and "
            f'"sdrs ckpt delete {save.job} {save.step}" gives it up'
            for save in self.tally.damaged.values()
        ]
        return found
