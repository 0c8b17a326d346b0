"""When a policy's next backup is due, and when it is behind.

``cron`` lines are of the usual five fields, in UTC: the controller that leads may be another one tomorrow, in another
place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sdrs_core.backup.targets import Policy
from sdrs_core.errors import InvalidArgumentError

# After a failure it is tried again sooner than by its interval, and ever more seldom while that goes on.
_FIRST_RETRY_SECONDS = 30
_LONGEST_RETRY_SECONDS = 3600
# A backup at each commit that is not there after so long is late.
_COMMIT_PATIENCE_SECONDS = 600
_MIN_EVERY_SECONDS = 1

# A cron line and a moment to the next one that it names, in milliseconds of Unix time: core has no calendar of its own.
NextByCron = Callable[[str, int], int]


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of a policy's runs, in milliseconds of Unix time; 0: there was none."""

    set_unix_ms: int
    done_unix_ms: int = 0
    tried_unix_ms: int = 0
    failures: int = 0
    failure: str = ""
    # When the oldest checkpoint was committed that waits to be backed up; 0: none does.
    waiting_since_unix_ms: int = 0


def check_policy(policy: Policy, next_by_cron: NextByCron) -> None:
    if policy.every_seconds and policy.cron:
        raise InvalidArgumentError("a backup policy has an interval (--every) or a cron line (--cron), not both")
    if policy.every_seconds and policy.every_seconds < _MIN_EVERY_SECONDS:
        raise InvalidArgumentError(f"backups every {policy.every_seconds} s cannot be: {_MIN_EVERY_SECONDS} s at least")
    if policy.cron:
        next_by_cron(policy.cron, 0)


def due_unix_ms(policy: Policy, past: Past, next_by_cron: NextByCron) -> int | None:
    """When the next run begins; a moment that is past means now, None: not by itself.

    Times come from whichever controller led, and clocks differ (I8): a wrong one makes a backup early or late.
    """
    if past.failures:
        return past.tried_unix_ms + 1000 * retry_seconds(past.failures)
    moments: list[int] = []
    if policy.every_seconds:
        moments.append(past.tried_unix_ms + 1000 * policy.every_seconds if past.tried_unix_ms else past.set_unix_ms)
    if policy.cron:
        moments.append(next_by_cron(policy.cron, max(past.tried_unix_ms, past.set_unix_ms)))
    if policy.on_commit and past.waiting_since_unix_ms:
        moments.append(past.waiting_since_unix_ms)
    return min(moments, default=None)


def retry_seconds(failures: int) -> int:
    return int(min(_FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 16), _LONGEST_RETRY_SECONDS))


def behind(policy: Policy, past: Past, now_unix_ms: int, next_by_cron: NextByCron) -> str:
    """Why it is behind, in a clause; empty: it is not."""
    if past.failures:
        times = "the last run" if past.failures == 1 else f"the last {past.failures} runs"
        return f"{times} failed: {past.failure}"
    since = past.done_unix_ms or past.set_unix_ms
    late = False
    if policy.every_seconds:
        late = now_unix_ms - since > 2000 * policy.every_seconds
    if policy.cron:
        late |= now_unix_ms > next_by_cron(policy.cron, next_by_cron(policy.cron, since))
    if late:
        return f"no run went through for {_ago(now_unix_ms - since)}"
    if policy.on_commit and past.waiting_since_unix_ms:
        waiting_ms = now_unix_ms - past.waiting_since_unix_ms
        if waiting_ms > 1000 * _COMMIT_PATIENCE_SECONDS:
            return f"a checkpoint waits for its backup for {_ago(waiting_ms)}"
    return ""


def _ago(span_ms: int) -> str:
    seconds = max(0, span_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
