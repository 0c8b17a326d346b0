"""The daemon's own folder: a marker that says it is ours, a lock, and run.json while the daemon serves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from sdrs_core.errors import RefusedError
from sdrs_storaged.folders import keep_reserve, lock_folder, refuse_foreign, write_durably

_MARKER = "sdrs-data.json"
_LOCK = "sdrs-data.lock"
_RUN = "run.json"
_FORMAT = 1


class DataDir:
    """Taken by ``DataDir(path)``, given back by ``close``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / _MARKER).exists():
                refuse_foreign(path, _MARKER, {_LOCK, _MARKER + ".new", "lost+found"})
            self._lock_fd = lock_folder(path, _LOCK)
            if not (path / _MARKER).exists():
                write_durably(path / _MARKER, json.dumps({"format": _FORMAT}))
            keep_reserve(path)
        except OSError as error:
            raise RefusedError(f"data_dir {path} cannot be used: {error}: check the path and its rights") from error

    def announce(self, facts: dict[str, Any]) -> None:
        """Tell whoever looks where the daemon is, and (``ready``) whether all of it serves."""
        running = {"pid": os.getpid(), "started_unix_ms": time.time_ns() // 1_000_000, **facts}
        write_durably(self.path / _RUN, json.dumps(running, indent=2))

    def close(self) -> None:
        (self.path / _RUN).unlink(missing_ok=True)
        os.close(self._lock_fd)
