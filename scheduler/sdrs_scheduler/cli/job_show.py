"""``sdrs job show``: one job in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sdrs.cli.amounts import format_time
from sdrs.cli.output import emit_facts, emit_json, emit_listing, emit_note
from sdrs.cli.settings import Settings
from sdrs_core.errors import NotFoundError
from sdrs_scheduler.cli.job_names import now_unix_ms
from sdrs_scheduler.cli.job_records import attempt_record, goodput_record, job_record, spec_record, story_record
from sdrs_scheduler.cli.job_words import attempt_listing, goodput_words, job_facts, recovery_words
from sdrs_scheduler.jobs.advice import advise
from sdrs_scheduler.jobs.goodput import job_goodput
from sdrs_scheduler.jobs.job import Job
from sdrs_scheduler.jobs.resume import Generation
from sdrs_scheduler.jobs.spec import Resume
from sdrs_scheduler.ledger import Ledger

if TYPE_CHECKING:
    from sdrs import Cluster


def emit_shown(settings: Settings, cluster: Cluster, ledger: Ledger, job: Job) -> None:
    now = now_unix_ms()
    attempts = [stored.value for stored in ledger.attempts(job.id)]
    generations = _generations(cluster, job)
    advice = advise(attempts, generations, job.spec.resources.nodes, now)
    goodput = job_goodput(job, attempts, now)
    if settings.is_json:
        more: dict[str, Any] = {
            "resume_point": _resume_record(generations),
            "no_progress_count": job.no_progress_count,
            "spent": {failure.value: count for failure, count in job.spent.items()},
            "advice": None if advice is None else asdict(advice),
            "goodput": goodput_record(goodput),
            "spec": spec_record(job.spec),
            "attempts": [attempt_record(attempt) for attempt in attempts],
            "story": story_record(job.story),
        }
        emit_json(job_record(job) | more)
        return
    facts = job_facts(job, attempts, now)
    facts["resume point"] = _resume_words(job, generations)
    applied = ", applied" if job.spec.checkpoint.interval_auto else ""
    facts["advice"] = f"{advice.sentence}{applied}" if advice else "none before its first save"
    facts["goodput"] = goodput_words(goodput)
    if goodput.recoveries:
        facts["recovery"] = recovery_words(goodput)
    emit_facts(settings, facts)
    emit_note(settings, "")
    emit_listing(settings, attempt_listing(attempts, now))


def _generations(cluster: Cluster, job: Job) -> list[Generation]:
    """Of its history as it is now, newest first, without those that are known to be damaged: where it would go on."""
    try:
        saves = cluster.checkpoints(job.spec.history).list()
    except NotFoundError:
        return []
    return [
        Generation(save.save_id, save.step, save.level, save.created_unix_ms, save.committed_unix_ms, save.held)
        for save in saves
        if not save.damage
    ]


def _resume_record(generations: Sequence[Generation]) -> dict[str, Any] | None:
    if not generations:
        return None
    newest = generations[0]
    return {"step": newest.step, "level": str(newest.level), "committed": format_time(newest.committed_unix_ms)}


def _resume_words(job: Job, generations: Sequence[Generation]) -> str:
    if job.spec.checkpoint.resume is Resume.NONE:
        return "none: each start is from the beginning"
    if not generations:
        return "none yet: it starts from the beginning"
    newest = generations[0]
    back = f", {job.roll_back} generations further back" if job.roll_back else ""
    return f"step {newest.step}, {newest.level}, of {format_time(newest.committed_unix_ms)}{back}"
