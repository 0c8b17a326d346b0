"""``sdrs job logs``: what an attempt has written, from the files of this host."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import click

from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_json, emit_note, emit_warning
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.errors import NotFoundError
from sdrs_scheduler.cli.job_names import find_job, job_argument, warn_if_idle
from sdrs_scheduler.cli.log_files import Follower, last_lines, lines, parts
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.ledger import Ledger

_LOOK_SECONDS = 0.3
# How often the ledger is asked whether it goes on.
_ASK_SECONDS = 2.0


@click.command(
    "logs",
    cls=Verb,
    examples="""
    sdrs job logs llm-7b
    sdrs job logs llm-7b -f --tail 100
    sdrs job logs llm-7b --attempt 1 --node node-2
    """,
)
@job_argument
@click.option("--attempt", "number", type=click.IntRange(min=1), metavar="N", help="Of this start (the newest).")
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on until the job is over, from attempt to attempt.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each node.")
@click.option("--node", metavar="NODE", help="Only what was written on this node.")
@pass_settings
def logs(
    settings: Settings, job_word: str, number: int | None, follows: bool, tail: int | None, node: str | None
) -> None:
    """Print what a job has written."""
    if follows and settings.is_json:
        raise click.UsageError("-f prints lines as they come, and no JSON: leave one of both out")
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        job = find_job(ledger, job_word)
        if follows:
            if not job.state.is_over:
                warn_if_idle(settings, ledger)
            _follow(settings, ledger, job, number, tail, node)
            return
        attempt = _attempt(ledger, job, number)
    files = _files(attempt, node)
    if settings.is_json:
        _emit_json(job, attempt, files, tail)
        return
    for path in _present(settings, attempt, files):
        shown = lines(path) if tail is None else last_lines(path, tail)
        _emit_lines(shown, path, len(files))


def _attempt(ledger: Ledger, job: Job, number: int | None) -> Attempt:
    attempts = [stored.value for stored in ledger.attempts(job.id)]
    if number is not None:
        attempts = [attempt for attempt in attempts if attempt.number == number]
    if not attempts:
        which = f"attempt {number}" if number is not None else "attempt"
        raise NotFoundError(f"job {job.id} ({job.state}) has no {which} yet: see `sdrs job why {job.id}`", job=job.id)
    return attempts[-1]


def _files(attempt: Attempt, node: str | None) -> list[Path]:
    files = [Path(name) for name in attempt.log_files]
    if node is None:
        return files
    chosen = [path for path in files if _node_of(path) == node]
    if files and not chosen:
        nodes = ", ".join(_node_of(path) for path in files)
        raise NotFoundError(f'attempt {attempt.number} has no log of node "{node}": it ran on {nodes}', node=node)
    return chosen


def _node_of(path: Path) -> str:
    return path.name.removesuffix(".log")


def _present(settings: Settings, attempt: Attempt, files: Sequence[Path]) -> list[Path]:
    """Those that are on this host; where the others are is told."""
    if not files:
        raise NotFoundError(f"attempt {attempt.number} of job {attempt.job_id} has written no log yet")
    present = [path for path in files if parts(path)]
    missing = [str(path) for path in files if path not in present]
    nodes = ", ".join(slot.node for slot in attempt.slots) or "the executor's host"
    if missing:
        words = f"not on this host ({socket.gethostname()}): {', '.join(missing)}; look there, it ran on {nodes}"
        if not present:
            raise NotFoundError(f"the log of attempt {attempt.number} of job {attempt.job_id} is {words}")
        emit_warning(settings, f"a part of the log is {words}")
    return present


def _emit_lines(shown: Iterable[str], path: Path, file_count: int) -> None:
    prefix = f"{_node_of(path)} | " if file_count > 1 else ""
    for line in shown:
        click.echo(prefix + line)


def _emit_json(job: Job, attempt: Attempt, files: Sequence[Path], tail: int | None) -> None:
    records = [
        {
            "node": _node_of(path),
            "path": str(path),
            "present": bool(parts(path)),
            "lines": list(lines(path)) if tail is None else last_lines(path, tail),
        }
        for path in files
    ]
    emit_json(
        {"id": job.id, "name": job.spec.name, "state": job.state.value, "attempt": attempt.number, "files": records}
    )


def _follow(
    settings: Settings, ledger: Ledger, job: Job, number: int | None, tail: int | None, node: str | None
) -> None:
    """One attempt after the other; the first one's log so far, then what comes."""
    at = number or max(job.attempt, 1)
    told_before = False
    while True:
        job = ledger.job(job.id).value
        stored = ledger.attempt(job.id, at)
        if stored is None or not (stored.value.log_files or stored.value.ended_unix_ms):
            if job.state.is_over:
                return
            time.sleep(_LOOK_SECONDS)
            continue
        if told_before:
            emit_note(settings, f"--- attempt {at}")
        _follow_attempt(settings, ledger, stored.value, tail, node)
        if number is not None:
            return
        tail, told_before, at = None, True, at + 1


def _follow_attempt(settings: Settings, ledger: Ledger, attempt: Attempt, tail: int | None, node: str | None) -> None:
    files = _files(attempt, node)
    if not files:
        return
    with ExitStack() as stack:
        followers: dict[Path, Follower] = {}
        for path in _present(settings, attempt, files):
            follower = followers[path] = stack.enter_context(closing(Follower(path)))
            end = follower.seen_bytes
            _emit_lines(lines(path, end) if tail is None else last_lines(path, tail, end), path, len(files))
        asked = 0.0
        is_over = False
        while True:
            for path, follower in followers.items():
                _emit_lines(follower.new_lines(), path, len(files))
            if is_over:
                break
            if time.monotonic() - asked > _ASK_SECONDS:
                stored = ledger.attempt(attempt.job_id, attempt.number)
                # Asked before the last look: what it wrote until its end is read.
                is_over = stored is None or stored.value.ended_unix_ms > 0
                asked = time.monotonic()
            else:
                time.sleep(_LOOK_SECONDS)
        for path, follower in followers.items():
            _emit_lines(follower.remainder(), path, len(files))
