"""The local executor: the scheduler's side. It keeps nothing in memory; what it knows is in the folders of the runs."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM, SIGUSR2, Signals

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_scheduler.executors.executor import Executor, LaunchOrder, NodeFacts, RunFacts
from sdrs_scheduler.executors.local import run_folder as files
from sdrs_scheduler.executors.local.environment import command_words, hosts_text, node_environment
from sdrs_scheduler.executors.local.found_runs import (
    bury,
    facts_of,
    node_of,
    processes_of,
    shepherd_of,
)
from sdrs_scheduler.executors.local.home import home_of
from sdrs_scheduler.executors.local.processes import catches, describe, send
from sdrs_scheduler.executors.local.run_folder import RunFolder, now_ms
from sdrs_scheduler.executors.local.worker_log import read_tail
from sdrs_scheduler.jobs.spec import Launch

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_START_SECONDS = 30.0
_KILL_SECONDS = 10.0
_TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class LocalSettings:
    log_max_bytes: int = 64 << 20
    # Of each node; the oldest is dropped.
    log_max_files: int = 4
    # What is left of a run when one of its nodes has failed gets SIGTERM, and SIGKILL after so long.
    patience_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class _Plan:
    """The shepherd's order, as ``plan.json`` has it."""

    run: str
    workers: Sequence[Mapping[str, object]]
    workdir: str
    environment: Mapping[str, str]
    grace_seconds: float
    patience_seconds: float
    memory_bytes: int
    cpus: int
    log_max_bytes: int
    log_max_files: int


