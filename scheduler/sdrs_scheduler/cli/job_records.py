"""Jobs, attempts and queues as JSON objects. Names here are a promise; add, never rename."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from sdrs.cli.amounts import format_time
from sdrs_scheduler.jobs.goodput import Goodput
from sdrs_scheduler.jobs.job import Attempt, Job, Line
from sdrs_scheduler.jobs.spec import JobSpec
from sdrs_scheduler.policy.view import Queue

Record = dict[str, Any]

_SPEC: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)


def job_record(job: Job) -> Record:
    spec = job.spec
    return {
        "id": job.id,
        "name": spec.name,
        "state": job.state.value,
        "wish": job.wish.value,
        "wish_note": job.wish_note,
        "why": job.why,
        "last_end": job.last_end,
        "user": job.user,
        "tenant": spec.tenant,
        "queue": spec.queue,
        "priority": spec.priority,
        "executor": spec.executor,
        "nodes": spec.resources.nodes,
        "gpus_per_node": spec.resources.gpus_per_node,
        "gpus": spec.resources.gpus,
        "slots": [{"node": slot.node, "gpus": list(slot.gpus)} for slot in job.slots],
        "attempt": job.attempt,
        "durable_step": job.progress_step,
        "history": spec.history,
        "depends_on": list(job.depends_on),
        "excluded_nodes": list(job.excluded_nodes),
        "deadline": format_time(int(spec.deadline_unix * 1000)),
        "eligible": format_time(job.eligible_unix_ms),
        "submitted": format_time(job.submitted_unix_ms),
        "ended": format_time(job.ended_unix_ms),
    }


def spec_record(spec: JobSpec) -> Record:
    return dict(_SPEC.dump_python(spec, mode="json"))


def attempt_record(attempt: Attempt) -> Record:
    verdict = attempt.verdict
    return {
        "id": f"{attempt.job_id}.{attempt.number}",
        "name": attempt.job_id,
        "attempt": attempt.number,
        "state": attempt_state(attempt),
        "executor": attempt.executor,
        "slots": [{"node": slot.node, "gpus": list(slot.gpus)} for slot in attempt.slots],
        "resume_step": attempt.resume_step,
        "resume_note": attempt.resume_note,
        "last_step": attempt.last_step,
        "durable_step": attempt.durable_step,
        "scheduled": format_time(attempt.scheduled_unix_ms),
        "started": format_time(attempt.started_unix_ms),
        "running": format_time(attempt.running_unix_ms),
        "warned": format_time(attempt.warned_unix_ms),
        "ended": format_time(attempt.ended_unix_ms),
        "detected": format_time(attempt.detected_unix_ms),
        "exit_codes": dict(attempt.exit_codes),
        "failure": verdict.failure.value if verdict and verdict.failure else None,
        "verdict": verdict.sentence if verdict else "",
        "action": verdict.action.value if verdict else None,
        "charged": verdict.charged if verdict else False,
        "blamed_node": verdict.blamed_node if verdict else "",
        "policy": verdict.policy if verdict else "",
        "utilization": attempt.utilization,
        "log_files": list(attempt.log_files),
    }


def attempt_state(attempt: Attempt) -> str:
    if attempt.ended_unix_ms:
        return "ended"
    if attempt.verdict is not None:
        return "ending"
    if attempt.warned_unix_ms:
        return "checkpointing"
    if attempt.running_unix_ms:
        return "running"
    return "starting" if attempt.started_unix_ms else "scheduled"


def story_record(story: Sequence[Line]) -> list[Record]:
    return [{"time": format_time(line.unix_ms), "text": line.text} for line in story]


def goodput_record(goodput: Goodput) -> Record:
    return {
        "ratio": goodput.ratio,
        "effective_seconds": goodput.effective_seconds,
        "lost_seconds": goodput.lost_seconds,
        "loading_seconds": goodput.loading_seconds,
        "queueing_seconds": goodput.queueing_seconds,
        "recovery": asdict(goodput.recovery) | {"total_seconds": goodput.recovery.total_seconds},
        "recoveries": {failure.value: count for failure, count in goodput.recoveries.items()},
        "utilization": goodput.utilization,
    }


def queue_record(queue: Queue, jobs: Sequence[Job]) -> Record:
    mine = [job for job in jobs if job.spec.queue == queue.name and not job.state.is_over]
    holding = [job for job in mine if job.state.has_nodes]
    return {
        "id": queue.name,
        "name": queue.name,
        "state": "open" if queue.is_open else "closed",
        "gpus": queue.gpus,
        "max_gpus": queue.max_gpus,
        "weight": queue.weight,
        "reclaims": queue.reclaims,
        "used_gpus": sum(job.spec.resources.gpus for job in holding),
        "running_count": len(holding),
        "waiting_count": len(mine) - len(holding),
    }


def iso_time(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
