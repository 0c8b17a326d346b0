"""The scheduler as a process: the only place that wires."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path

import sdrs
from sdrs.cluster import Cluster
from sdrs_core.errors import InvalidArgumentError, RefusedError, SdrsError
from sdrs_scheduler import keys
from sdrs_scheduler.acting import Means
from sdrs_scheduler.book import Book
from sdrs_scheduler.clock import Clock, SystemClock
from sdrs_scheduler.config import Config, load_config
from sdrs_scheduler.errands import Errands
from sdrs_scheduler.executors.executor import Executor
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.jobs.machine import MachineSettings
from sdrs_scheduler.jobs.strikes import StrikeSettings
from sdrs_scheduler.keeping import Keeper, KeepingSettings
from sdrs_scheduler.leading import Leader
from sdrs_scheduler.ledger import Ledger
from sdrs_scheduler.logs import configure_logs, get_log
from sdrs_scheduler.metrics import SchedulerMetrics, serve_metrics
from sdrs_scheduler.node_book import NodeBook
from sdrs_scheduler.observing import Observer, ObservingSettings
from sdrs_scheduler.ordering import Orders
from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.record_store import RecordStore
from sdrs_scheduler.resuming import Resolver
from sdrs_scheduler.scheduler import Desk, Scheduler
from sdrs_scheduler.storage import ClusterStorage, Storage

log = get_log("app")

_ERRAND_THREADS = 8
_WATCH_SECONDS = 20.0
_WATCH_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the parts of the loop, apart from where everything is."""

    lease_seconds: float
    machine: MachineSettings
    observing: ObservingSettings
    strikes: StrikeSettings
    keeping: KeepingSettings
    policy: PolicySettings
    errand_threads: int = _ERRAND_THREADS
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
        NodeBook(book, leader, storage, errands, settings.strikes),
        Keeper(book, leader, storage, errands, clock, settings.keeping),
        lambda view: decide(view, settings.policy),
        settings.machine,
    )
    return Parts(Scheduler(desk), leader, book, errands, verifying)


def settings_from(config: Config) -> Settings:
    known = {item.name for item in fields(PolicySettings)}
    if unknown := sorted(config.policy.keys() - known):
        raise InvalidArgumentError(f"policy.{unknown[0]} is no setting of the policy: there are {', '.join(sorted(known))}")
    return Settings(
        lease_seconds=config.lease_seconds,
        machine=MachineSettings(config.stacks_seconds, config.start_seconds),
        observing=ObservingSettings(settle_seconds=config.settle_seconds, trouble_seconds=config.trouble_seconds),
        strikes=StrikeSettings(config.strikes.limit, config.strikes.window_seconds),
        keeping=KeepingSettings(finished_seconds=config.finished_days * 86_400),
        policy=PolicySettings(**config.policy),
        verify_threads=config.verify_threads,
    )


def executors_from(config: Config, cluster: Cluster) -> dict[str, Executor]:
    found: dict[str, Executor] = {}
    if config.local.enabled:
        found["local"] = _local_executor(config, cluster)
    if config.slurm.enabled:
        found["slurm"] = _slurm_executor(config)
    if not found:
        raise InvalidArgumentError("no executor is enabled: set local.enabled or slurm.enabled")
    return found


class Watch:
    """Wakes the loop when somebody changes a job, so that it need not look all the time."""

    def __init__(self, records: RecordStore, wake: Callable[[], None]) -> None:
        self._records = records
        self._wake = wake
        self._stopped = threading.Event()
        # A daemon: the long poll that it is in may take its time, and nobody waits for that.
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        revision = 0
        while not self._stopped.is_set():
            try:
                newest = self._records.wait(keys.JOBS, revision, _WATCH_SECONDS)
            except SdrsError:
                self._stopped.wait(_WATCH_PAUSE_SECONDS)
                continue
            if newest != revision:
                revision = newest
                self._wake()


class Folder:
    """The scheduler's own folder: a lock, and run.json while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = open(path / "scheduler.lock", "w", encoding="utf-8")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(f"another scheduler runs in {path}: stop it, or use another data_dir") from None
        except OSError as error:
            raise RefusedError(f"data_dir {path} cannot be used: {error}: check the path and its rights") from error

    def announce(self, facts: Mapping[str, object]) -> None:
        part = self.path / "run.json.new"
        part.write_text(json.dumps({"pid": os.getpid(), **facts}, indent=2), encoding="utf-8")
        part.replace(self.path / "run.json")

    def close(self) -> None:
        (self.path / "run.json").unlink(missing_ok=True)
        self._lock.close()


def run(config: Config, stop: threading.Event) -> None:
    """Until ``stop`` is set. Jobs go on."""
    clock = SystemClock()
    with ExitStack() as stack:
        folder = Folder(config.data_dir)
        stack.callback(folder.close)
        cluster = stack.enter_context(sdrs.connect(config.url))
        # The folder's lock says that nobody else goes by this name: the last one to do so is dead.
        holder = f"{socket.gethostname()}:{config.data_dir.resolve()}"
        parts = assemble(
            cluster.records,
            ClusterStorage(cluster, f"scheduler at {socket.gethostname()}"),
            executors_from(config, cluster),
            clock,
            settings_from(config),
            holder=holder,
            url=config.url,
            is_alone=True,
        )
        stack.callback(parts.errands.close)
        stack.callback(parts.verifying.close)
        woken = threading.Event()
        parts.errands.on_done = parts.verifying.on_done = woken.set
        watch = Watch(cluster.records, woken.set)
        watch.start()
        stack.callback(watch.stop)
        facts: dict[str, object] = {"started_unix_ms": clock.unix_ms(), "ready": True}
        if config.metrics:
            source = SchedulerMetrics(lambda: (_on_record(parts), clock.unix_ms(), parts.scheduler.leads))
            facts["metrics"], stop_metrics = serve_metrics(source, config.metrics)
            stack.callback(stop_metrics)
        folder.announce(facts)
        log.info("scheduler_runs", url=config.url, data_dir=str(config.data_dir))
        while not stop.is_set():
            parts.scheduler.tick()
            is_busy = any(stored.value.state.has_nodes for stored in parts.book.jobs.values())
            # Errands that come back one after the other must not make it spin.
            stop.wait(config.tick_seconds / 4)
            woken.wait(config.tick_seconds if is_busy else config.idle_tick_seconds)
            woken.clear()
        try:
            parts.leader.resign()
        except SdrsError as error:
            log.warning("not_resigned", why=error.message)
        log.info("scheduler_ends")


def _on_record(parts: Parts) -> list[tuple[Job, list[Attempt]]]:
    jobs = [stored.value for stored in list(parts.book.jobs.values())]
    return [(job, [stored.value for stored in parts.book.ledger.attempts(job.id)]) for job in jobs]


def main() -> None:
    parser = argparse.ArgumentParser(prog="sdrs_scheduler", description="The scheduler of SDRS.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    stop = threading.Event()
    try:
        config = load_config(arguments.config)
        configure_logs(config.log_level, config.log_format)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        run(config, stop)
    except SdrsError as error:
        sys.stderr.write(f"sdrs_scheduler: {error.message}\n")
        sys.exit(error.exit_code)
