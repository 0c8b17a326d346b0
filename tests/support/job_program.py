"""``sdrs job`` and ``sdrs queue`` run in this process, and jobs put on record as a scheduler would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from sdrs import Cluster
from sdrs.cli.root import Root
from sdrs_scheduler import keys
from sdrs_scheduler.cli.jobs import job
from sdrs_scheduler.cli.queues import queue
from sdrs_scheduler.entries import Lease
from sdrs_scheduler.jobs.job import Attempt, Job, JobId
from sdrs_scheduler.ledger import Ledger, told
from tests.support.program import Program

_ROOT = Root("sdrs", commands={"job": job, "queue": queue})


class JobProgram(Program):
    """Without the lookup of installed entry points: what is tested is what is in this tree."""

    def result(self, *arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(_ROOT, ["--url", self._url, *arguments], input=input)

    def submit(self, folder: Path, text: str, *options: str) -> Any:
        """The first job of a file with this text, as it is on record."""
        file = folder / "job.yaml"
        file.write_text(text)
        return self.json("job", "submit", str(file), *options)[0]


class StandInScheduler:
    """Writes what a scheduler would, without deciding anything."""

    def __init__(self, cluster: Cluster) -> None:
        self.ledger = Ledger(cluster.records)

    def change(self, job_id: str, now_unix_ms: int, sentence: str, **changes: Any) -> Job:
        stored = self.ledger.job(job_id)
        job = told(replace(stored.value, **changes), now_unix_ms, sentence)
        assert self.ledger.change({stored.key: stored.revision}, {stored.key: job}) is not None
        return job

    def put_attempts(self, job_id: str, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            key = keys.attempt(job_id, attempt.number)
            stored = self.ledger.attempt(job_id, attempt.number)
            revision = stored.revision if stored else 0
            assert self.ledger.change({key: revision}, {key: replace(attempt, job_id=JobId(job_id))}) is not None

    def renew_lease(self, now_unix_ms: int, seconds: float = 3600.0) -> None:
        stored = self.ledger.lease()
        lease = Lease(1, "stand-in", now_unix_ms, seconds)
        assert self.ledger.change({keys.LEASE: stored.revision if stored else 0}, {keys.LEASE: lease}) is not None
