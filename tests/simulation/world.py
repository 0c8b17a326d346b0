"""One simulated cluster, all of it from a seed: who is in it, what befalls it, and what must be true at the end."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from sdrs_core.ids import DiskId, NodeId
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control.clock import Clock
from tests.simulation.checks import Checks
from tests.simulation.controller import ControllerProcess
from tests.simulation.disk import Platter
from tests.simulation.loop import LivelockError, Process, VirtualLoop
from tests.simulation.metastore import ADDRESS as STORE
from tests.simulation.metastore import ObservedStore, StoreServer
from tests.simulation.network import Network
from tests.simulation.node import NodeProcess
from tests.simulation.patches import SimulatedLog, patched

CONFIG = ControllerConfig(
    default_pool=False,
    suspect_after_seconds=2.0,
    settle_seconds=2.0,
    collect_interval_seconds=1.0,
    scan_interval_seconds=2.0,
    grace_seconds=2.0,
    save_ttl_seconds=8.0,
    repair_after_seconds=2.0,
    repair_last_copy_after_seconds=1.0,
    repair_interval_seconds=2.0,
)
_EPOCH_UNIX_SECONDS = 1_700_000_000.0


class SimulationError(AssertionError):
    """An invariant did not hold, or something got stuck. The seed replays it exactly."""


class SimulatedClock(Clock):
    """Wall clocks are wrong and jump; the monotonic one goes on, also while its process stands still (I8)."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.ahead_seconds = 0.0

    def unix_seconds(self) -> float:
        return _EPOCH_UNIX_SECONDS + self._loop.time() + self.ahead_seconds

    def unix_ms(self) -> int:
        return int(1000 * self.unix_seconds())

    def monotonic_seconds(self) -> float:
        return self._loop.time()


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    digest: str
    virtual_seconds: float
    commits: int
    acknowledged: int
    failure: str
    trace: list[str]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Around the whole life of a world: what is freed when must not depend on what ran before, and nothing is left."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        with _in_silence():
            gc.collect()
        gc.enable()
        gc.unfreeze()


@contextmanager
def _in_silence() -> Iterator[None]:
    """What was left half done complains when it is let go of."""
    tell, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = tell


