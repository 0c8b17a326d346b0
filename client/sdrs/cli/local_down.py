"""A cluster on this machine, taken down again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sdrs.cli import local_processes
from sdrs.cli.local_daemons import SCHEDULER, purge_daemons
from sdrs.cli.local_layout import folder_lock, is_ours, read_layout, remove_marker
from sdrs.cli.local_processes import Process, find_processes, find_runs
from sdrs.cli.local_start import START_SECONDS
from sdrs.cli.pointer import remove_pointer
from sdrs_core.errors import RefusedError

DRAIN_SECONDS = 15.0
# For jobs that are asked to end: each saves what it has, within the grace of its own.
JOBS_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class DownOutcome:
    dir: Path
    stopped: tuple[str, ...]
    killed: tuple[str, ...]
    purged: bool = False
    left: tuple[Path, ...] = ()
    # Runs of jobs: those that were ended, and those that go on.
    ended_runs: tuple[str, ...] = ()
    left_runs: tuple[str, ...] = ()


def take_down(directory: Path, *, delete_data: bool, stop_jobs: bool = False) -> DownOutcome:
    """Stop what runs: the scheduler first, which would start jobs again; then jobs, if they are to end, while the
    cluster still takes what they save; then nodes, so that what they finish can still be recorded by the controller;
    etcd last.
    """
    if delete_data:
        read_layout(directory)  # refuses a folder that is not ours before anything in it is touched
        if not stop_jobs:
            _refuse_while_jobs_run(directory)
    if not is_ours(directory) and not find_processes(directory):
        return DownOutcome(directory, (), (), left_runs=_names(find_runs(directory)))
    directory.mkdir(parents=True, exist_ok=True)  # removed under running daemons: they are to be stopped all the same
    with folder_lock(directory, START_SECONDS):
        running = find_processes(directory)
        schedulers, *others = _in_order_of_leaving(running)
        killed = local_processes.stop(schedulers, DRAIN_SECONDS)
        runs = find_runs(directory) if stop_jobs else []
        # Not killed: their shepherds end what does not end by itself, and write down how it went.
        local_processes.stop(runs, JOBS_SECONDS, kill=False)
        if delete_data:
            _refuse_while_jobs_run(directory)
        left_runs = find_runs(directory)
        for processes in others:
            killed += local_processes.stop(processes, DRAIN_SECONDS)
        remove_pointer(directory)
        layout = read_layout(directory) if delete_data else None
        if layout is not None:
            purge_daemons(directory, layout)
        left = remove_marker(directory) if layout is not None else []
    return DownOutcome(
        directory,
        stopped=_names(running),
        killed=_names(killed),
        purged=layout is not None,
        left=tuple(left),
        ended_runs=tuple(name for name in _names(runs) if name not in _names(left_runs)),
        left_runs=_names(left_runs),
    )


def _names(processes: Iterable[Process]) -> tuple[str, ...]:
    return tuple(process.name for process in processes)


def _refuse_while_jobs_run(directory: Path) -> None:
    runs = find_runs(directory)
    if runs:
        raise RefusedError(
            f"jobs still run with their files in {directory}: {', '.join(_names(runs))}. End them first, with "
            "`sdrs job cancel` or with --stop-jobs",
            dir=directory,
        )


def _in_order_of_leaving(running: list[Process]) -> list[list[Process]]:
    """Each before those that it leans on."""
    schedulers, nodes, controllers, etcds = (
        [one for one in running if one.name.startswith(kind)] for kind in (SCHEDULER, "node", "controller", "etcd")
    )
    # One etcd after the other: a leader hands over first, and waits long for members that leave at the same time.
    return [schedulers, nodes, controllers, *([one] for one in etcds)]
