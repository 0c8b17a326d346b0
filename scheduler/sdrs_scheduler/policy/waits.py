"""Why a job waits, in a sentence: what it waits for, how much is missing, who is ahead, and roughly when."""

from __future__ import annotations

from collections.abc import Sequence

from sdrs_scheduler.policy.backfill import Reservation
from sdrs_scheduler.policy.capacity import Capacity, Shape
from sdrs_scheduler.policy.quotas import Quotas, gpus_of
from sdrs_scheduler.policy.view import Ask, Pending, PolicyNode, Queue, Running, Wait

_NAMED_MAX = 3


def dependency(job: Pending, now_unix: float) -> Wait:
    return Wait("dependency", f"It waits for {_names(job.waits_for)}.")


def backoff(job: Pending, now_unix: float) -> Wait:
    return Wait("backoff", f"It starts again in {_span(job.eligible_unix - now_unix)}: a pause after its last failure.")


def queue_closed(job: Pending, now_unix: float) -> Wait:
    return Wait("queue_closed", f"Queue {job.ask.queue} is closed: its jobs wait until it is opened (sdrs queue set).")


def beyond_limit(ask: Ask, queue: Queue) -> Wait:
    return Wait(
        "impossible",
        f"It can never start: it needs {_gpus(gpus_of(ask))}, and queue {queue.name} may have {queue.max_gpus} at "
        "most. Ask for fewer, use another queue, or raise its max_gpus.",
    )


def no_such_nodes(shape: Shape, capacity: Capacity) -> Wait:
    """For a job that the open nodes could not hold even if they were empty."""
    if not any(node.executor == shape.executor for node in capacity.nodes):
        return Wait("capacity", f"It needs {_need(shape)}, and executor {shape.executor} has no nodes yet.")
    suitable = [capacity.nodes[i] for i in capacity.suitable(shape, closed=True)]
    if len(suitable) < shape.nodes:
        there_are = _there_are(len(suitable), "such node")
        return Wait(
            "impossible",
            f"It can never start: it needs {_need(shape)}, and {there_are}. {_what_would_do(shape, capacity)}",
        )
    closed = [_closed(node) for node in suitable if not node.is_open]
    open_count = len(suitable) - len(closed)
    return Wait(
        "capacity",
        f"It needs {_need(shape)}, and only {open_count} of {len(suitable)} such nodes take{'s' * (open_count == 1)} "
        f"jobs now. "
        f"Closed: {_names(closed)}.",
    )


def limit(ask: Ask, quotas: Quotas) -> Wait:
    queue = quotas.queue(ask.queue)
    return Wait(
        "quota",
        f"Queue {queue.name} has {quotas.used(queue.name)} of the {_gpus(queue.max_gpus or 0)} that it may have at "
        f"most; this job needs {gpus_of(ask)}, so {quotas.missing_below_limit(ask)} must come free in the queue first.",
    )


def behind_in_queue(ask: Ask, first: Ask) -> Wait:
    return Wait(
        "behind",
        f"{first.name} is ahead of it, and queue {ask.queue} may not have enough GPUs for both (its max_gpus).",
    )


def not_lent(ask: Ask, quotas: Quotas) -> Wait:
    return Wait(
        "quota",
        f"It cannot be preempted, so it may not borrow what other queues could want back: queue {ask.queue} has "
        f"{quotas.used(ask.queue)} of its own {_gpus(quotas.quota(ask.queue))}, this job needs {gpus_of(ask)}, and "
        f"{quotas.unpromised} are in no queue's quota.",
    )


def preempting(leaving: Sequence[Running], reservation: Reservation | None, now_unix: float) -> Wait:
    names = _names([job.ask.name for job in leaving])
    verb = "saves its state and makes" if len(leaving) == 1 else "save their state and make"
    return Wait("preempting", f"{names} {verb} room for it{_when(reservation, now_unix)}")


def capacity_short(
    shape: Shape, capacity: Capacity, ahead: Sequence[Ask], reservation: Reservation | None, now_unix: float
) -> Wait:
    suitable, free = len(capacity.suitable(shape)), len(capacity.roomy(shape))
    have = f"{free} of the {suitable} such nodes {'has' if free == 1 else 'have'} room now"
    return Wait(
        "capacity",
        f"It needs {_need(shape)}: {have}, {shape.nodes - free} more must come free{_when(reservation, now_unix)}"
        f"{_ahead(ahead)}",
    )


