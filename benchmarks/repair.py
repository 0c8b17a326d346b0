"""What a lost node costs: how fast its fragments are made anew elsewhere, and what that leaves to saves.

A fragment of 4+2 is made of four others, so four bytes are read for each that was lost.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import raw
from benchmarks.processes import AS_DEPLOYED
from benchmarks.results import Result
from sdrs import Checkpoints
from sdrs_core.checksums import BLOCK_BYTES
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.waiting import wait_for

GIB = raw.GIB
# Six that hold the fragments of a blob, and one that takes those of the node that is lost.
NODE_COUNT = 7
STATE_BYTES = 2 * GIB
SAVE_BYTES = GIB // 2
TRIALS = 3
REPAIR_SECONDS = 300.0
# As deployed, but nobody is waited for.
AT_ONCE = AS_DEPLOYED | {
    "repair_after_seconds": 0,
    "repair_last_copy_after_seconds": 0,
    "repair_interval_seconds": 0.2,
    "settle_seconds": 0,
}


class _Lost(NamedTuple):
    """A node that was killed, and when."""

    daemon: DaemonProcess
    killed: float

    def files(self) -> list[Path]:
        return sorted(self.daemon.data_dir.glob("disk-*/fragments/*/*"))


def repair(folder: Path) -> Iterator[Result]:
    """From the kill of a node until its fragments are durable elsewhere, the decision included."""
    rates, raw_rates = [], []
    for trial in range(TRIALS):
        with _cluster(folder / str(trial)) as (cluster, ckpts):
            ckpts.save(step=1, state=_state(STATE_BYTES)).wait("L3")
            lost = _strike(cluster)
            wait_for(_is_whole_without(cluster, lost), "repair to be done", REPAIR_SECONDS)
            seconds = time.monotonic() - lost.killed
            files = lost.files()
            size_bytes = sum(path.stat().st_size for path in files)
            rates.append(size_bytes / seconds)
            raw_rates.append(size_bytes / _copy_raw(files, folder / "raw"))
    ours, theirs = statistics.median(rates), statistics.median(raw_rates)
    yield Result("repair", ours / 1e9, "GB/s", "raw read+write+fsync of the lost fragments", ours / theirs)


def save_under_repair(folder: Path) -> Iterator[Result]:
    """L3 saves while a lost node's fragments are made anew, against the same saves once that is done."""
    during: list[float] = []
    after: list[float] = []
    with _cluster(folder) as (cluster, ckpts):
        steps = itertools.count(1)
        for _ in range(2):
            _save(ckpts, next(steps), _state(STATE_BYTES))
        state = _state(SAVE_BYTES)
        _save(ckpts, next(steps), state)
        lost = _strike(cluster)
        is_whole = _is_whole_without(cluster, lost)
        wait_for(lambda: _begun(cluster, lost), "repair to begin", REPAIR_SECONDS)
        with _watching(is_whole) as is_done:
            while not is_done.is_set():
                seconds = _save(ckpts, next(steps), state)
                if not is_done.is_set():
                    during.append(seconds)
        assert during, "repair was over before a save was: save less, or lose more"
        for _ in range(max(TRIALS, len(during))):
            after.append(_save(ckpts, next(steps), state))
    slow, quick = statistics.median(during), statistics.median(after)
    yield Result("save_under_repair", SAVE_BYTES / slow / 1e9, "GB/s", "the same saves without repair", quick / slow)


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[LocalCluster, Checkpoints]]:
    folder.mkdir(exist_ok=True)
    with running_cluster(folder, node_count=NODE_COUNT, controller=AT_ONCE) as cluster, cluster.connect() as client:
        client.create_pool("safe", "L3", ec="4+2")
        yield cluster, client.checkpoints("bench", pool="safe")


def _state(size_bytes: int) -> dict[str, np.ndarray]:
    return {f"layer{index}": array for index, array in enumerate(raw.arrays_of(size_bytes, 16))}


def _save(ckpts: Checkpoints, step: int, state: dict[str, np.ndarray]) -> float:
    raw.change(state.values(), step)
    start = time.monotonic()
    ckpts.save(step=step, state=state).wait("L3")
    return time.monotonic() - start


def _strike(cluster: LocalCluster) -> _Lost:
    """The node that holds most is killed."""
    victim = max(cluster.nodes, key=lambda node: len(list(node.data_dir.glob("disk-*/fragments/*/*"))))
    victim.kill()
    return _Lost(victim, time.monotonic())


def _is_whole_without(cluster: LocalCluster, lost: _Lost) -> Callable[[], bool]:
    """Whether all that the lost node held is on the others."""
    names = {path.name for path in lost.files()}
    return lambda: names <= _names_on_others(cluster, lost)


def _begun(cluster: LocalCluster, lost: _Lost) -> bool:
    return bool({path.name for path in lost.files()} & _names_on_others(cluster, lost))


def _names_on_others(cluster: LocalCluster, lost: _Lost) -> set[str]:
    others = [node for node in cluster.nodes if node is not lost.daemon]
    return {path.name for node in others for path in node.data_dir.glob("disk-*/fragments/*/*")}


@contextmanager
def _watching(condition: Callable[[], bool]) -> Iterator[threading.Event]:
    """An event that is set soon after ``condition`` has become true."""
    met, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if condition():
                met.set()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield met
    finally:
        over.set()
        watcher.join()


def _copy_raw(files: list[Path], target: Path) -> float:
    """Seconds to read them, uncached, and to have them durable in one other file."""
    for path in files:
        raw.forget(path)
    start = time.monotonic()
    with open(target, "wb", buffering=0) as copy:
        for path in files:
            with open(path, "rb", buffering=0) as source:
                while block := source.read(BLOCK_BYTES):
                    copy.write(block)
        os.fsync(copy.fileno())
    seconds = time.monotonic() - start
    target.unlink()
    return seconds
