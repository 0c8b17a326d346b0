"""The loop and its parts, put together over whatever records, storage and executors there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sdrs_scheduler.acting import Means
from sdrs_scheduler.book import Book
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.errands import Errands
from sdrs_scheduler.executors.executor import Executor
from sdrs_scheduler.jobs.machine import MachineSettings
from sdrs_scheduler.jobs.strikes import StrikeSettings
from sdrs_scheduler.keeping import Keeper, KeepingSettings
from sdrs_scheduler.leading import Leader
from sdrs_scheduler.ledger import Ledger
from sdrs_scheduler.node_book import NodeBook
from sdrs_scheduler.observing import Observer, ObservingSettings
from sdrs_scheduler.ordering import Orders
from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.record_store import RecordStore
from sdrs_scheduler.resuming import Resolver
from sdrs_scheduler.scheduler import Desk, Scheduler
from sdrs_scheduler.storage import Storage


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the parts of the loop, apart from where everything is."""

    lease_seconds: float = 10.0
    machine: MachineSettings = field(default_factory=MachineSettings)
    observing: ObservingSettings = field(default_factory=ObservingSettings)
    strikes: StrikeSettings = field(default_factory=StrikeSettings)
    keeping: KeepingSettings = field(default_factory=KeepingSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    errand_threads: int = 8
    verify_threads: int = 2


@dataclass(frozen=True, slots=True)
class Parts:
    scheduler: Scheduler
    leader: Leader
    book: Book
    errands: Errands
    verifying: Errands


def assemble(
    records: RecordStore,
    storage: Storage,
    executors: Mapping[str, Executor],
    clock: Clock,
    settings: Settings,
    *,
    holder: str,
    url: str,
    is_alone: bool = False,
) -> Parts:
    ledger = Ledger(records)
    leader = Leader(ledger, holder, settings.lease_seconds, clock, is_alone=is_alone)
    book = Book(ledger, leader)
    errands, verifying = Errands(settings.errand_threads), Errands(settings.verify_threads)
    means = Means(
        executors,
        storage,
        Observer(records, executors, storage, errands, clock, settings.observing),
        Resolver(storage, verifying, clock),
        Orders(records, errands, clock),
        leader,
        errands,
        clock,
        url,
    )
    desk = Desk(
        book,
        means,
        NodeBook(book, leader, storage, errands, clock, settings.strikes),
        Keeper(book, leader, storage, executors, errands, clock, settings.keeping),
        lambda view: decide(view, settings.policy),
        settings.machine,
    )
    return Parts(Scheduler(desk), leader, book, errands, verifying)
