"""The shepherd of one run: ``python -P -m sdrs_scheduler.executors.local.shepherd RUN_FOLDER``.

It starts the run's processes, keeps their logs, and writes down how they end, whether a scheduler lives or not. The
order in which it leaves traces is what makes a start happen once, however often it is asked for:

1. It takes the lock, or leaves: another one is at work.
2. It finds ``begun.json``, and leaves: one before it has begun, and what it started may live.
3. It writes ``begun.json``, forks the workers, writes ``workers.json``, and only then lets them go.
4. It writes ``exits.json`` with each that ends, ``ended.json`` when no process is left, and goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdrs_scheduler.executors.local import run_folder as files
from sdrs_scheduler.executors.local.endings import Sight, Step, WorkerExit, as_told, exit_to_record, next_step
from sdrs_scheduler.executors.local.limits import delegated_cgroup, kernel_oom_kills, limits_for
from sdrs_scheduler.executors.local.processes import Process, boot_id, descendants, living, process, send
from sdrs_scheduler.executors.local.run_folder import RunFolder, now_ms
from sdrs_scheduler.executors.local.workers import Gate, Worker, free_port, start_worker

_PR_SET_CHILD_SUBREAPER = 36
# Who only looks whether it is taken holds it for an instant.
_LOCK_WAIT_SECONDS = 2.0
_READ_BYTES = 1 << 16
_STARTED = b"started"
_ENDING_TICK_SECONDS = 0.05
_WATCH_TICK_SECONDS = 1.0


class Shepherd:
    def __init__(self, folder: RunFolder, plan: Mapping[str, Any]) -> None:
        self._folder = folder
        self._plan = plan
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, Worker] = {}
        self._left: set[int] = set()
        self._exits: list[WorkerExit] = []
        self._notes: list[str] = []
        self._is_killed = False
        self._is_stopped = False
        self._has_killed = False
        self._ending_since: float | None = None
        self._warned: float | None = None
        self._oom_kills_before = kernel_oom_kills()

    def begin(self) -> None:
        """Raises OSError if the folder takes no records: then nothing was started."""
        port = free_port()
        self._folder.write(files.BEGUN, {**_identity(os.getpid()), "boot": boot_id(), "port": port, "at_ms": now_ms()})
        self._listen()
        cgroup, gate = delegated_cgroup(), Gate()
        for entry in self._plan["workers"]:
            limits = limits_for(
                cgroup, f"{self._plan['run']}.{entry['node']}", self._plan["memory_bytes"], self._plan["cpus"]
            )
            if limits.note and limits.note not in self._notes:
                self._notes.append(limits.note)
            worker = start_worker(self._plan, entry, str(self._folder.path), port, limits, gate)
            self._workers[worker.pid] = worker
            self._left.add(worker.pid)
            self._selector.register(worker.output, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
        self._folder.write(files.WORKERS, {worker.node: _identity(pid) for pid, worker in self._workers.items()})
        # Who kills writes that down before it looks for us, and we look for it after we have told who we are.
        if self._folder.has(files.KILL):
            self._is_killed = True
        else:
            gate.open()

    def keep(self) -> None:
        """Until nothing is left of the run."""
        while True:
            for key, _ in self._selector.select(self._tick_seconds()):
                if isinstance(key.data, Worker):
                    self._pass_on(key.data)
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(key.fd, _READ_BYTES)
            self._reap()
            self._watch_memory()
            if self._end_by_steps():
                break
        for worker in self._workers.values():
            while worker.output is not None and self._pass_on(worker):
                pass
            worker.log.close()
            worker.limits.close()
        self._write_end()

    def _listen(self) -> None:
        """Signals wake the loop through a pipe."""
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        os.set_blocking(theirs, False)
        self._selector.register(ours, selectors.EVENT_READ)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_terminate)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_terminate(self, *_: object) -> None:
        if self._folder.has(files.KILL):
            self._is_killed = True
        else:
            self._is_stopped = True

    def _tick_seconds(self) -> float | None:
        if self._exits or self._is_killed or self._is_stopped or not self._left:
            # Processes that are no workers end without a word to us, as long as they have a parent.
            is_ending = self._ending_since is not None or self._is_killed or not self._left
            return _ENDING_TICK_SECONDS if is_ending else _WATCH_TICK_SECONDS
        return _WATCH_TICK_SECONDS if self._plan["memory_bytes"] else None

    def _pass_on(self, worker: Worker) -> bool:
        """A piece of output to the log; False: there is none now."""
        assert worker.output is not None
        try:
            data = os.read(worker.output, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            worker.log.write(data)
            return True
        self._selector.unregister(worker.output)
        os.close(worker.output)
        worker.output = None
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._left:  # others are orphans that we adopted
                self._left.remove(pid)
                self._note_exit(self._workers[pid], os.waitstatus_to_exitcode(status))

    def _note_exit(self, worker: Worker, code: int) -> None:
        by_memory = code != 0 and (
            worker.limits.was_out_of_memory()
            # Not by us: then it was the kernel, if it killed anybody at all since.
            or (code in (-9, 137) and not self._has_killed and kernel_oom_kills() > self._oom_kills_before)
        )
        exit = WorkerExit(worker.node, code if code >= 0 else None, -code if code < 0 else None, by_memory)
        self._exits.append(exit)
        with contextlib.suppress(OSError):  # it is told at the end once more
            self._folder.write(files.EXITS, self._exits_record())

    def _watch_memory(self) -> None:
        if not self._plan["memory_bytes"] or not self._left:
            return
        among = living()
        for pid in self._left:
            worker = self._workers[pid]
            members = [entry for entry in among if entry.pid == pid or entry.session == pid]
            known = {entry.pid for entry in members}
            members += [entry for entry in descendants(pid, among) if entry.pid not in known]
            if worker.limits.is_exceeded(members):
                for entry in members:
                    send(entry, signal.SIGKILL)

    def _end_by_steps(self) -> bool:
        """Whether all is over."""
        has_failed = any(exit.is_failure for exit in self._exits)
        if self._left and not (has_failed or self._is_killed or self._is_stopped):
            return False
        processes = descendants(os.getpid(), living())
        now = time.monotonic()
        step = next_step(
            Sight(
                now,
                len(self._left),
                len(processes),
                has_failed,
                self._is_killed,
                self._is_stopped,
                self._ending_since,
                self._plan["patience_seconds"],
                self._warned_at(),
                self._plan["grace_seconds"],
            )
        )
        if step is Step.TERMINATE:
            self._ending_since = now
            _send_all(processes, signal.SIGTERM)
        elif step is Step.KILL:
            self._has_killed = True
            _send_all(processes, signal.SIGKILL)
        return step is Step.DONE

    def _warned_at(self) -> float | None:
        warned = self._folder.read(files.WARNED)
        # I8: on record it is a time of day, which may be set; from here on it is not asked again what that is.
        if warned and self._warned is None:
            self._warned = time.monotonic() - max(0, now_ms() - warned["at_ms"]) / 1000
        return self._warned

    def _exits_record(self) -> Mapping[str, Any]:
        return {"exits": [exit_to_record(exit) for exit in as_told(self._exits)]}

    def _write_end(self) -> None:
        lost_bytes = sum(worker.log.lost_bytes for worker in self._workers.values())
        if lost_bytes:
            self._notes.append(f"{lost_bytes} bytes of its logs are lost: their disk took no more")
        if self._is_killed:
            self._notes.insert(0, "killed by the scheduler")
        elif self._is_stopped:
            self._notes.insert(0, "ended because its shepherd got SIGTERM: the machine goes down, or somebody sent it")
        record = {**self._exits_record(), "at_ms": now_ms(), "detail": "; ".join(self._notes)}
        # Nobody asked for the run's end: its machine was taken away, which is no fault of its own.
        write_end(self._folder, {**record, "is_stopped": self._is_stopped and not self._is_killed})


def write_end(folder: RunFolder, record: Mapping[str, Any]) -> None:
    """Exit codes must not be lost to a disk that is full for a while."""
    while True:
        try:
            return folder.write(files.ENDED, record)
        except FileNotFoundError:
            return None  # nobody wants to know any more
        except OSError:
            time.sleep(1.0)


def _identity(pid: int) -> Mapping[str, int]:
    entry = process(pid)
    return {"pid": pid, "started_ticks": entry.started_ticks if entry else 0}


def _send_all(processes: list[Process], number: int) -> None:
    for entry in processes:
        send(entry, number)


def main(path: str) -> int:
    folder = RunFolder(Path(path).resolve())
    lock = folder.lock(_LOCK_WAIT_SECONDS)
    if lock is None or folder.has(files.BEGUN) or folder.has(files.ENDED):
        return 0
    plan = folder.read(files.PLAN)
    if plan is None:
        return 0
    if folder.has(files.KILL):
        write_end(folder, {"exits": [], "at_ms": now_ms(), "detail": "killed before it started"})
        return 0
    ours, theirs = os.pipe()
    if os.fork():
        # The caller waits for us, and for nobody after us. The lock lives on in the child.
        os.close(theirs)
        with open(ours, "rb") as told:
            message = told.read()
        if message == _STARTED:
            return 0
        sys.stderr.buffer.write(message or b"it was killed while it started")
        return 1
    os.close(ours)
    _redirect(folder)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shepherd = Shepherd(folder, plan)
    try:
        shepherd.begin()
    except OSError as error:
        os.write(theirs, str(error).encode())
        return 1
    os.write(theirs, _STARTED)
    os.close(theirs)
    os.chdir("/")
    shepherd.keep()
    return 0


def _redirect(folder: RunFolder) -> None:
    """Nothing of the caller's stays open."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        log = os.open(folder.path / files.SHEPHERD_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        log = null
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
