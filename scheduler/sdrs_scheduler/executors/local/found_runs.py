"""Runs as their folders tell them, and the end of those whose shepherd is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

from sdrs_scheduler.executors.executor import Exit, RunFacts, RunState
from sdrs_scheduler.executors.local import run_folder as files
from sdrs_scheduler.executors.local.processes import Process, boot_id, descendants, left_behind, living, process, send
from sdrs_scheduler.executors.local.run_folder import Record, RunFolder, now_ms

_BURIAL_SECONDS = 2.0
_TICK_SECONDS = 0.02


def facts_of(folder: RunFolder, log_folder: Path) -> RunFacts:
    plan = folder.read(files.PLAN)
    if plan is None:
        return RunFacts(RunState.UNKNOWN)
    begun, ended = folder.read(files.BEGUN), folder.read(files.ENDED)
    is_bound_to_end = begun is not None or folder.has(files.KILL)
    if ended is None and is_bound_to_end and not folder.is_locked():
        # It may have ended between two of our looks.
        ended = folder.read(files.ENDED) or bury(folder, _why_no_shepherd(begun))
    nodes = tuple(worker["node"] for worker in plan["workers"])
    log_files = tuple(str(log_folder / f"{node}.log") for node in nodes)
    if ended is not None:
        return RunFacts(
            RunState.ENDED,
            begun["at_ms"] if begun else ended["at_ms"],
            ended["at_ms"],
            _exits(ended),
            tuple(ended.get("lost_nodes", ())),
            nodes,
            log_files,
            ended["detail"],
            preempted=bool(ended.get("is_stopped")),
        )
    if begun is not None:
        exits = folder.read(files.EXITS)
        return RunFacts(
            RunState.RUNNING, begun["at_ms"], exits=_exits(exits) if exits else {}, nodes=nodes, log_files=log_files
        )
    if folder.is_locked():
        return RunFacts(RunState.WAITING, nodes=nodes, detail="its shepherd is starting")
    # A launch that was interrupted: to launch it again starts it, to kill it makes sure that nobody does.
    return RunFacts(RunState.UNKNOWN, detail="it was asked for, and nothing has started")


def _exits(record: Record) -> Mapping[str, Exit]:
    return {exit["node"]: Exit(exit["code"], exit["signal"], exit["out_of_memory"]) for exit in record["exits"]}


def shepherd_of(folder: RunFolder) -> Process | None:
    begun = folder.read(files.BEGUN)
    if begun is None or begun["boot"] != boot_id():
        return None
    entry = process(begun["pid"])
    if entry is None or entry.is_dead or entry.started_ticks != begun["started_ticks"]:
        return None
    return entry


def processes_of(folder: RunFolder) -> list[Process]:
    """Everything that the run has started and that lives."""
    begun = folder.read(files.BEGUN)
    if begun is None or begun["boot"] != boot_id():
        return []
    shepherd = shepherd_of(folder)
    if shepherd is not None:
        return descendants(shepherd.pid, living())
    workers = folder.read(files.WORKERS) or {}
    known = {(worker["pid"], worker["started_ticks"]) for worker in workers.values()}
    return list(left_behind(str(folder.path), known, living()))


def node_of(folder: RunFolder, entry: Process) -> str:
    """The node whose log a process belongs to; the first one's, if it has left its session."""
    workers = folder.read(files.WORKERS) or {}
    plan = folder.read(files.PLAN) or {"workers": [{"node": ""}]}
    found = (node for node, worker in workers.items() if worker["pid"] in (entry.pid, entry.session))
    return str(next(found, plan["workers"][0]["node"]))


def bury(folder: RunFolder, detail: str) -> Record | None:
    """End what a run without a shepherd has left, and write its end; None: not everything has died yet, or it
    cannot be written.
    """
    lock = folder.lock()
    if lock is None:
        return None
    try:
        deadline = time.monotonic() + _BURIAL_SECONDS
        while processes := processes_of(folder):
            for entry in processes:
                send(entry, SIGKILL)
            if time.monotonic() > deadline:
                return None
            time.sleep(_TICK_SECONDS)
        exits = folder.read(files.EXITS) or {"exits": []}
        begun = folder.read(files.BEGUN)
        record = {**exits, "at_ms": now_ms(), "detail": detail}
        if begun is not None and begun["boot"] != boot_id():
            record["lost_nodes"] = [
                worker["node"] for worker in (folder.read(files.PLAN) or {"workers": []})["workers"]
            ]
        folder.write(files.ENDED, record)
        return record
    except OSError:
        # A full disk: what is not on record may be told otherwise the next time.
        return None
    finally:
        os.close(lock)


def _why_no_shepherd(begun: Record | None) -> str:
    if begun is None:
        return "killed before it started"
    if begun["boot"] != boot_id():
        return "the machine was restarted under it"
    return "its shepherd was killed, or could not go on: exit codes are not known, and what was left of it was ended"
