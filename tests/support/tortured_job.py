"""A job of several ranks, each a process, that saves step after step while everything around it dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.states import make_state

WORLD_SIZE = 2
# Small ones go by gRPC, the others over the data channel.
SIZES_BYTES = (50_000, 1_500_000, 5_000_000)

# One rank: it saves step after step, says what was acknowledged, and gives up at the first failure.
TRAINER = """
import sys
import sdrs
from sdrs import errors
from tests.support.tortured_job import WORLD_SIZE, state_of
url, job, pool, attempt, rank, step = sys.argv[1:]
step = int(step)
try:
    with sdrs.connect(url, timeout_seconds=15) as cluster:
        ckpts = cluster.checkpoints(job, pool=pool, attempt=f"run:{attempt}")
        while True:
            state = state_of(job, int(attempt), step, int(rank))
            saving = ckpts.save(step=step, state=state, rank=int(rank), world_size=WORLD_SIZE)
            state["weights"][:] = 0  # what was staged is a copy
            saving.wait(timeout=30)
            print("acknowledged", step, flush=True)
            step += 1
except errors.SdrsError as error:
    print("failed", step, type(error).__name__, error, flush=True)
    sys.exit(1)
"""


def state_of(job: str, attempt: int, step: int, rank: int) -> dict[str, object]:
    seed = ((len(job) * 1000 + attempt) * 100_000 + step) * 10 + rank
    return make_state(seed, SIZES_BYTES[(step + rank) % len(SIZES_BYTES)])


@dataclass
class JobUnderTorture:
    """A job's processes, and what they were told. ``acknowledged``: step → the newest attempt that was."""

    name: str
    pool: str
    attempt: int = 0
    ranks: list[subprocess.Popen[str]] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)

    def start(self, url: str, redo: bool) -> None:
        """The next attempt goes on after the newest acknowledged step, or saves that one again."""
        self.attempt += 1
        first = max(self.acknowledged, default=0) + (0 if redo and self.acknowledged else 1)
        arguments = [url, self.name, self.pool, str(self.attempt)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINER, *arguments, str(rank), str(first)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            for rank in range(WORLD_SIZE)
        ]
        self.readers = [
            threading.Thread(target=self._listen, args=(process, self.attempt), daemon=True) for process in self.ranks
        ]
        for reader in self.readers:
            reader.start()

    def _listen(self, process: subprocess.Popen[str], attempt: int) -> None:
        assert process.stdout
        for line in process.stdout:
            self.said.append(f"attempt {attempt}: {line.rstrip()}")
            if line.startswith("acknowledged "):
                step = int(line.split()[1])
                self.acknowledged[step] = max(attempt, self.acknowledged.get(step, 0))

    def kill(self) -> None:
        for process in self.ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for reader in self.readers:
            reader.join()
        for process in self.ranks:
            assert process.stdout
            process.stdout.close()

    def tracebacks(self) -> list[str]:
        return [line for line in self.said if "Traceback" in line]