class World:
    def __init__(self, seed: int, *, node_count: int, controller_count: int, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.failure = ""
        self._is_over = False
        self._keeps_trace = keeps_trace
        self._hasher = hashlib.blake2b(digest_size=16)
        self.loop = VirtualLoop(self._executor_seconds)
        self.loop.set_exception_handler(self._unhandled)
        self.network = Network(self.loop, self.chance("network"), self.note, self.defect)
        self.platters: dict[NodeId, Platter] = {}
        self.checks = Checks(self.platters, fail=self.fail)
        self.network.on_request = self.checks.requested
        self._disks = self.chance("disks")
        self.controller_names = tuple(f"controller-{number}" for number in range(1, controller_count + 1))
        self.node_names = tuple(NodeId(f"node-{number}") for number in range(1, node_count + 1))
        self.clocks: dict[str, SimulatedClock] = {}
        self.controllers: dict[str, ControllerProcess] = {}
        self.nodes: dict[NodeId, NodeProcess] = {}
        self.store: StoreServer | None = None
        # Set by planted bugs: which faults to have, all unless told; they then meet more often.
        self.fault_kinds: tuple[str, ...] = ()
        # Set by planted bugs: what to do to a node's process once it is made.
        self.on_node: Callable[[NodeProcess], None] = lambda node: None

    def chance(self, what: str) -> Random:
        """Each part has its own, so that a change in one does not shift all others."""
        return Random(f"{self.seed} {what}")

    def _executor_seconds(self) -> float:
        return 0.001 * self._disks.random() if self._disks.random() < 0.95 else 0.3 * self._disks.random()

    # What is seen

    def note(self, text: str) -> None:
        line = f"{self.loop.time():10.4f} {text}"
        self._hasher.update(line.encode())
        if self._keeps_trace:
            self.trace.append(line)

    def say(self, text: str) -> None:
        """Of the production code's own log; too much to be part of every run's digest."""
        if self._keeps_trace:
            self.trace.append(f"{self.loop.time():10.4f}     {text}")

    def fail(self, why: str) -> None:
        if not self.failure and not self._is_over:
            self.note(f"FAILED {why}")
            self.failure = f"at {self.loop.time():.4f} s: {why}"
            self.loop.stop()

    def defect(self, where: str, error: BaseException) -> None:
        """An exception that production code did not mean to raise."""
        told = "".join(traceback.format_exception(error))
        self.fail(f"defect in {where}: {type(error).__name__}: {error}\n{told}")

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.defect(str(context.get("message")), error)

    # Who is there

    def process(self, name: str) -> Process:
        return Process(self.loop, name)

    def clock(self, name: str) -> SimulatedClock:
        return self.clocks.setdefault(name, SimulatedClock(self.loop))

    def start_store(self) -> StoreServer:
        observed = ObservedStore(self._store_changed)
        self.store = StoreServer(self.network, self.process(STORE), self.chance("store"), observed, self.checks.written)
        return self.store

    def _store_changed(self, revision: int, events: Any) -> None:
        self.note(f"revision {revision}: {', '.join(event.entry.key for event in events)}")
        assert self.store
        self.store.wake_watches(events)
        self.checks.changed(revision, events)

    def start_controller(self, name: str) -> None:
        self.note(f"start {name}")
        self.controllers[name] = ControllerProcess(self.network, self.process(name), self.clock(name), CONFIG)

    def start_node(self, node_id: NodeId) -> None:
        self.note(f"start {node_id}")
        if node_id not in self.platters:
            self.platters[node_id] = Platter(node_id, self.new_disk_id())
        node = NodeProcess(
            self.network,
            self.process(node_id),
            self.platters[node_id],
            self.checks,
            self.clock(node_id),
            self.controller_names,
            self.chance(f"node {node_id} {self.loop.time()}"),
            domain=f"rack-{self.node_names.index(node_id) % 4}" if len(self.node_names) > 4 else node_id,
        )
        self.on_node(node)
        self.nodes[node_id] = node

    def new_disk_id(self) -> DiskId:
        return DiskId(self._disks.randbytes(16).hex())

    def start_all(self) -> None:
        self.start_store()
        for name in self.controller_names:
            self.start_controller(name)
        for node_id in self.node_names:
            self.start_node(node_id)

    @property
    def leaders(self) -> list[ControllerProcess]:
        """Whoever believes to lead; more than one after a pause."""
        return [c for c in self.controllers.values() if c.process.is_alive and c.controller is not None]

    # Running

    @contextmanager
    def patched(self) -> Iterator[None]:
        log = SimulatedLog(self.say, self.defect)
        with patched(self.chance("ids"), self.loop.time, log):
            yield

    def run(self, story: Coroutine[Any, Any, None]) -> Outcome:
        """Play ``story`` to its end, or to the first thing that is wrong."""
        with self.patched():
            try:
                task = self.loop.create_task(story)
                task.add_done_callback(lambda _: self.loop.stop())
                self.loop.run_forever()
                error = task.exception() if task.done() and not task.cancelled() else None
                if isinstance(error, SimulationError):
                    self.fail(str(error))
                elif error:
                    self.defect("the story", error)
            except LivelockError as error:
                self.fail(f"stuck: {error}")
            virtual_seconds, self._is_over = self.loop.time(), True
            with _in_silence():
                self.loop.end()
                self.controllers, self.nodes, self.store = {}, {}, None
        return Outcome(
            self.seed,
            self._hasher.hexdigest(),
            virtual_seconds,
            self.checks.commit_count,
            len(self.checks.acknowledged),
            self.failure,
            self.trace,
        )
