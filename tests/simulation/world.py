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
from tests.simulation.loop import LivelockError, Process, VirtualLoop
from tests.simulation.metastore import ADDRESS as STORE
from tests.simulation.metastore import ObservedStore, StoreServer
from tests.simulation.network import Network
from tests.simulation.node import NodeProcess
from tests.simulation.patches import SimulatedLog, patched
from tests.simulation.platter import Platter
from tests.simulation.shapes import Shape
from tests.simulation.strands import Strands

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
    def __init__(self, seed: int, shape: Shape, *, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.shape = shape
        self.trace: list[str] = []
        self.failure = ""
        self._is_over = False
        self._keeps_trace = keeps_trace
        self._hasher = hashlib.blake2b(digest_size=16)
        self.loop = VirtualLoop(self._executor_seconds)
        self.loop.set_exception_handler(self._unhandled)
        self.strands = Strands(self.loop, self.defect)
        self.loop.on_end = self.strands.end
        self.network = Network(self.loop, self.chance("network"), self.note, self.defect)
        self.platters: dict[NodeId, Platter] = {}
        self.checks = Checks(self.platters, fail=self.fail)
        self.network.on_request = self.checks.requested
        self._disks = self.chance("disks")
        self.controller_names = tuple(f"controller-{number}" for number in range(1, shape.controller_count + 1))
        # Those that should run; and the disks of those that were removed from the cluster.
        self.node_names: list[NodeId] = []
        self.removed: dict[NodeId, Platter] = {}
        self.has_rot = False
        self._domains: dict[NodeId, str] = {}
        for _ in range(shape.node_count):
            self.new_node()
        self.clocks: dict[str, SimulatedClock] = {}
        self.controllers: dict[str, ControllerProcess] = {}
        self.nodes: dict[NodeId, NodeProcess] = {}
        self.store: StoreServer | None = None
        # Set by planted bugs: which faults to have, all unless told; they then meet more often.
        self.fault_kinds: tuple[str, ...] = ()
        # Set by planted bugs: which commands operators type, all unless told.
        self.commands: tuple[str, ...] = ()
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

    def new_node(self, *, has_own_domain: bool = False) -> NodeId:
        """A machine that was never there; it is not started yet."""
        number = len(self._domains)
        node_id = NodeId(f"node-{number + 1}")
        self._domains[node_id] = f"rack-{number if has_own_domain else number % self.shape.domain_count}"
        self._take_in(node_id, self.new_platter(node_id))
        return node_id

    def new_platter(self, node_id: NodeId, key: str = "") -> Platter:
        return Platter(node_id, {self.new_disk_id(): {} for _ in range(self.shape.disk_count)}, key)

    def new_disk_id(self) -> DiskId:
        return DiskId(self._disks.randbytes(16).hex())

    def start_node(self, node_id: NodeId) -> None:
        if node_id not in self.node_names or (node_id in self.nodes and self.nodes[node_id].process.is_alive):
            return  # it was removed meanwhile, or taken in again and started
        self.note(f"start {node_id}")
        node = NodeProcess(
            self.network,
            self.process(node_id),
            self.strands,
            self.platters[node_id],
            self.checks,
            self.clock(node_id),
            self.controller_names,
            self.chance(f"node {node_id} {self.loop.time()}"),
            domain=self._domains[node_id],
        )
        self.on_node(node)
        self.nodes[node_id] = node

    def retire_node(self, node_id: NodeId) -> None:
        """The cluster has removed it: the machine is switched off."""
        self.note(f"retire {node_id}")
        self.nodes[node_id].process.kill()
        self.node_names.remove(node_id)
        self.removed[node_id] = self.platters.pop(node_id)

    def wreck_node(self, node_id: NodeId) -> None:
        """The machine is lost with all that it had; whoever comes under its name is another one (P2)."""
        self.checks.destroyed |= self.platters[node_id].disks.keys()
        self.retire_node(node_id)
        self.removed[node_id] = self.new_platter(node_id, f"new key of {node_id} {self.loop.time()}")
        self.checks.wrecked.add(node_id)

    def return_node(self, node_id: NodeId, *, is_wiped: bool) -> None:
        """One that was removed comes under its old name: as it was, or wiped and set up anew (P2)."""
        self.note(f"return {node_id} {'wiped' if is_wiped else 'as it was'}")
        platter = self.removed.pop(node_id)
        if is_wiped:
            platter = self.new_platter(node_id, f"another key of {node_id} {self.loop.time()}")
        self._take_in(node_id, platter)
        self.start_node(node_id)

    def _take_in(self, node_id: NodeId, platter: Platter) -> None:
        self.node_names.append(node_id)
        self.platters[node_id] = platter

    def start_all(self) -> None:
        self.start_store()
        for name in self.controller_names:
            self.start_controller(name)
        for node_id in list(self.node_names):
            self.start_node(node_id)

    @property
    def leaders(self) -> list[ControllerProcess]:
        """Whoever believes to lead; more than one after a pause."""
        return [c for c in self.controllers.values() if c.process.is_alive and c.controller is not None]

    # Running

    @contextmanager
    def patched(self) -> Iterator[None]:
        log = SimulatedLog(self.say, self.defect)
        threads, balances = self.strands.stand_in(), self.shape.has_upkeep
        with patched(self.chance("ids"), self.loop.time, log, threads, balances=balances):
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
