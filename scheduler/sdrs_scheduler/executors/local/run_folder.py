"""The folder of a run: what the executor and the shepherd tell each other, in files.

::

    FOLDER/runs/RUN/plan.json     the executor's order; without it there is no run
                    lock          held by the shepherd for as long as it lives
                    begun.json    written before anything starts: whoever finds it starts nothing
                    workers.json  the processes, by pid and start time
                    exits.json    those that ended so far
                    warned, kill  what the executor asked for
                    ended.json    the end; nothing follows
                    hosts         the nodes, for launchers
                    shepherd.log
    FOLDER/logs/RUN/NODE.log      and NODE.log.1, ... which are older; they stay

Records are replaced as a whole, so that a reader sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]

PLAN = "plan.json"
BEGUN = "begun.json"
WORKERS = "workers.json"
EXITS = "exits.json"
ENDED = "ended.json"
WARNED = "warned"
KILL = "kill"
HOSTS = "hosts"
SHEPHERD_LOG = "shepherd.log"
_LOCK = "lock"
_LOCK_RETRY_SECONDS = 0.02


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        # Environments may hold secrets.
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> Record | None:
        """None: not there yet, or cut off by a power failure before it counted."""
        try:
            value = json.loads((self.path / name).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def write(self, name: str, record: Record) -> None:
        self.write_text(name, json.dumps(record))

    def write_text(self, name: str, text: str) -> None:
        # Two threads or two schedulers may write at once for a moment: each has a temporary file of its own.
        temporary = self.path / f".{name}.{threading.get_native_id()}"
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def lock(self, wait_seconds: float = 0.0) -> int | None:
        """A descriptor that holds the lock until it and its copies are closed; None: somebody else has it.

        Nobody waits for the lock of a run that has begun.
        """
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= deadline or self.has(BEGUN):
                    os.close(descriptor)
                    return None
            time.sleep(_LOCK_RETRY_SECONDS)

    def is_locked(self) -> bool:
        """Whether the shepherd lives. It takes the lock for an instant: who wants it for good tries for longer."""
        try:
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def now_ms() -> int:
    return time.time_ns() // 1_000_000
