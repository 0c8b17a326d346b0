"""Runs on targets as the command line sees them: started, waited for, told about."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sdrs.cli import failures
from sdrs.cli.backup_words import run_record, run_summary, run_title
from sdrs.cli.output import emit_json, emit_note, emit_warning
from sdrs.cli.progress import byte_bar
from sdrs.cli.settings import Settings
from sdrs_core.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from sdrs import Cluster
    from sdrs.backups import Run, RunKind, Selection

_POLL_SECONDS = 0.3


def chosen_targets(cluster: Cluster, name: str, *, writable: bool) -> list[str]:
    """The one that was named, or all that may be meant."""
    found = [one.target for one in cluster.backups.targets()]
    if name:
        if not any(one.name == name for one in found):
            known = ", ".join(one.name for one in found) or "none"
            raise NotFoundError(f'there is no backup target "{name}": known are {known}')
        return [name]
    if not found:
        raise NotFoundError("there is no backup target: `sdrs backup target add NAME --bucket BUCKET` adds one")
    # Where all are only read, the cluster says why that will not do.
    return [one.name for one in found if not (writable and one.source_cluster_id)] or [one.name for one in found]


def carry_out(
    settings: Settings,
    context: click.Context,
    cluster: Cluster,
    targets: list[str],
    kind: RunKind,
    selection: Selection,
    *,
    wait: bool,
) -> None:
    """One run on each of ``targets``; exits with 1 if one failed, 3 if something in one could not be done."""
    begun = [cluster.backups.start(kind, name, selection) for name in targets]
    if not wait:
        if settings.is_json:
            emit_json([run_record(run) for run in begun])
        for run in begun:
            emit_note(settings, f"{run_title(run)} is under way: `sdrs backup status` tells how far it is")
        return
    ended = [_wait(settings, cluster, run) for run in begun]
    if selection.job and not any(run.total_checkpoints or run.failure for run in ended):
        _check_known(cluster, kind, targets, selection)
    if settings.is_json:
        emit_json([run_record(run) for run in ended])
    for run in ended:
        for problem in run.problems:
            emit_warning(settings, problem)
        if run.failure:
            emit_warning(settings, f"{run_title(run)} failed: {run.failure}")
        else:
            emit_note(settings, run_summary(run))
    code = max(_exit_code(run) for run in ended) if not any(run.failure for run in ended) else failures.FAILED
    if code:
        context.exit(code)


def _check_known(cluster: Cluster, kind: RunKind, targets: list[str], selection: Selection) -> None:
    """Nothing to do is fine for a job that exists; for one that nobody knows it is a name mistyped."""
    if kind == "backup":
        if not cluster.checkpoints(selection.job).list():
            raise NotFoundError(f'job "{selection.job}" has no checkpoint in this cluster: nothing was backed up')
    elif not any(cluster.backups.list(selection.job, target=one, from_bucket=kind == "import") for one in targets):
        raise NotFoundError(f'{" and ".join(targets)} has no backup of job "{selection.job}": sdrs backup list')


def _exit_code(run: Run) -> int:
    # A dry run that names what would go has done what it was asked for.
    is_partial = bool(run.failed_checkpoints or (run.problems and not run.selection.dry_run))
    return failures.DEGRADED if is_partial else 0


def _wait(settings: Settings, cluster: Cluster, begun: Run) -> Run:
    with byte_bar(settings, run_title(begun)) as advance:
        while True:
            found = next(iter(cluster.backups.runs(begun.target)), None)
            if found is None or found.id != begun.id:
                raise UnavailableError(
                    f"another run began on {begun.target} since this one ended: see what happened with sdrs history"
                )
            advance(found.done_bytes, found.total_bytes)
            if not found.is_under_way:
                return found
            time.sleep(_POLL_SECONDS)