class LocalExecutor(Executor):
    name = "local"

    def __init__(
        self, folder: Path, nodes: Callable[[], Sequence[NodeFacts]], settings: LocalSettings | None = None
    ) -> None:
        """``folder`` is on a disk of this machine, and the same after a restart."""
        self.home = home_of(folder.resolve())
        self._runs = folder.resolve() / "runs"
        self._logs = folder.resolve() / "logs"
        self._nodes = nodes
        self._settings = settings or LocalSettings()

    def nodes(self) -> tuple[NodeFacts, ...]:
        return tuple(self._nodes())

    def launch(self, order: LaunchOrder) -> None:
        _check_name(order.run)
        folder = self._folder(order.run)
        if folder.has(files.BEGUN) or folder.has(files.ENDED):
            return
        _check(order)
        try:
            folder.make()
            self._log_folder(order.run).mkdir(mode=0o750, parents=True, exist_ok=True)
            folder.write_text(files.HOSTS, hosts_text(order.slots))
            # From here on the run is known. A scheduler that is killed leaves what the next one goes on with.
            folder.write(files.PLAN, asdict(self._plan(order, folder)))
        except OSError as error:
            raise UnavailableError(
                f"run {order.run} cannot be started: {folder.path} takes no files ({error.strerror}): "
                "free its disk, or let the scheduler write there",
                run=order.run,
            ) from error
        self._start_shepherd(order.run, folder)

    def poll(self, runs: Sequence[str]) -> Mapping[str, RunFacts]:
        with self._readable():
            return {run: facts_of(self._folder(run), self._log_folder(run)) for run in runs}

    def warn(self, run: str, signal: str) -> None:
        folder = self._folder(run)
        number = Signals[f"SIG{signal}"]
        with self._readable():
            processes = processes_of(folder)
        if not processes or folder.has(files.ENDED):
            return
        if not folder.has(files.WARNED):
            _mark(folder, files.WARNED)
        # Who has no handler dies of it. A shell that waits for its trainer, or torchrun at USR1, would end the run
        # while the trainer saves: they are passed over, unless nobody listens and dying is what is left.
        for entry in [entry for entry in processes if catches(entry.pid, number)] or processes:
            send(entry, number)

    def dump_stacks(self, run: str) -> None:
        folder = self._folder(run)
        for entry in processes_of(folder):
            if catches(entry.pid, SIGUSR2):
                send(entry, SIGUSR2)
                # A stopped one does it as the first thing when it goes on; others do not mind.
                send(entry, SIGCONT)
            else:
                # It would die of the signal. Where the kernel has it is better than nothing.
                self._append(run, node_of(folder, entry), f"sdrs: {describe(entry)}\n")

    def kill(self, run: str) -> None:
        folder = self._folder(run)
        if not folder.has(files.PLAN) or folder.has(files.ENDED):
            return
        # Before anything else: a shepherd that comes up now starts nothing.
        _mark(folder, files.KILL)
        shepherd = shepherd_of(folder)
        if shepherd is not None:
            send(shepherd, SIGTERM)
            send(shepherd, SIGCONT)
            _wait(lambda: folder.has(files.ENDED) or not folder.is_locked(), _KILL_SECONDS)
            # One that only waits for a full disk to take its record keeps what nobody else knows.
            if not folder.has(files.ENDED) and processes_of(folder):
                send(shepherd, SIGKILL)
                _wait(lambda: not folder.is_locked(), _KILL_SECONDS)
        if not folder.has(files.ENDED) and not folder.is_locked():
            bury(folder, "killed by the scheduler; its shepherd did not answer")

    def log_tail(self, run: str, max_bytes: int) -> str:
        with self._readable():
            logs = sorted(self._log_folder(run).glob("*.log"))
            pieces = [read_tail(path, max_bytes // len(logs)) for path in logs]
        # One character for each byte that is no text: it may not get longer.
        return "".join(piece.decode("utf-8", "replace").replace("\ufffd", "?") for piece in pieces)

    def forget(self, run: str) -> None:
        folder = self._folder(run)
        if folder.has(files.ENDED):
            shutil.rmtree(folder.path, ignore_errors=True)

    def erase(self, run: str) -> None:
        _check_name(run)
        self.forget(run)
        shutil.rmtree(self._log_folder(run), ignore_errors=True)

    def _plan(self, order: LaunchOrder, folder: RunFolder) -> _Plan:
        ranks = range(1 if order.launch is Launch.ONCE else len(order.slots))
        workers = [
            {
                "node": order.slots[rank].node,
                "words": command_words(order.command),
                "environment": node_environment(order.slots, rank, str(folder.path / files.HOSTS), order.grace_seconds),
                "log": str(self._log_folder(order.run) / f"{order.slots[rank].node}.log"),
            }
            for rank in ranks
        ]
        return _Plan(
            order.run,
            workers,
            order.workdir or str(Path.home()),
            order.environment,
            order.grace_seconds,
            self._settings.patience_seconds,
            order.memory_bytes_per_node,
            order.cpus_per_node,
            self._settings.log_max_bytes,
            self._settings.log_max_files,
        )

    def _start_shepherd(self, run: str, folder: RunFolder) -> None:
        command = [sys.executable, "-P", "-m", "sdrs_scheduler.executors.local.shepherd", str(folder.path)]
        try:
            # A session of its own: what ends the scheduler's does not end the run.
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                timeout=_START_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"run {run}: its shepherd does not start: {error}", run=run) from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise UnavailableError(f"run {run}: its shepherd could not start it: {said[-1]}", run=run)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """A disk that cannot be read says nothing about runs."""
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"{self._runs.parent} cannot be read ({error}): look at its disk") from error

    def _append(self, run: str, node: str, line: str) -> None:
        with contextlib.suppress(OSError), (self._log_folder(run) / f"{node}.log").open("a") as log:
            log.write(line)

    def _folder(self, run: str) -> RunFolder:
        return RunFolder(self._runs / run)

    def _log_folder(self, run: str) -> Path:
        return self._logs / run


def _check_name(run: str) -> None:
    if not _RUN_NAME.fullmatch(run):
        raise InvalidArgumentError(f"{run!r} cannot name a run: letters, digits, '.', '_' and '-' only")


def _check(order: LaunchOrder) -> None:
    if not order.slots:
        raise InvalidArgumentError(f"run {order.run} has no nodes to run on")
    if not order.command:
        raise InvalidArgumentError(f"run {order.run} has no command")
    if order.workdir and not Path(order.workdir).is_dir():
        raise InvalidArgumentError(
            f"the job's folder {order.workdir} does not exist on this machine: create it, or change `workdir`"
        )


def _mark(folder: RunFolder, name: str) -> None:
    """Where a full disk does not take it the signals that follow still do their work, only less exactly."""
    with contextlib.suppress(OSError):
        folder.write(name, {"at_ms": now_ms()})


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(_TICK_SECONDS)
