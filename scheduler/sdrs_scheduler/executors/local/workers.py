"""How a shepherd starts the processes of a run, one for each node: forked, held back, recorded, let go."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sdrs_scheduler.executors.local.limits import WORKER_OOM_SCORE, NodeLimits
from sdrs_scheduler.executors.local.processes import RUN_MARK
from sdrs_scheduler.executors.local.worker_log import WorkerLog

# As shells have it.
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
# Below the range from which the kernel takes ports for outgoing connections: a port that is free stays so.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 100


@dataclass
class Worker:
    node: str
    pid: int
    # The end of its pipe; None: closed.
    output: int | None
    log: WorkerLog
    limits: NodeLimits


class Gate:
    """Keeps workers from becoming their command until they are on record. Nobody passes if the shepherd dies first."""

    def __init__(self) -> None:
        self.inside, self._outside = os.pipe()
        self._waiting = 0

    def wait(self) -> None:
        """In the worker."""
        os.close(self._outside)
        if not os.read(self.inside, 1):
            os._exit(_NOT_EXECUTABLE)

    def add(self) -> None:
        self._waiting += 1

    def open(self) -> None:
        os.write(self._outside, b"." * self._waiting)
        os.close(self._outside)
        os.close(self.inside)


def start_worker(
    plan: Mapping[str, Any], entry: Mapping[str, Any], mark: str, port: int, limits: NodeLimits, gate: Gate
) -> Worker:
    """``entry`` is the plan's for this node."""
    log = WorkerLog(Path(entry["log"]), plan["log_max_bytes"], plan["log_max_files"])
    ours, theirs = os.pipe()
    environment = {**os.environ, **plan["environment"], **entry["environment"], RUN_MARK: mark}
    environment["MASTER_PORT"] = environment["PET_MASTER_PORT"] = str(port)
    pid = os.fork()
    if pid == 0:
        _become(entry["words"], plan["workdir"], environment, theirs, limits, gate)
    gate.add()
    os.close(theirs)
    os.set_blocking(ours, False)
    return Worker(entry["node"], pid, ours, log, limits)


def _become(
    words: list[str], workdir: str, environment: Mapping[str, str], output: int, limits: NodeLimits, gate: Gate
) -> NoReturn:
    code = _NOT_EXECUTABLE
    try:
        signal.set_wakeup_fd(-1)
        # What is ignored stays ignored in the command: Python's SIGPIPE, and what the shepherd does not want to hear.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        gate.wait()
        limits.join()
        _write_oom_score()
        os.chdir(workdir)
        os.execvpe(words[0], words, environment)
    except FileNotFoundError as error:
        is_command = error.filename not in (None, workdir)
        _say(f"{words[0]}: command not found" if is_command else f"{workdir}: no such folder")
        code = _NOT_FOUND if is_command else _NOT_EXECUTABLE
    except OSError as error:
        _say(f"{words[0]}: cannot be started: {error}")
    finally:
        os._exit(code)


def _write_oom_score() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(WORKER_OOM_SCORE))
    except OSError:
        # Inside of some containers it is read-only; then the kernel chooses by size alone.
        return


def _say(text: str) -> None:
    os.write(2, f"sdrs: {text}\n".encode())


def free_port() -> int:
    for _ in range(_PORT_TRIES):
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
        return chosen
