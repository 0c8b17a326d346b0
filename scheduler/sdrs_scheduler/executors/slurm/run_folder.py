"""What is kept of a run, in a folder that all nodes see::

RUN/job.sh node.sh signal.sh   what Slurm runs
    order.json         where it was to run
    submitted          the number of the Slurm job
    claimed            the number of the job whose script began, and when
    nodes hosts        written by that script
    exits/NODE         exit code and time, written by each node
    over               the script came to its end: its exit code, and when
    end.json           how it ended, once that is known
    slurm.log logs/NODE.log
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sdrs_core.errors import UnavailableError
from sdrs_scheduler.executors.executor import LaunchOrder, RunFacts
from sdrs_scheduler.executors.slurm.states import RunFiles
from sdrs_scheduler.jobs.spec import Launch

_FACTS = TypeAdapter(RunFacts)
_MAX_SLURM_LOG_BYTES = 1 << 20


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def job_script(self) -> Path:
        return self.path / "job.sh"

    def exists(self) -> bool:
        return self.path.is_dir()

    def prepare(self, order: LaunchOrder, scripts: Mapping[str, str]) -> None:
        for name in ("exits", "logs"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        nodes = [slot.node for slot in order.slots]
        self._write("order.json", json.dumps({"nodes": nodes, "once": order.launch is Launch.ONCE}))
        # For nobody else: the environment of a job may hold secrets.
        for name, script in scripts.items():
            self._write(name, script, 0o700)

    @contextmanager
    def locked(self, deadline_seconds: float) -> Iterator[int]:
        """The lock is handed to sbatch: that of a scheduler which was killed holds it until it has ended."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        deadline = time.monotonic() + deadline_seconds
        with open(self.path / "lock", "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise UnavailableError(f"an earlier sbatch of {self.path.name} has not ended yet") from None
                    time.sleep(0.05)
            yield lock.fileno()

    def submitted_job(self) -> int:
        """0: none that is on record here."""
        return self._numbers("submitted")[0]

    def record_submission(self, job_id: int) -> None:
        self._write("submitted", str(job_id))

    def begun_job(self) -> int:
        """0: no script of the run has begun."""
        return self._numbers("claimed")[0]

    def read_end(self) -> RunFacts | None:
        try:
            return _FACTS.validate_json((self.path / "end.json").read_bytes())
        except FileNotFoundError:
            return None

    def record_end(self, facts: RunFacts) -> None:
        self._write("end.json", _FACTS.dump_json(facts).decode())

    def files(self) -> RunFiles:
        # Listing first: a client of NFS then looks again for names that were not there before.
        with suppress(FileNotFoundError):
            os.listdir(self.path)
        order = self._order()
        nodes = self._text("nodes").split() or order.get("nodes", [])
        claimed_by, began_unix_ms = self._numbers("claimed")
        return RunFiles(
            nodes=tuple(nodes),
            exits=self._exits(),
            claimed_by=claimed_by,
            began_unix_ms=began_unix_ms,
            over_unix_ms=self._numbers("over")[1],
            slurm_log=self._text("slurm.log"),
            is_launched_once=bool(order.get("once")),
            log_files=self.log_files(),
        )

    def log_files(self) -> tuple[str, ...]:
        """Slurm's own words first, if there are any."""
        own = self.path / "slurm.log"
        return (*((str(own),) if own.exists() and own.stat().st_size else ()), *self._node_logs())

    def output_files(self) -> tuple[str, ...]:
        """What the command wrote. Slurm's words only while there is nothing else: policies that look through logs must
        not take what srun says of a kill for the command's.
        """
        logs = self._node_logs()
        return logs if any(Path(name).stat().st_size for name in logs) else self.log_files()

    def _node_logs(self) -> tuple[str, ...]:
        return tuple(str(path) for path in sorted((self.path / "logs").glob("*.log")))

    def forget(self) -> None:
        """Logs stay, and how it ended: whoever asks again must not be told that it never was."""
        for name in ("job.sh", "node.sh", "signal.sh", "nodes", "hosts", "lock"):
            with suppress(FileNotFoundError):
                (self.path / name).unlink()
        shutil.rmtree(self.path / "exits", ignore_errors=True)

    def erase(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _exits(self) -> dict[str, tuple[int, int]]:
        exits = {}
        with suppress(FileNotFoundError):
            for path in (self.path / "exits").iterdir():
                words = [] if path.name.startswith(".") else path.read_text().split()
                if len(words) == 2:
                    exits[path.name] = (int(words[0]), int(words[1]))
        return exits

    def _order(self) -> dict[str, Any]:
        text = self._text("order.json")
        order: dict[str, Any] = json.loads(text) if text else {}
        return order

    def _numbers(self, name: str) -> tuple[int, int]:
        """Up to two in a file; 0: not there, or not yet."""
        words = [int(word) for word in self._text(name).split() if word.isdigit()]
        return (words[0] if words else 0, words[1] if len(words) > 1 else 0)

    def _text(self, name: str) -> str:
        try:
            with open(self.path / name, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_SLURM_LOG_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _write(self, name: str, text: str, mode: int = 0o600) -> None:
        """Whole or not at all."""
        path = self.path / f".{name}.new"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path.rename(self.path / name)
