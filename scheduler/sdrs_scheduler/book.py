"""What the deciding scheduler remembers of the records, and how it changes them: state first, act after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdrs_core.errors import CorruptDataError
from sdrs_scheduler import keys
from sdrs_scheduler.entries import NodeRecord, Stored, parse
from sdrs_scheduler.fault_points import reach
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.jobs.sight import Step
from sdrs_scheduler.leading import Leader
from sdrs_scheduler.ledger import Ledger
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.policy.view import Queue

if TYPE_CHECKING:
    from sdrs.records import Record

log = get_log("book")

# Everything is read again now and then: a change that its controller gave up may come to pass later, unnoticed.
_MAX_READS_OF_CHANGES = 500


@dataclass(frozen=True, slots=True)
class Extra:
    """What else goes into the transaction of a step: records with the revisions that they must have."""

    put: Mapping[str, object] = field(default_factory=dict)
    compare: Mapping[str, int] = field(default_factory=dict)


class Book:
    def __init__(self, ledger: Ledger, leader: Leader) -> None:
        self.ledger = ledger
        self._leader = leader
        self.forget()

    def forget(self) -> None:
        """Another one decided in between: nothing that was read before counts."""
        self.jobs: dict[str, Stored[Job]] = {}
        self.nodes: dict[str, Stored[NodeRecord]] = {}
        self.queues: dict[str, Stored[Queue]] = {}
        # The newest attempt of each job that was asked for. Only this scheduler changes them, as long as it decides.
        self._attempts: dict[str, Attempt] = {}
        # Up to which change it is known what is on record; None: everything is to be read.
        self._read_revision: int | None = None
        self._reads_of_changes = 0

    def read(self) -> None:
        """What changed since the last time: thousands of jobs that are over cost nothing."""
        # Asked before: what changes while it is read is read again.
        changes = self.ledger.records.changes(keys.ALL, self._read_revision or 0)
        is_lost = changes.records is None and changes.revision != self._read_revision
        self._reads_of_changes += 1
        if self._read_revision is None or is_lost or self._reads_of_changes > _MAX_READS_OF_CHANGES:
            self._read_all()
            self._reads_of_changes = 0
        for key, revision in (changes.records or {}).items():
            self._read_one(key, revision)
        self._read_revision = changes.revision

    def _read_all(self) -> None:
        self.nodes = self.ledger.nodes()
        self.queues = self.ledger.queues()
        known, self.jobs = self.jobs, {}
        for record in self.ledger.records.range(keys.JOBS):
            job_id = record.key.removeprefix(keys.JOBS)
            if (before := known.get(job_id)) is not None and before.revision == record.revision:
                self.jobs[job_id] = before
            else:
                self._take_job(record)
        for gone in known.keys() - self.jobs.keys():
            self._attempts.pop(gone, None)

    def _read_one(self, key: str, revision: int) -> None:
        if key.startswith(keys.QUEUES):
            self.queues = self.ledger.queues()
        elif key.startswith(keys.NODES):
            name = key.removeprefix(keys.NODES)
            if name not in self.nodes or self.nodes[name].revision != revision:
                self.nodes = self.ledger.nodes()
        elif key.startswith(keys.JOBS):
            job_id = key.removeprefix(keys.JOBS)
            if job_id in self.jobs and self.jobs[job_id].revision == revision:
                return  # it was this one that changed it
            if (record := self.ledger.records.get(key)) is not None:
                self._take_job(record)
            else:
                self.jobs.pop(job_id, None)
                self._attempts.pop(job_id, None)

    def _take_job(self, record: Record) -> None:
        job_id = record.key.removeprefix(keys.JOBS)
        try:
            self.jobs[job_id] = Stored(record.key, parse(record.key, record.value, Job), record.revision)
        except CorruptDataError as error:
            # Written by a later version, perhaps: the others go on.
            self.jobs.pop(job_id, None)
            log.error("job_not_readable", job=job_id, why=error.message)

    def attempt(self, job: Job) -> Attempt | None:
        """The newest one, as ``job`` numbers it."""
        if not job.attempt:
            return None
        known = self._attempts.get(job.id)
        if known is None or known.number != job.attempt:
            stored = self.ledger.attempt(job.id, job.attempt)
            if stored is None:
                return None
            known = self._attempts[job.id] = stored.value
        return known

    def commit(self, before: Stored[Job], attempt: Attempt | None, step: Step, extra: Extra | None = None) -> bool:
        """Put a step on record. False: somebody changed the job meanwhile, and it has to be looked at again."""
        put: dict[str, object] = dict(extra.put) if extra else {}
        job = step.job
        if job != before.value:
            put[before.key] = job
        if step.attempt is not None and step.attempt != attempt:
            put[keys.attempt(job.id, step.attempt.number)] = step.attempt
        if not put:
            return True
        moves = job.state is not before.value.state
        if moves:
            reach(f"job.{job.state}.decided")
        compare = {before.key: before.revision, **(extra.compare if extra else {})}
        # Until it is answered: it may have happened also if nobody says so, and then what is on record counts.
        known = self._attempts.pop(job.id, None)
        revision = self._leader.commit(compare, put)
        if revision is None:
            self._read_revision = None
            return False
        for key, value in put.items():
            if isinstance(value, Job):
                self.jobs[value.id] = Stored(key, value, revision)
            elif isinstance(value, NodeRecord):
                self.nodes[value.name] = Stored(key, value, revision)
        if (newest := step.attempt or known) is not None:
            self._attempts[job.id] = newest
        if moves:
            log.info("job_moved", job=job.id, state=str(job.state), attempt=job.attempt, why=job.why)
            reach(f"job.{job.state}.recorded")
        return True
