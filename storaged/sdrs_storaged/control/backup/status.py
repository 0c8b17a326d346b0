"""How much work would be lost with the cluster: for each job, what the newest backup has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sdrs_core.backup.targets import TargetName
from sdrs_core.checkpoints import Save, newest_by_step
from sdrs_core.ids import SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.records import PolicyRecord
from sdrs_storaged.control.records import Records


@dataclass(frozen=True, slots=True)
class JobStatus:
    job: str
    pool: str
    target: TargetName
    newest_step: int = 0
    # 0: none is in the backup, or in the cluster.
    newest_committed_unix_ms: int = 0
    cluster_committed_unix_ms: int = 0
    waiting_checkpoints: int = 0
    behind: str = ""


class Status:
    def __init__(self, records: Records, policies: Policies, copies: Copies) -> None:
        self._records = records
        self._policies = policies
        self._copies = copies

    async def jobs(self) -> list[JobStatus]:
        """Of every job that a policy is about, or that has a backup."""
        targets = sorted({record.policy.target for record in self._policies.all()})
        found: list[JobStatus] = []
        for target in targets:
            found += await self._of_target(target)
        return found

    async def _of_target(self, target: TargetName) -> list[JobStatus]:
        jobs: dict[tuple[str, str], JobStatus] = {}
        backed_up: set[SaveId] = set()
        async for stored in self._copies.of_target(target):
            copy = stored.value
            if not copy.is_good:
                continue
            backed_up.add(copy.save_id)
            known = jobs.setdefault((copy.pool, copy.job), JobStatus(copy.job, copy.pool, target))
            if copy.committed_unix_ms > known.newest_committed_unix_ms:
                jobs[copy.pool, copy.job] = replace(
                    known, newest_step=copy.step, newest_committed_unix_ms=copy.committed_unix_ms
                )
        policies = [record for _, record in self._policies.of_target(target)]
        of_step: list[Save] = []
        async for save in self._records.all(keys.SAVES, Save):
            if of_step and (of_step[0].job, of_step[0].step) != (save.value.job, save.value.step):
                self._count(jobs, target, of_step, backed_up, policies)
                of_step = []
            of_step.append(save.value)
        self._count(jobs, target, of_step, backed_up, policies)
        return [replace(job, behind=self._behind(job, policies)) for _, job in sorted(jobs.items())]

    def _count(
        self,
        jobs: dict[tuple[str, str], JobStatus],
        target: TargetName,
        of_step: list[Save],
        backed_up: set[SaveId],
        policies: list[PolicyRecord],
    ) -> None:
        for save in newest_by_step(of_step):
            if save.damage or _policy_of(policies, save.pool, save.job) is None:
                continue
            key = (save.pool, str(save.job))
            known = jobs.setdefault(key, JobStatus(save.job, save.pool, target))
            jobs[key] = replace(
                known,
                cluster_committed_unix_ms=max(known.cluster_committed_unix_ms, save.committed_unix_ms),
                waiting_checkpoints=known.waiting_checkpoints + (save.save_id not in backed_up),
            )

    def _behind(self, job: JobStatus, policies: list[PolicyRecord]) -> str:
        record = _policy_of(policies, job.pool, job.job)
        return self._policies.behind(record) if record and job.waiting_checkpoints else ""


def _policy_of(policies: list[PolicyRecord], pool: str, job: str) -> PolicyRecord | None:
    fitting = [one for one in policies if one.policy.pool == pool and one.policy.job in ("", job)]
    return max(fitting, key=lambda one: one.policy.job, default=None)
