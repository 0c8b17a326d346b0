"""The scheduler's own folder: a lock, and run.json while it runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path

from sdrs_core.errors import RefusedError


class OwnFolder:
    """Taken by ``OwnFolder(path)``, given back by ``close``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_fd = os.open(path / "scheduler.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(f"another scheduler runs in {path}: stop it, or use another data_dir") from None
        except OSError as error:
            raise RefusedError(f"data_dir {path} cannot be used: {error}: check the path and its rights") from error

    def announce(self, facts: Mapping[str, object]) -> None:
        part = self.path / "run.json.new"
        try:
            part.write_text(json.dumps({"pid": os.getpid(), **facts}, indent=2), encoding="utf-8")
            part.replace(self.path / "run.json")
        except OSError as error:
            raise RefusedError(f"data_dir {self.path} takes no files: {error}: look at its disk and rights") from error

    def close(self) -> None:
        (self.path / "run.json").unlink(missing_ok=True)
        os.close(self._lock_fd)
