"""``sdrs job show``: one job in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sdrs.cli.amounts import format_time
from sdrs.cli.output import emit_facts, emit_json, emit_listing, emit_note
from sdrs.cli.settings import Settings
from sdrs_core.errors import NotFoundError
from sdrs_scheduler.cli.job_names import now_unix_ms
from sdrs_scheduler.cli.job_records import attempt_record, job_record, spec_record, story_record
from sdrs_scheduler.cli.job_words import attempt_listing, job_facts
from sdrs_scheduler.jobs.job import Job
from sdrs_scheduler.jobs.spec import Resume
from sdrs_scheduler.ledger import Ledger

if TYPE_CHECKING:
    from sdrs import Checkpoint, Cluster


def emit_shown(settings: Settings, cluster: Cluster, ledger: Ledger, job: Job) -> None:
    attempts = [stored.value for stored in ledger.attempts(job.id)]
    newest = _newest(cluster, job)
    if settings.is_json:
        more: dict[str, Any] = {
            "resume_point": None if newest is None else _resume_record(newest),
            "no_progress_count": job.no_progress_count,
            "spent": {failure.value: count for failure, count in job.spent.items()},
            "spec": spec_record(job.spec),
            "attempts": [attempt_record(attempt) for attempt in attempts],
            "story": story_record(job.story),
        }
        emit_json(job_record(job) | more)
        return
    now = now_unix_ms()
    facts = job_facts(job, attempts, now)
    facts["resume point"] = _resume_words(job, newest)
    emit_facts(settings, facts)
    emit_note(settings, "")
    emit_listing(settings, attempt_listing(attempts, now))


def _newest(cluster: Cluster, job: Job) -> Checkpoint | None:
    """Of its history, as it is now: the next start begins there unless it turns out to be damaged."""
    try:
        return cluster.checkpoints(job.spec.history).latest()
    except NotFoundError:
        return None


def _resume_record(newest: Checkpoint) -> dict[str, Any]:
    return {"step": newest.step, "level": str(newest.level), "committed": format_time(newest.committed_unix_ms)}


def _resume_words(job: Job, newest: Checkpoint | None) -> str:
    if job.spec.checkpoint.resume is Resume.NONE:
        return "none: each start is from the beginning"
    if newest is None:
        return "none yet: it starts from the beginning"
    back = f", {job.roll_back} generations further back" if job.roll_back else ""
    return f"step {newest.step}, {newest.level}, of {format_time(newest.committed_unix_ms)}{back}"
