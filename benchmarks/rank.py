"""One rank as a process of its own: ``python -m benchmarks.rank URL POOL JOB RANK WORLD_SIZE BYTES``.

It obeys lines on its input, ``save STEP`` and ``restore STEP``, and answers each with one line: ``ready`` at first,
then the seconds that its part took. It ends with its input. ``Ranks`` is the side that gives the orders.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

import sdrs
from benchmarks import raw


class Ranks:
    """All ranks of one job."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self.pids = [process.pid for process in processes]
        self._hear()

    def save(self, step: int) -> float:
        """Seconds from the order to save until every rank has seen the commit."""
        return self._order(f"save {step}")

    def restore(self, step: int) -> float:
        return self._order(f"restore {step}")

    def _order(self, order: str) -> float:
        start = time.perf_counter()
        for process in self._processes:
            assert process.stdin
            process.stdin.write(f"{order}\n")
            process.stdin.flush()
        self._hear()
        return time.perf_counter() - start

    def _hear(self) -> None:
        for process in self._processes:
            assert process.stdout
            if not process.stdout.readline():
                raise RuntimeError(f"a rank ended with {process.wait()}; it says above why")


@contextmanager
def running_ranks(url: str, pool: str, job: str, world_size: int, part_bytes: int) -> Iterator[Ranks]:
    with ExitStack() as stack:
        processes = []
        for rank in range(world_size):
            arguments = [url, pool, job, str(rank), str(world_size), str(part_bytes)]
            command = [sys.executable, "-m", "benchmarks.rank", *arguments]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))  # on the way out: input closed, waited for
            stack.callback(process.stdin.close)  # type: ignore[union-attr]
        yield Ranks(processes)


def main() -> None:
    url, pool, job = sys.argv[1:4]
    rank, world_size, part_bytes = map(int, sys.argv[4:])
    part = np.random.default_rng(rank).integers(0, 256, part_bytes, dtype=np.uint8)
    with sdrs.connect(url) as cluster:
        ckpts = cluster.checkpoints(job, pool=pool, attempt="bench:1")
        print("ready", flush=True)
        for line in sys.stdin:
            order, step = line.split()
            raw.change([part], int(step))
            start = time.perf_counter()
            if order == "save":
                ckpts.save(int(step), {"part": part}, rank=rank, world_size=world_size).wait()
            else:
                restored = ckpts.restore(int(step), rank=rank, world_size=world_size)
                assert np.array_equal(restored["part"], part)
            print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
