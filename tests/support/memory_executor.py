"""The in-memory twin of an executor: no processes, and it does what a test says. It passes the executors' contract.

Of shell it understands what the contract needs: ``echo``, ``exit``, ``kill -N $$``, ``sleep``, ``trap 'exit N' TERM``
and ``[ $SDRS_NODE_RANK = N ] &&`` before one of them. A run with any other command goes on until somebody ends it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from signal import Signals

from sdrs_core.errors import UnavailableError
from sdrs_scheduler.executors.executor import Executor, Exit, LaunchOrder, NodeFacts, RunFacts, RunState
from sdrs_scheduler.jobs.spec import Launch


@dataclass
class MemoryRun:
    order: LaunchOrder
    started_unix_ms: int
    running: list[str]
    exits: dict[str, Exit] = field(default_factory=dict)
    lost_nodes: tuple[str, ...] = ()
    ended_unix_ms: int = 0
    logs: dict[str, str] = field(default_factory=dict)
    # What a warning does to its processes: the exit for each signal that they know, None: they do not mind.
    traps: dict[str, Exit | None] = field(default_factory=dict)
    state: RunState = RunState.RUNNING
    clock: Callable[[], int] = field(default_factory=lambda: _now_ms)


@dataclass
class MemoryWorld:
    """What outlives the scheduler: the nodes, the runs, and what was done to them, in order."""

    nodes: dict[str, NodeFacts]
    runs: dict[str, MemoryRun] = field(default_factory=dict)
    forgotten_logs: dict[str, str] = field(default_factory=dict)
    deeds: list[tuple[str, str]] = field(default_factory=list)
    # Of every run that was started, also of those that are forgotten.
    orders: dict[str, LaunchOrder] = field(default_factory=dict)
    is_reachable: bool = True
    # Unix milliseconds.
    clock: Callable[[], int] = field(default_factory=lambda: _now_ms)

    def end(self, run: str, exits: Mapping[str, Exit] | None = None) -> None:
        """The run's processes end like this; all with 0 where nothing is said."""
        entry = self.runs[run]
        for node, exit in (exits or {node: Exit(code=0) for node in entry.running}).items():
            _note_exit(entry, node, exit)

    def say(self, run: str, text: str) -> None:
        entry = self.runs[run]
        for node in entry.logs:
            entry.logs[node] += text + "\n"

    def lose(self, node: str, problem: str = "it does not answer") -> None:
        """The node is gone, with every process on it."""
        self.nodes[node] = replace(self.nodes[node], is_up=False, problem=problem)
        for entry in self.runs.values():
            if node in entry.running:
                entry.lost_nodes += (node,)
                _note_exit(entry, node, Exit(signal=Signals.SIGKILL))


class MemoryExecutor(Executor):
    name = "local"

    def __init__(self, world: MemoryWorld, home: str = "") -> None:
        self._world = world
        self.home = home

    def nodes(self) -> tuple[NodeFacts, ...]:
        self._answer()
        return tuple(self._world.nodes.values())

    def launch(self, order: LaunchOrder) -> None:
        self._answer()
        self._world.deeds.append(("launch", order.run))
        if order.run in self._world.runs:
            return
        self._world.orders[order.run] = order
        slots = order.slots[:1] if order.launch is Launch.ONCE else order.slots
        nodes = [slot.node for slot in slots]
        entry = MemoryRun(order, self._world.clock(), nodes, logs=dict.fromkeys(nodes, ""), clock=self._world.clock)
        self._world.runs[order.run] = entry
        for rank, node in enumerate(list(nodes)):
            _interpret(entry, node, rank)

    def poll(self, runs: Sequence[str]) -> Mapping[str, RunFacts]:
        self._answer()
        return {run: self._facts(run) for run in runs}

    def warn(self, run: str, signal: str) -> None:
        self._answer()
        self._world.deeds.append((f"warn {signal}", run))
        entry = self._world.runs.get(run)
        if entry is None or signal not in entry.traps:
            return
        exit = entry.traps[signal]
        for node in list(entry.running) if exit is not None else ():
            _note_exit(entry, node, exit)  # type: ignore[arg-type]

    def dump_stacks(self, run: str) -> None:
        self._answer()
        self._world.deeds.append(("dump_stacks", run))
        if run in self._world.runs:
            self._world.say(run, "Current thread (most recent call first):")

    def kill(self, run: str) -> None:
        self._answer()
        self._world.deeds.append(("kill", run))
        entry = self._world.runs.get(run)
        for node in list(entry.running) if entry else ():
            _note_exit(entry, node, Exit(signal=Signals.SIGKILL))  # type: ignore[arg-type]

    def log_tail(self, run: str, max_bytes: int) -> str:
        entry = self._world.runs.get(run)
        text = "".join(entry.logs.values()) if entry else self._world.forgotten_logs.get(run, "")
        return text[-max_bytes:]

    def forget(self, run: str) -> None:
        self._world.deeds.append(("forget", run))
        entry = self._world.runs.pop(run, None)
        if entry is not None:
            self._world.forgotten_logs[run] = "".join(entry.logs.values())

    def erase(self, run: str) -> None:
        self.forget(run)
        self._world.forgotten_logs.pop(run, None)

    def _answer(self) -> None:
        if not self._world.is_reachable:
            raise UnavailableError("the executor does not answer")

    def _facts(self, run: str) -> RunFacts:
        entry = self._world.runs.get(run)
        if entry is None:
            return RunFacts(RunState.UNKNOWN)
        return RunFacts(
            RunState.ENDED if not entry.running else entry.state,
            entry.started_unix_ms,
            entry.ended_unix_ms,
            dict(entry.exits),
            entry.lost_nodes,
            tuple(slot.node for slot in entry.order.slots),
        )


def _interpret(entry: MemoryRun, node: str, rank: int) -> None:
    command = entry.order.command
    for statement in (command if isinstance(command, str) else " ".join(command)).split("; "):
        if node not in entry.running:
            return
        guard = re.match(r"\[ \$SDRS_NODE_RANK = (\d+) \] && ", statement)
        if guard and int(guard[1]) != rank:
            continue
        word, _, rest = (statement[guard.end() :] if guard else statement).partition(" ")
        if word == "echo":
            entry.logs[node] += rest + "\n"
        elif word == "exit":
            return _note_exit(entry, node, Exit(code=int(rest)))
        elif word == "kill":
            return _note_exit(entry, node, Exit(signal=int(rest.split()[0][1:])))
        elif word == "trap" and (trap := re.fullmatch(r"'exit (\d+)' (\w+)", rest)):
            entry.traps[trap[2]] = Exit(code=int(trap[1]))
        elif word == "sleep":
            for signal in ("TERM", "USR1"):
                entry.traps.setdefault(signal, Exit(signal=Signals[f"SIG{signal}"]))
            return None
        else:
            return None
    return _note_exit(entry, node, Exit(code=0))


def _note_exit(entry: MemoryRun, node: str, exit: Exit) -> None:
    if node not in entry.running:
        return
    entry.running.remove(node)
    has_failed_before = any(other.code != 0 for other in entry.exits.values())
    entry.exits = {**entry.exits, node: exit} if has_failed_before else {node: exit, **entry.exits}
    if exit.code != 0:
        for other in list(entry.running):
            _note_exit(entry, other, Exit(signal=Signals.SIGTERM))
    if not entry.running:
        entry.ended_unix_ms = entry.clock()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
