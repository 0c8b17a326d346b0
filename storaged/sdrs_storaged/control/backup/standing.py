"""How things stand with the backups of each target, as of the last look: for warnings and metrics, which wait for
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sdrs_core.backup.targets import TargetName
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.records import Copy, CopyState, ObjectState
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.clock import Clock

_MAX_NAMED = 10  # I10


@dataclass(slots=True)
class TargetStanding:
    checkpoints: int = 0
    objects: int = 0
    stored_bytes: int = 0
    newest_unix_ms: int = 0
    damaged_count: int = 0
    damaged: list[str] = field(default_factory=list)
    # By pool and job: when the newest sound one was committed.
    newest_by_job: dict[tuple[str, str], int] = field(default_factory=dict)

    def count(self, copy: Copy) -> None:
        if copy.state is not CopyState.LISTED:
            return
        self.checkpoints += 1
        self.newest_unix_ms = max(self.newest_unix_ms, copy.backed_up_unix_ms)
        if copy.damage:
            self.damaged_count += 1
            if len(self.damaged) < _MAX_NAMED:
                self.damaged.append(f"the backup of {copy.title} in {copy.target} is damaged: {copy.damage}")
            return
        job = (copy.pool, copy.job)
        self.newest_by_job[job] = max(self.newest_by_job.get(job, 0), copy.committed_unix_ms)


class Standing:
    def __init__(self, targets: Targets, policies: Policies, copies: Copies, clock: Clock) -> None:
        self._targets = targets
        self._policies = policies
        self._copies = copies
        self._clock = clock
        self._by_target: dict[TargetName, TargetStanding] = {}

    def of(self, target: TargetName) -> TargetStanding:
        return self._by_target.get(target, TargetStanding())

    async def look(self, target: TargetName) -> None:
        found = TargetStanding()
        async for copy in self._copies.of_target(target):
            found.count(copy.value)
        async for stored in self._copies.objects(target):
            if stored.value.state is ObjectState.STORED:
                found.objects += 1
                found.stored_bytes += stored.value.place.size_bytes
        self._by_target[target] = found

    def forget(self, target: TargetName) -> None:
        self._by_target.pop(target, None)

    def warnings(self) -> list[str]:
        found: list[str] = []
        failing: set[TargetName] = set()
        for record in self._targets.all():
            name = record.target.name
            if record.failure:
                failing.add(name)
                minutes = max(0, self._clock.unix_ms() - record.failing_since_unix_ms) // 60_000
                found.append(f"backup target {name} fails since {minutes} min: {record.failure}")
            if record.is_leaving:
                found.append(f'backup target {name} is half removed: "sdrs backup target remove {name}" finishes that')
            standing = self.of(name)
            found += standing.damaged
            if standing.damaged_count > len(standing.damaged):
                found.append(f"{standing.damaged_count - len(standing.damaged)} more backups in {name} are damaged")
        for known in self._policies.all():
            policy = known.policy
            behind = self._policies.behind(known)
            if behind and not (policy.target in failing and known.failures):
                of = f'job "{policy.job}" in pool {policy.pool}' if policy.job else f"pool {policy.pool}"
                found.append(f"the backup of {of} to {policy.target} is behind: {behind}")
        return found
