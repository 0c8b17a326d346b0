"""What keeps the stored data whole, wired: verification, repair, collection, and what is lost after all."""

from __future__ import annotations

from typing import Protocol

from sdrs_core.repair import Patience
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.claims import Claims
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.collector import Collector, NodeCommands
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.copier import Copier, CopyCommands
from sdrs_storaged.control.detector import Detector
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.losses import Losses
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records
from sdrs_storaged.control.repairer import Repairer
from sdrs_storaged.control.roll_call import RollCall
from sdrs_storaged.control.rounds import Rounds
from sdrs_storaged.control.stocks import Stocks
from sdrs_storaged.control.strays import Strays
from sdrs_storaged.control.survey import Surveyor
from sdrs_storaged.control.verifier import FragmentVerifier, Verifier

_MAX_REPAIR_JOBS = 10_000  # I10; the next survey finds the rest


class FragmentCalls(NodeCommands, FragmentVerifier, CopyCommands, Protocol):
    """What is asked of nodes about single fragments."""


class Upkeep:
    def __init__(
        self,
        records: Records,
        members: Members,
        detector: Detector,
        commits: Commits,
        catalog: Catalog,
        rounds: Rounds,
        nodes: FragmentCalls,
        clock: Clock,
        config: ControllerConfig,
        events: Events,
    ) -> None:
        self.claims = claims = Claims()
        holders = HolderRecords(records)
        self.verifier = Verifier(catalog, members, holders, nodes, poke_repair=lambda: self.repairer.poke())
        stocks = Stocks(members, liveness=detector.liveness, down_for_seconds=detector.down_for_seconds)
        roll_call = RollCall(records, members, catalog, holders, nodes, clock)
        strays = Strays(members, holders, nodes, claims)
        patience = Patience(config.repair_after_seconds, config.repair_last_copy_after_seconds)
        self.repairer = Repairer(
            records,
            Surveyor(
                records,
                members,
                catalog,
                stocks,
                roll_call,
                strays,
                claims,
                patience=patience,
                limit=_MAX_REPAIR_JOBS,
            ),
            roll_call,
            Copier(records, members, holders, nodes, claims),
            events,
            clock,
            inspect=self.verifier.inspect,
            interval_seconds=config.repair_interval_seconds,
            concurrency=config.repair_concurrency,
        )
        self.losses = Losses(records, catalog, stocks, strays)
        self.collector = Collector(
            records,
            members,
            commits,
            catalog,
            rounds,
            nodes,
            claims,
            clock,
            grace_seconds=config.grace_seconds,
            interval_seconds=config.collect_interval_seconds,
            scan_interval_seconds=config.scan_interval_seconds,
        )
