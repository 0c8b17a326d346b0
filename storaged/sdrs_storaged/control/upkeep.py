"""What keeps the stored data whole, wired: verification, repair, collection, scrub, and what is lost after all."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sdrs_core.repair import Patience
from sdrs_core.scrub import Schedule
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.claims import Claims
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.collector import Collector, NodeCommands
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.copier import Copier, CopyCommands
from sdrs_storaged.control.detector import Detector
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.findings import Judge
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.looks import FragmentVerifier, Looks
from sdrs_storaged.control.losses import Losses
from sdrs_storaged.control.maker import Maker
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.mender import Mender
from sdrs_storaged.control.mirrors import Mirrors
from sdrs_storaged.control.prospects import Prospects
from sdrs_storaged.control.records import Records
from sdrs_storaged.control.references import References
from sdrs_storaged.control.repair_news import RepairNews
from sdrs_storaged.control.repairer import Repairer
from sdrs_storaged.control.roll_call import RollCall
from sdrs_storaged.control.rounds import Rounds
from sdrs_storaged.control.scrub import Scrubber
from sdrs_storaged.control.scrub_run import ScrubTools
from sdrs_storaged.control.stocks import Stocks
from sdrs_storaged.control.strays import Strays
from sdrs_storaged.control.survey import Surveyor
from sdrs_storaged.control.throttle import RepairSettings, Throttle
from sdrs_storaged.control.verifier import Verifier

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
        looks = Looks(members, nodes)
        judge = Judge(catalog, holders, poke_repair=lambda: self.repairer.poke())
        self.verifier = Verifier(catalog, looks, judge)
        self.stocks = stocks = Stocks(
            members, liveness=detector.liveness, down_for_seconds=detector.down_for_seconds, clock=clock
        )
        roll_call = RollCall(records, members, catalog, holders, nodes, clock)
        strays = Strays(members, holders, nodes, claims)
        patience = Patience(config.repair_after_seconds, config.repair_last_copy_after_seconds)
        mirrors = Mirrors(records, members, catalog)
        prospects = Prospects(members, stocks, claims, mirrors, patience=patience, pinned=rounds.pinned)
        self.holders = holders
        self.copier = copier = Copier(records, members, holders, nodes, claims)
        maker = Maker(holders, copier, claims)
        throttle = Throttle(
            records, RepairSettings(config.repair_bytes_per_second, concurrency=config.repair_concurrency)
        )
        self.repairer = Repairer(
            records,
            Surveyor(
                records,
                members,
                catalog,
                stocks,
                roll_call,
                strays,
                mirrors,
                prospects,
                limit=_MAX_REPAIR_JOBS,
            ),
            roll_call,
            Mender(records, stocks, prospects, holders, copier, maker, clock),
            stocks,
            throttle,
            RepairNews(events),
            clock,
            inspect=self.verifier.inspect,
            interval_seconds=config.repair_interval_seconds,
        )
        self.losses = Losses(records, catalog, stocks, strays)
        references = References(records, members)
        self.collector = Collector(
            records,
            members,
            commits,
            catalog,
            rounds,
            nodes,
            claims,
            references,
            clock,
            grace_seconds=config.grace_seconds,
            interval_seconds=config.collect_interval_seconds,
            scan_interval_seconds=config.scan_interval_seconds,
        )
        self.scrubber = Scrubber(
            ScrubTools(
                records,
                members,
                catalog,
                commits,
                looks,
                judge,
                self.verifier,
                references,
                nodes,
                clock,
                is_repairing=lambda: self.repairer.totals.waiting_blobs > 0,
                bytes_per_second=config.scrub_bytes_per_second,
                sleep=asyncio.sleep,
            ),
            events,
            schedule=Schedule(config.scrub_shallow_interval_seconds, config.scrub_deep_interval_seconds),
        )
