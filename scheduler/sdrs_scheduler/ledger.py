"""Jobs, attempts, queues and nodes as they are on record; the command line and the scheduler both go through here.

Whoever changes a record compares the revision that it read. People set wishes, priorities and queues; everything else
is the scheduler's, whose transactions compare its term as well (``leading.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sdrs_core.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from sdrs_core.ids import check_name
from sdrs_proto.limits import MAX_RECORD_BYTES
from sdrs_scheduler import keys
from sdrs_scheduler.entries import HistoryClaim, Lease, NodeRecord, Stored, Term, Usage, dump, parse
from sdrs_scheduler.jobs.job import MAX_STORY_LINES, Attempt, Job, JobId, JobState, Line, Wish
from sdrs_scheduler.jobs.spec import DEFAULT_QUEUE, MAX_PRIORITY, JobSpec
from sdrs_scheduler.jobs.transitions import told
from sdrs_scheduler.policy.view import Queue
from sdrs_scheduler.record_store import RecordStore

T = TypeVar("T")

# How often a change is decided anew because somebody else was faster.
_MAX_TRIES = 20
_ID_BYTES = (2, 3, 3, 3)
# Of a record that has just been made: what will be told of the job has to fit in as well.
MAX_JOB_BYTES = MAX_RECORD_BYTES // 2


class Ledger:
    def __init__(self, records: RecordStore) -> None:
        self.records = records

    # Reading

    def jobs(self) -> list[Stored[Job]]:
        """All that are on record, by id."""
        return list(self._all(keys.JOBS, Job))

    def job(self, job_id: str) -> Stored[Job]:
        found = self._get(keys.job(job_id), Job)
        if found is None:
            raise NotFoundError(f'there is no job "{job_id}": `sdrs job list` shows those there are', job=job_id)
        return found

    def find(self, name_or_id: str) -> Stored[Job]:
        """The job of this id; else the newest of this name."""
        if (found := self._get(keys.job(name_or_id), Job)) is not None:
            return found
        named = self.named(name_or_id)
        if not named:
            raise NotFoundError(
                f'there is no job "{name_or_id}", neither by id nor by name: `sdrs job list --all` shows what there is',
                job=name_or_id,
            )
        return max(named, key=lambda stored: (stored.value.submitted_unix_ms, stored.value.id))

    def named(self, name: str) -> list[Stored[Job]]:
        """All of this name: their ids begin with it, so that the others are not read."""
        return [stored for stored in self._all(f"{keys.job(name)}-", Job) if stored.value.spec.name == name]

    def attempts(self, job_id: str) -> list[Stored[Attempt]]:
        """Of one job, the first one first."""
        return list(self._all(keys.attempts(job_id), Attempt))

    def all_attempts(self) -> dict[str, list[Attempt]]:
        """Of all jobs, by their ids."""
        found: dict[str, list[Attempt]] = {}
        for stored in self._all(keys.ATTEMPTS, Attempt):
            found.setdefault(stored.value.job_id, []).append(stored.value)
        return found

    def attempt(self, job_id: str, number: int) -> Stored[Attempt] | None:
        return self._get(keys.attempt(job_id, number), Attempt)

    def queues(self) -> dict[str, Stored[Queue]]:
        """By name. The default queue is there without a record as well, with revision 0."""
        found = {stored.value.name: stored for stored in self._all(keys.QUEUES, Queue)}
        found.setdefault(DEFAULT_QUEUE, Stored(keys.queue(DEFAULT_QUEUE), Queue(DEFAULT_QUEUE), 0))
        return found

    def nodes(self) -> dict[str, Stored[NodeRecord]]:
        return {stored.value.name: stored for stored in self._all(keys.NODES, NodeRecord)}

    def usage(self) -> Stored[Usage] | None:
        return self._get(keys.USAGE, Usage)

    def term(self) -> Stored[Term] | None:
        return self._get(keys.TERM, Term)

    def lease(self) -> Stored[Lease] | None:
        """Whether a scheduler runs: ``lease()`` is there and ``is_fresh``."""
        return self._get(keys.LEASE, Lease)

    # What people change

    def submit(self, spec: JobSpec, user: str, *, now_unix_ms: int, note: str = "", held: bool = False) -> Job:
        """A new job. Refused while another one goes on with the same history.

        ``depends_on`` is resolved here, by id or by name (the newest of it), so that what a name means stays as it was
        when it was written. ``note`` becomes the first line of its story. ``held``: it waits until it is released, and
        no scheduler can be faster.
        """
        state = JobState.HELD if held else JobState.SUBMITTED
        check_name(spec.name, "job name")
        check_name(spec.history, "history of checkpoints")
        depends_on = tuple(dict.fromkeys(self.find(name).value.id for name in spec.depends_on))
        for id_bytes in _ID_BYTES:
            job_id = JobId(f"{spec.name}-{secrets.token_hex(id_bytes)}")
            job = Job(job_id, spec, user, now_unix_ms, state, depends_on=depends_on)
            job = told(job, now_unix_ms, note or f"submitted by {user}")
            if (size_bytes := len(dump(job))) > MAX_JOB_BYTES:
                raise InvalidArgumentError(
                    f'job "{spec.name}" makes a record of {size_bytes} bytes, {MAX_JOB_BYTES} are allowed: put what is '
                    "long in its command or environment into a file"
                )
            claim_revision = self._claimable(spec.history, job_id)
            history_key, job_key = keys.history(spec.history), keys.job(job_id)
            put: dict[str, object] = {history_key: HistoryClaim(job_id), job_key: job}
            if self.change({history_key: claim_revision, job_key: 0}, put) is not None:
                return job
        raise UnavailableError(f'job "{spec.name}" could not be recorded: others submit at the same time, try again')

    def _claimable(self, history: str, job_id: JobId) -> int:
        """The revision of the claim on ``history``, if it is free."""
        claim = self.claim(history)
        if claim is None:
            return 0
        holder = self._get(keys.job(claim.value.job_id), Job)
        if holder is None or holder.value.state.is_over or holder.value.id == job_id:
            return claim.revision
        raise AlreadyExistsError(
            f'job {holder.value.id} ({holder.value.state}) already goes on with the checkpoints of "{history}": '
            f"cancel it (`sdrs job cancel {holder.value.id}`), or give this one another checkpoint.history",
            job=holder.value.id,
            history=history,
        )

    def claim(self, history: str) -> Stored[HistoryClaim] | None:
        """Which job went on with a history last."""
        return self._get(keys.history(history), HistoryClaim)

    def wish(self, job_id: str, wish: Wish, note: str) -> Job:
        """Ask the scheduler for something; ``note`` says who, and why. RefusedError if it makes no sense."""

        def wished(job: Job) -> Job:
            _check_wish(job, wish)
            return replace(job, wish=wish, wish_note=note)

        # A job that is over comes back by this, and then has its history again.
        return self._change_job(job_id, wished, claims_history=wish is Wish.REQUEUE)

    def set_priority(self, job_id: str, priority: int, note: str, *, now_unix_ms: int) -> Job:
        if not 0 <= priority <= MAX_PRIORITY:
            raise InvalidArgumentError(f"priority {priority} is out of range: it runs from 0 to {MAX_PRIORITY}")

        def prioritized(job: Job) -> Job:
            if job.state.is_over:
                raise RefusedError(f"job {job.id} is {job.state}: its priority matters no more")
            sentence = f"priority {job.spec.priority} → {priority} ({note})"
            line = Line(now_unix_ms, sentence)
            return replace(
                job,
                spec=replace(job.spec, priority=priority),
                story=(*job.story, line)[-MAX_STORY_LINES:],
            )

        return self._change_job(job_id, prioritized)

    def _change_job(self, job_id: str, change: Callable[[Job], Job], *, claims_history: bool = False) -> Job:
        for _ in range(_MAX_TRIES):
            stored = self.job(job_id)
            job = change(stored.value)
            compare = {stored.key: stored.revision}
            put: dict[str, object] = {stored.key: job}
            if claims_history and job.state.is_over:
                history_key = keys.history(job.spec.history)
                compare[history_key] = self._claimable(job.spec.history, job.id)
                put[history_key] = HistoryClaim(job.id)
            if self.change(compare, put) is not None:
                return job
        raise UnavailableError(f"job {job_id} changes all the time: try again")

    def put_queue(self, queue: Queue) -> Queue:
        """Create a queue or change it."""
        check_name(queue.name, "queue name")
        for _ in range(_MAX_TRIES):
            revision = self.queues().get(queue.name, Stored("", queue, 0)).revision
            if self.change({keys.queue(queue.name): revision}, {keys.queue(queue.name): queue}) is not None:
                return queue
        raise UnavailableError(f'queue "{queue.name}" changes all the time: try again')

    def delete_queue(self, name: str) -> None:
        """Refused while jobs are in it. The default queue goes back to what it is by itself."""
        stored = self.queues().get(name)
        if stored is None:
            raise NotFoundError(f'there is no queue "{name}": `sdrs queue list` shows those there are', queue=name)
        active = [s.value.id for s in self.jobs() if s.value.spec.queue == name and not s.value.state.is_over]
        if active and name != DEFAULT_QUEUE:
            some = ", ".join(active[:3]) + (", ..." if len(active) > 3 else "")
            raise RefusedError(f'queue "{name}" has {len(active)} active jobs ({some}): cancel them or wait for them')
        if stored.revision and self.change({stored.key: stored.revision}, {}, [stored.key]) is None:
            raise UnavailableError(f'queue "{name}" changed in this moment: try again')

    def clear_node(self, name: str) -> None:
        """Forget strikes and cordon of a node: it is given work again."""
        for _ in range(_MAX_TRIES):
            stored = self._get(keys.node(name), NodeRecord)
            if stored is None:
                raise NotFoundError(f'the scheduler knows no node "{name}": `sdrs job nodes` shows them', node=name)
            cleared = replace(stored.value, strikes=(), cordoned_because="", cordoned_unix_ms=0, is_told=False)
            if self.change({stored.key: stored.revision}, {stored.key: cleared}) is not None:
                return
        raise UnavailableError(f'node "{name}" changes all the time: try again')

    # The records themselves

    def change(self, compare: Mapping[str, int], put: Mapping[str, object], delete: Sequence[str] = ()) -> int | None:
        """One transaction; None if a compared record moved."""
        return self.records.change(compare=compare, put={key: dump(value) for key, value in put.items()}, delete=delete)

    def _get(self, key: str, kind: type[T]) -> Stored[T] | None:
        record = self.records.get(key)
        return None if record is None else Stored(record.key, parse(record.key, record.value, kind), record.revision)

    def _all(self, prefix: str, kind: type[T]) -> Iterator[Stored[T]]:
        for record in self.records.range(prefix):
            yield Stored(record.key, parse(record.key, record.value, kind), record.revision)


_SENSELESS: dict[Wish, Callable[[Job], str]] = {
    Wish.CANCEL: lambda job: f"it is {job.state} already" if job.state.is_over else "",
    Wish.HOLD: lambda job: f"it is {job.state} already" if job.state.is_over or job.state is JobState.HELD else "",
    Wish.RELEASE: lambda job: "" if job.state is JobState.HELD or job.wish is Wish.HOLD else "it is not held",
    Wish.REQUEUE: lambda job: (
        "it waits already"
        if job.state in (JobState.SUBMITTED, JobState.QUEUED, JobState.PREEMPTED)
        else "it is held: release it instead"
        if job.state is JobState.HELD
        else ""
    ),
    Wish.PREEMPT: lambda job: "" if job.state.has_nodes else "it does not run",
}


def _check_wish(job: Job, wish: Wish) -> None:
    because = _SENSELESS[wish](job) if wish in _SENSELESS else ""
    if because:
        raise RefusedError(f"job {job.id} cannot be asked to {wish}: {because}", job=job.id, state=job.state)
