"""When backups are made, and how many are kept: few, and held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sdrs_core.backup.schedule import Past, behind, check_policy, due_unix_ms
from sdrs_core.backup.targets import Keep, Policy, TargetName
from sdrs_core.checkpoints import Save
from sdrs_core.errors import NotFoundError
from sdrs_core.ids import check_name
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.cron import next_by_cron
from sdrs_storaged.control.backup.records import PolicyRecord
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Delete, Op
from sdrs_storaged.control.records import Records, put


class Policies:
    def __init__(self, records: Records, targets: Targets, members: Members, clock: Clock) -> None:
        self._records = records
        self._targets = targets
        self._members = members
        self._clock = clock
        self._known: dict[str, PolicyRecord] = {}
        # Held while one is changed: what a run writes about it at its end must not undo that.
        self.lock = asyncio.Lock()
        # Of those that back up at each commit: since when a checkpoint waits.
        self._waiting: dict[str, int] = {}

    async def load(self) -> None:
        found = [stored async for stored in self._records.all(keys.BACKUP_POLICIES, PolicyRecord)]
        self._known = {stored.key: stored.value for stored in found}
        now = self._clock.unix_ms()
        # What was committed under the last controller is looked for once.
        self._waiting = {key: now for key, record in self._known.items() if record.policy.on_commit}

    def all(self) -> list[PolicyRecord]:
        return [self._known[key] for key in sorted(self._known)]

    def of_target(self, target: TargetName) -> list[tuple[str, PolicyRecord]]:
        return [(key, self._known[key]) for key in sorted(self._known) if self._known[key].policy.target == target]

    def get(self, key: str) -> PolicyRecord | None:
        return self._known.get(key)

    def keep(self, target: TargetName, pool: str, job: str) -> Keep:
        """That of the job's own policy, or else of its pool's; nothing said: everything stays."""
        for key in (keys.backup_policy(target, pool, job), keys.backup_policy(target, pool)):
            if key in self._known:
                return self._known[key].policy.keep
        return Keep()

    async def set(self, policy: Policy) -> Policy:
        self._targets.writable(policy.target)
        self._members.pool(policy.pool)
        if policy.job:
            check_name(policy.job, "job")
        check_policy(policy, next_by_cron)
        key = _key(policy)
        async with self.lock:
            known = self._known.get(key)
            if known and known.policy == policy:
                return policy
            now = self._clock.unix_ms()
            # A new rhythm counts from now on; what was done is done.
            record = replace(known, policy=policy, set_unix_ms=now) if known else PolicyRecord(policy, now)
            await self._records.commit([], [put(key, record)])
            self._known[key] = record
        if policy.on_commit:
            self._waiting[key] = now
        return policy

    async def remove(self, target: str, pool: str, job: str) -> None:
        key = keys.backup_policy(self._targets.get(target).name, pool, job)
        if key not in self._known:
            of = f' and job "{job}"' if job else ""
            raise NotFoundError(f'there is no backup policy of pool "{pool}"{of} for target {target}', target=target)
        async with self.lock:
            await self._records.commit([], [Delete(key)])
            self._known.pop(key, None)
            self._waiting.pop(key, None)

    def forget(self, target: str) -> None:
        """Their records went with the target."""
        for key in [key for key in self._known if key.startswith(keys.backup_policies_of(target))]:
            del self._known[key]
            self._waiting.pop(key, None)

    def committed(self, save: Save) -> bool:
        """Whether a policy waits for that."""
        concerned = [
            key
            for key, record in self._known.items()
            if record.policy.on_commit and record.policy.pool == save.pool and record.policy.job in ("", save.job)
        ]
        for key in concerned:
            self._waiting.setdefault(key, save.committed_unix_ms)
        return bool(concerned)

    def due(self, target: TargetName) -> tuple[int, str] | None:
        """The one of this target that is due next, and when."""
        moments = [
            (moment, key)
            for key, record in self.of_target(target)
            if (moment := due_unix_ms(record.policy, self._past(key, record), next_by_cron)) is not None
        ]
        return min(moments, default=None)

    def next_unix_ms(self, record: PolicyRecord) -> int:
        """0: not by itself."""
        return due_unix_ms(record.policy, self._past(_key(record.policy), record), next_by_cron) or 0

    def behind(self, record: PolicyRecord) -> str:
        past = self._past(_key(record.policy), record)
        return behind(record.policy, past, self._clock.unix_ms(), next_by_cron)

    def _past(self, key: str, record: PolicyRecord) -> Past:
        return Past(
            record.set_unix_ms,
            record.done_unix_ms,
            record.tried_unix_ms,
            record.failures,
            record.failure,
            self._waiting.get(key, 0),
        )

    # What runs make of it

    def begun(self, key: str) -> None:
        """From here on a commit waits for the next run."""
        self._waiting.pop(key, None)

    def ended(self, key: str, began_unix_ms: int, failure: str) -> tuple[PolicyRecord | None, Sequence[Op]]:
        """As it is then, and what has to be written for it; ``keep`` it once that is done."""
        known = self._known.get(key)
        if known is None:
            return None, ()
        after = replace(known, tried_unix_ms=began_unix_ms, failures=0, failure="", done_unix_ms=began_unix_ms)
        if failure:
            now = self._clock.unix_ms()
            after = replace(known, tried_unix_ms=now, failures=known.failures + 1, failure=failure)
        return after, (put(key, after),)

    def note(self, key: str, record: PolicyRecord) -> None:
        self._known[key] = record


def _key(policy: Policy) -> str:
    return keys.backup_policy(policy.target, policy.pool, policy.job)
