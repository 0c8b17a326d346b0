"""What the deciding scheduler remembers of the records, and how it changes them: state first, act after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sdrs_core.errors import CorruptDataError
from sdrs_scheduler import keys
from sdrs_scheduler.fault_points import reach
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.jobs.sight import Step
from sdrs_scheduler.leading import Leader
from sdrs_scheduler.ledger import Ledger, NodeRecord, Stored, parse
from sdrs_scheduler.logs import get_log

log = get_log("book")


@dataclass(frozen=True, slots=True)
class Extra:
    """What else goes into the transaction of a step: records with the revisions that they must have."""

    put: Mapping[str, object] = field(default_factory=dict)
    compare: Mapping[str, int] = field(default_factory=dict)


class Book:
    def __init__(self, ledger: Ledger, leader: Leader) -> None:
        self.ledger = ledger
        self._leader = leader
        self.jobs: dict[str, Stored[Job]] = {}
        # The newest attempt of each job that was asked for. Only this scheduler changes them, as long as it decides.
        self._attempts: dict[str, Attempt] = {}
        self.nodes: dict[str, Stored[NodeRecord]] = {}
        # The newest change of jobs that was read; None: they are to be read in any case.
        self._read_revision: int | None = None

    def forget(self) -> None:
        """Another one decided in between: nothing that was read before counts."""
        self.jobs, self._attempts, self.nodes, self._read_revision = {}, {}, {}, None

    def read(self) -> None:
        self.nodes = self.ledger.nodes()
        # Asked before: what changes while it is read is read again.
        revision = self.ledger.records.wait(keys.JOBS, self._read_revision or 0, 0.0)
        if revision != self._read_revision:
            self._read_jobs()
            self._read_revision = revision

    def _read_jobs(self) -> None:
        known = self.jobs
        self.jobs = {}
        for record in self.ledger.records.range(keys.JOBS):
            job_id = record.key.removeprefix(keys.JOBS)
            before = known.get(job_id)
            if before is not None and before.revision == record.revision:
                self.jobs[job_id] = before
                continue
            try:
                self.jobs[job_id] = Stored(record.key, parse(record.key, record.value, Job), record.revision)
            except CorruptDataError as error:
                # Written by a later version, perhaps: the others go on.
                log.error("job_not_readable", job=job_id, why=error.message)
        for gone in known.keys() - self.jobs.keys():
            self._attempts.pop(gone, None)

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
        if before.key in put:
            self.jobs[job.id] = Stored(before.key, job, revision)
        if (newest := step.attempt or known) is not None:
            self._attempts[job.id] = newest
        if moves:
            log.info("job_moved", job=job.id, state=str(job.state), attempt=job.attempt, why=job.why)
            reach(f"job.{job.state}.recorded")
        return True