def reserved(
    ask: Ask, shape: Shape, holders: Sequence[Reservation], reservation: Reservation | None, now_unix: float
) -> Wait:
    """``holders``: who has reserved nodes that it could use; at least one."""
    first = min(holders, key=lambda holder: holder.start_unix)
    kept = f"what is free is kept for {_names([holder.job_name for holder in holders])}"
    if first.is_known:
        kept += f", due in {_span(first.start_unix - now_unix)}"
    if ask.left_seconds is None:
        length = "nobody knows how long this job needs (an estimate in its job file would tell)"
    else:
        length = f"this job needs {_span(ask.left_seconds)} and would be in the way"
    starts = f" It starts{_when(reservation, now_unix)[1:]}" if reservation and reservation.is_known else ""
    return Wait("reserved", f"It needs {_need(shape)}; {kept}, and {length}.{starts}")


def behind(ahead: Sequence[Ask]) -> Wait:
    return Wait("behind", f"Its turn has not come.{_ahead(ahead)}")


def _need(shape: Shape) -> str:
    """``2 nodes with 8 GPUs of type H100 each, in group east``."""
    nodes = f"{shape.nodes} node" + ("s" if shape.nodes != 1 else "")
    kind = f" of type {shape.gpu_type}" if shape.gpu_type else ""
    each = " each" if shape.nodes != 1 else ""
    words = f"{nodes} with {_gpus(shape.gpus_per_node)}{kind}{each}" if shape.gpus_per_node else nodes
    if shape.exclusive:
        words += ", nobody else on " + ("them" if shape.nodes != 1 else "it")
    if shape.node_group:
        words += f", in group {shape.node_group}"
    return words


def _what_would_do(shape: Shape, capacity: Capacity) -> str:
    """What of the ask is in the way, found by leaving it out."""
    ways = []
    for without, advice in (
        (shape._replace(excluded=frozenset()), f"allow the nodes that it excludes ({_names(sorted(shape.excluded))})"),
        (shape._replace(gpu_type=""), f"leave out gpu_type: {shape.gpu_type}"),
        (shape._replace(node_group=""), f"leave out node_group: {shape.node_group}"),
    ):
        if without != shape and len(capacity.suitable(without, closed=True)) >= shape.nodes:
            ways.append(advice)
    kind = capacity.suitable(shape._replace(gpus_per_node=0), closed=True)
    sizes = sorted((capacity.nodes[i].gpus for i in kind), reverse=True)
    if len(sizes) >= shape.nodes and sizes[shape.nodes - 1] > 0:
        ways.append(f"ask for {_gpus(sizes[shape.nodes - 1])} per node at most")
    if 0 < len(fitting := capacity.suitable(shape, closed=True)) < shape.nodes:
        ways.append(f"ask for {len(fitting)} node{'s' if len(fitting) != 1 else ''} at most")
    ways.append("add nodes")
    text = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"
    return f"What would help: {text}."


def _ahead(ahead: Sequence[Ask]) -> str:
    if not ahead:
        return ""
    verb = "is" if len(ahead) == 1 else "are"
    return f" Ahead of it {verb} {_names([ask.name for ask in ahead])}."


def _when(reservation: Reservation | None, now_unix: float) -> str:
    """Ends the sentence that it is appended to."""
    if reservation is None:
        return "."
    if not reservation.is_known:
        return "; nobody knows when, for some of the jobs that run there do not tell how long they need."
    return f", in about {_span(reservation.start_unix - now_unix)}."


def _closed(node: PolicyNode) -> str:
    return f"{node.name} ({node.closed_because})" if node.closed_because else node.name


def _there_are(count: int, noun: str) -> str:
    if count == 0:
        return f"there is no {noun}"
    return f"there is 1 {noun}" if count == 1 else f"there are {count} {noun}s"


def _names(names: Sequence[str]) -> str:
    if len(names) <= _NAMED_MAX:
        return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    return f"{', '.join(names[:_NAMED_MAX])} and {len(names) - _NAMED_MAX} more"


def _gpus(count: int) -> str:
    return f"{count} GPU" + ("s" if count != 1 else "")


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    if seconds < 2 * 3600:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h" if seconds < 48 * 3600 else f"{round(seconds / 86400)} days"
