"""Executors of each kind for the contract suite, with runs that are ended when the test is over."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sdrs_scheduler.executors.executor import Executor, Exit, LaunchOrder, NodeFacts, RunFacts, RunState
from sdrs_scheduler.executors.local.executor import LocalExecutor, LocalSettings
from sdrs_scheduler.executors.slurm.executor import SlurmExecutor
from sdrs_scheduler.jobs.job import Slot
from sdrs_scheduler.jobs.spec import Launch
from tests.support.memory_executor import MemoryExecutor, MemoryWorld
from tests.support.slurm import SlurmCluster
from tests.support.waiting import wait_for

PATIENCE_SECONDS = 60
GPUS_PER_NODE = 4


class Bench:
    """One executor, two nodes of four GPUs or more, and a folder that runs on all of them can write to."""

    def __init__(self, make: Callable[[], Executor], folder: Path, is_twin: bool = False) -> None:
        self._make = make
        # In memory: time does not pass for its runs.
        self.is_twin = is_twin
        self.executor = make()
        self.folder = folder
        self._numbers = itertools.count(1)
        self._runs: list[str] = []
        self.nodes = tuple(sorted(node.name for node in self.executor.nodes() if node.is_up))

    def again(self) -> Executor:
        """The executor of a scheduler that was started anew."""
        self.executor = self._make()
        return self.executor

    def order(
        self, command: str | tuple[str, ...], node_count: int = 1, gpus: int = 2, **changes: object
    ) -> LaunchOrder:
        run = f"bench-{os.getpid():x}.{next(self._numbers)}"
        self._runs.append(run)
        slots = tuple(Slot(node, tuple(range(gpus))) for node in self.nodes[:node_count])
        order = LaunchOrder(run, command, slots, Launch.PER_NODE, str(self.folder), {"SDRS_JOB_ID": run}, 30.0)
        return replace(order, **changes)  # type: ignore[arg-type]

    def launched(self, command: str | tuple[str, ...], node_count: int = 1, **changes: object) -> str:
        order = self.order(command, node_count, **changes)  # type: ignore[arg-type]
        self.executor.launch(order)
        return order.run

    def facts(self, run: str) -> RunFacts:
        return self.executor.poll([run])[run]

    def log(self, run: str) -> str:
        return self.executor.log_tail(run, 100_000)

    def ended(self, run: str) -> RunFacts:
        def end() -> RunFacts | None:
            facts = self.facts(run)
            return facts if facts.state is RunState.ENDED else None

        return wait_for(end, f"the end of {run}: {self.facts(run)}", PATIENCE_SECONDS)

    def running(self, run: str) -> RunFacts:
        wait_for(lambda: self.facts(run).state is RunState.RUNNING, f"{run} runs: {self.facts(run)}", PATIENCE_SECONDS)
        return self.facts(run)

    def said(self, run: str, text: str, count: int = 1) -> None:
        wait_for(lambda: self.log(run).count(text) >= count, f"{text!r} from {run}", PATIENCE_SECONDS)

    def pid(self, name: str) -> int:
        """The number that a run wrote into the file ``name``: whole once there is a line break."""
        path = self.folder / name
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"), f"a pid in {name}", PATIENCE_SECONDS)
        return int(path.read_text())

    def end_all(self) -> None:
        for run in self._runs:
            self.executor.kill(run)
            wait_for(
                lambda run=run: self.facts(run).state not in (RunState.RUNNING, RunState.WAITING),  # type: ignore[misc]
                f"the end of {run}",
                PATIENCE_SECONDS,
            )


@contextmanager
def memory_bench(folder: Path) -> Iterator[Bench]:
    world = MemoryWorld({name: NodeFacts(name, GPUS_PER_NODE) for name in ("n1", "n2")})
    bench = Bench(lambda: MemoryExecutor(world), folder, is_twin=True)
    yield bench
    bench.end_all()


@contextmanager
def local_bench(folder: Path) -> Iterator[Bench]:
    nodes = [NodeFacts(name, GPUS_PER_NODE) for name in ("n1", "n2")]
    settings = LocalSettings(patience_seconds=1.0)
    work = folder / "work"
    work.mkdir()
    bench = Bench(lambda: LocalExecutor(folder / "executor", lambda: nodes, settings), work)
    try:
        yield bench
    finally:
        bench.end_all()


@contextmanager
def slurm_bench(folder: Path, slurm: SlurmCluster) -> Iterator[Bench]:
    bench = Bench(lambda: SlurmExecutor(folder / "runs", slurm.settings), folder)
    try:
        yield bench
    finally:
        bench.end_all()


def died_of(exit: Exit, signal: int) -> bool:
    """Also through a shell in between, which tells it by its exit code."""
    return exit.signal == signal or exit.code == 128 + signal


def is_alive(pid: int) -> bool:
    """Whether it is there and more than a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def gone(*pids: int) -> None:
    wait_for(lambda: not any(map(is_alive, pids)), f"the end of the processes {pids}", PATIENCE_SECONDS)
