"""One user's machine: a home of its own, and the program ``sdrs`` run in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdrs.cli.local_processes import find_processes, find_runs


class Machine:
    """``scheduler``: whether `up` starts one."""

    def __init__(self, home: Path, *, scheduler: bool = False) -> None:
        self.home = home
        self._scheduler = scheduler
        self.dir = home / "cluster"
        self.environment = os.environ | {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "SDRS_HOME": str(self.dir),
        }
        self.environment.pop("SDRS_URL", None)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        if arguments[0] == "up" and not self._scheduler:
            arguments = (*arguments, "--no-scheduler")
        return subprocess.Popen(
            [sys.executable, "-m", "sdrs.cli.main", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, expect: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        assert process.returncode == expect, f"sdrs {' '.join(arguments)} exited with {process.returncode}:\n{out}{err}"
        assert "Traceback" not in err
        return out if expect in (0, 3) else err

    def json(self, *arguments: str, expect: int = 0) -> Any:
        return json.loads(self.run(*arguments, "-o", "json", expect=expect))

    def pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in find_processes(self.dir)}

    def kill(self, name: str) -> None:
        os.kill(self.pids()[name], signal.SIGKILL)


@contextmanager
def own_machine(home: Path, *, scheduler: bool = False) -> Iterator[Machine]:
    """None of its daemons outlives it."""
    machine = Machine(home, scheduler=scheduler)
    try:
        yield machine
    finally:
        for process in [*find_processes(machine.dir), *find_runs(machine.dir)]:
            os.kill(process.pid, signal.SIGKILL)
