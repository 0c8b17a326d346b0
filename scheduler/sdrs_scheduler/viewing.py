"""From records and what is seen to what the policy sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sdrs_scheduler.entries import NodeRecord, Usage
from sdrs_scheduler.executors.executor import NodeFacts
from sdrs_scheduler.jobs.job import Attempt, Job, JobState
from sdrs_scheduler.policy.view import Ask, Pending, PolicyNode, Queue, Running, View

_BROKEN = "(bad GPUs)"


@dataclass(frozen=True, slots=True)
class Scene:
    """All that the policy's view is made of."""

    now_unix_ms: int
    jobs: Mapping[str, Job]
    attempts: Mapping[str, Attempt]
    # By executor, by name.
    nodes: Mapping[str, Mapping[str, NodeFacts]]
    node_records: Mapping[str, NodeRecord]
    cordoned: Mapping[str, str]
    queues: Mapping[str, Queue]
    usage: Usage = field(default_factory=Usage)
    utilization: Mapping[str, float] = field(default_factory=dict)
    # Jobs that cannot go on whatever is free, with the reason.
    blocked: Mapping[str, str] = field(default_factory=dict)


def view_of(scene: Scene) -> tuple[View, dict[str, str]]:
    """The view; and the jobs that the policy need not look at, with the reason."""
    pending: list[Pending] = []
    running: list[Running] = []
    hopeless: dict[str, str] = {}
    for job in scene.jobs.values():
        if job.state is JobState.QUEUED:
            if why := _hopeless(job, scene):
                hopeless[job.id] = why
            else:
                pending.append(_pending(job, scene))
        elif job.state.has_nodes:
            running.append(_running(job, scene))
    nodes = [_node(facts, executor, scene) for executor, by_name in scene.nodes.items() for facts in by_name.values()]
    running += _broken(facts for by_name in scene.nodes.values() for facts in by_name.values())
    view = View(
        scene.now_unix_ms / 1000, nodes, pending, running, scene.queues, scene.usage.by_user, scene.usage.by_tenant
    )
    return view, hopeless


def _hopeless(job: Job, scene: Scene) -> str:
    queue, executor = job.spec.queue, job.spec.executor
    if queue not in scene.queues:
        known = ", ".join(sorted(scene.queues))
        return f'queue "{queue}" does not exist: create it (`sdrs queue create {queue}`), or use one of {known}'
    if executor not in scene.nodes:
        known = ", ".join(sorted(scene.nodes)) or "none answers"
        return f'executor "{executor}" is not set up here or does not answer (there are: {known})'
    if because := scene.blocked.get(job.id):
        return f"{because}: it is waited for"
    return ""


def _ask(job: Job) -> Ask:
    spec = job.spec
    left_seconds = max(0.0, spec.estimate_seconds - job.ran_ms / 1000) if spec.estimate_seconds else None
    return Ask(
        id=job.id,
        name=spec.name,
        queue=spec.queue,
        user=job.user,
        tenant=spec.tenant,
        priority=spec.priority,
        submitted_unix=job.submitted_unix_ms / 1000,
        nodes=spec.resources.nodes,
        gpus_per_node=spec.resources.gpus_per_node,
        exclusive=spec.resources.exclusive,
        gpu_type=spec.resources.gpu_type,
        node_group=spec.resources.node_group,
        executor=spec.executor,
        excluded_nodes=frozenset(job.excluded_nodes),
        left_seconds=left_seconds,
        deadline_unix=spec.deadline_unix,
        preemptible=spec.preemptible,
    )


def _pending(job: Job, scene: Scene) -> Pending:
    waits_for = []
    for other_id in job.depends_on:
        other = scene.jobs.get(other_id)
        if other is None:
            waits_for.append(f"{other_id} (no longer on record: submit this job anew without it)")
        elif other.state is not JobState.SUCCEEDED:
            what = ": requeue it, or cancel this one" if other.state.is_over else ""
            waits_for.append(f"{other.spec.name} ({other.state}{what})")
    last = scene.attempts.get(job.id)
    since_ms = max(job.submitted_unix_ms, last.ended_unix_ms if last else 0)
    return Pending(_ask(job), job.eligible_unix_ms / 1000, tuple(waits_for), since_ms / 1000, job.is_promised)


def _running(job: Job, scene: Scene) -> Running:
    attempt = scene.attempts.get(job.id)
    started_ms = (attempt.scheduled_unix_ms if attempt else 0) or scene.now_unix_ms
    saved_ms = max(attempt.durable_unix_ms, attempt.running_unix_ms) if attempt else 0
    unsaved_seconds = max(0, scene.now_unix_ms - saved_ms) / 1000 if saved_ms else 0.0
    is_leaving = job.state is JobState.CHECKPOINTING or (attempt is not None and attempt.verdict is not None)
    return Running(
        _ask(job),
        {slot.node: slot.gpus for slot in job.slots},
        started_ms / 1000,
        unsaved_seconds,
        is_leaving,
        scene.utilization.get(job.id),
    )


def _node(facts: NodeFacts, executor: str, scene: Scene) -> PolicyNode:
    record = scene.node_records.get(facts.name)
    because = scene.cordoned.get(facts.name, "")
    if record is not None and record.cordoned_because:
        because = f"cordoned: {record.cordoned_because}"
    elif because:
        because = f"cordoned: {because}"
    if not facts.is_up:
        because = facts.problem or "it is down"
    return PolicyNode(facts.name, facts.gpus, facts.gpu_type, facts.groups, executor, not because, because)


def _broken(nodes: Iterable[NodeFacts]) -> list[Running]:
    """Bad GPUs are taken, as it were, by somebody who never leaves."""
    return [
        Running(
            Ask(f"{_BROKEN} {node.name}", _BROKEN, _BROKEN, _BROKEN, "", 0, 0.0, 1, len(bad), preemptible=False),
            {node.name: bad},
            0.0,
        )
        for node in nodes
        if (bad := tuple(index for index in sorted(node.bad_gpus) if index < node.gpus))
    ]
