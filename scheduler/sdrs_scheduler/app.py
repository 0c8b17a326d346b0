"""The scheduler as a process: the only place that wires."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import sdrs
from sdrs.cluster import Cluster
from sdrs_core.errors import DeadlineExceededError, InvalidArgumentError, SdrsError, UnavailableError
from sdrs_scheduler.assembly import Parts, Settings, assemble
from sdrs_scheduler.clock import SystemClock
from sdrs_scheduler.config import Config, load_config
from sdrs_scheduler.executors.executor import Executor
from sdrs_scheduler.executors.local.executor import LocalExecutor, LocalSettings
from sdrs_scheduler.executors.local.local_nodes import LocalNodes, LocalNodesConfig, make_probe
from sdrs_scheduler.executors.slurm.executor import SlurmExecutor
from sdrs_scheduler.executors.slurm.settings import SlurmSettings
from sdrs_scheduler.jobs.machine import MachineSettings
from sdrs_scheduler.jobs.strikes import StrikeSettings
from sdrs_scheduler.keeping import KeepingSettings
from sdrs_scheduler.logs import configure_logs, get_log
from sdrs_scheduler.metrics import SchedulerMetrics, Seen, serve_metrics
from sdrs_scheduler.observing import ObservingSettings
from sdrs_scheduler.own_folder import OwnFolder
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.storage import ClusterStorage
from sdrs_scheduler.watching import Watch

log = get_log("app")

_CONNECT_PAUSE_SECONDS = 1.0


def settings_from(config: Config) -> Settings:
    known = {item.name for item in fields(PolicySettings)}
    if unknown := sorted(config.policy.keys() - known):
        there_are = ", ".join(sorted(known))
        raise InvalidArgumentError(f"policy.{unknown[0]} is no setting of the policy: there are {there_are}")
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
        local = config.local
        nodes = LocalNodesConfig(local.gpus_per_node, local.gpu_type, frozenset(local.groups))
        found["local"] = LocalExecutor(
            config.data_dir,
            LocalNodes(cluster.nodes, make_probe(local.probe_file), nodes),
            LocalSettings(local.log_max_bytes, local.log_max_files),
        )
    if config.slurm.enabled:
        slurm = config.slurm
        folder = slurm.folder or config.data_dir / "slurm"
        settings = slurm.model_dump(exclude={"enabled", "folder"})
        found["slurm"] = SlurmExecutor(folder, SlurmSettings(**settings))
    if not found:
        raise InvalidArgumentError("no executor is enabled: set local.enabled or slurm.enabled")
    return found


def run(config: Config, stop: threading.Event) -> None:
    """Until ``stop`` is set. Jobs go on."""
    clock = SystemClock()
    with ExitStack() as stack:
        folder = OwnFolder(config.data_dir)
        stack.callback(folder.close)
        cluster = _connected(config.url, stop)
        if cluster is None:
            return
        stack.enter_context(cluster)
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
            source = SchedulerMetrics(lambda: _seen(parts, clock.unix_ms()))
            facts["metrics"], stop_metrics = serve_metrics(source, config.metrics)
            stack.callback(stop_metrics)
        folder.announce(facts)
        log.info("scheduler_runs", url=config.url, data_dir=str(config.data_dir))
        while not stop.is_set():
            _tick(parts)
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


def _connected(url: str, stop: threading.Event) -> Cluster | None:
    """The storage may be started after us. None: ``stop`` came first."""
    while not stop.is_set():
        try:
            return sdrs.connect(url)
        except (UnavailableError, DeadlineExceededError) as error:
            log.warning("storage_not_reached_yet", why=error.message)
            stop.wait(_CONNECT_PAUSE_SECONDS)
    return None


def _tick(parts: Parts) -> None:
    try:
        parts.scheduler.tick()
    except Exception as error:
        # A defect of ours. Jobs are better off with a scheduler that looks again than with none.
        log.error("tick_failed", exc_info=error)


def _seen(parts: Parts, now_unix_ms: int) -> Seen:
    """Read from the records, in the thread of who asks."""
    ledger = parts.book.ledger
    attempts = ledger.all_attempts()
    jobs = [(stored.value, attempts.get(stored.value.id, [])) for stored in ledger.jobs()]
    gpus = sum(stored.value.gpus for stored in ledger.nodes().values() if stored.value.is_up)
    return Seen(now_unix_ms, parts.scheduler.leads, jobs, gpus)


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
