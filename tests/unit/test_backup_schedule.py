from __future__ import annotations

import pytest

from sdrs_core.backup.schedule import Past, behind, check_policy, due_unix_ms, retry_seconds
from sdrs_core.backup.targets import Policy, TargetName
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import PoolName
from sdrs_storaged.control.backup.cron import next_by_cron

NOW = 1_700_000_000_000  # a Tuesday, 22:13:20 UTC
MINUTE = 60_000


def policy(**how: object) -> Policy:
    return Policy(TargetName("nas"), PoolName("prod"), **how)  # type: ignore[arg-type]


EVERY = policy(every_seconds=900)


def test_a_new_interval_is_due_at_once_and_then_after_each_interval() -> None:
    assert due_unix_ms(EVERY, Past(NOW), next_by_cron) == NOW
    assert due_unix_ms(EVERY, Past(NOW, NOW, NOW), next_by_cron) == NOW + 15 * MINUTE


def test_a_cron_line_is_due_at_its_next_moment_and_not_when_it_is_set() -> None:
    nightly = policy(cron="30 2 * * *")
    assert due_unix_ms(nightly, Past(NOW), next_by_cron) == 1_700_015_400_000
    assert due_unix_ms(nightly, Past(NOW, tried_unix_ms=1_700_015_400_000), next_by_cron) == 1_700_101_800_000


def test_each_commit_is_due_at_once_and_nothing_without_one() -> None:
    assert due_unix_ms(policy(on_commit=True), Past(NOW, waiting_since_unix_ms=NOW), next_by_cron) == NOW
    assert due_unix_ms(policy(on_commit=True), Past(NOW), next_by_cron) is None


def test_a_policy_without_a_rhythm_is_never_due() -> None:
    assert due_unix_ms(policy(), Past(NOW, NOW, NOW), next_by_cron) is None


def test_a_failure_is_tried_again_sooner_and_then_ever_more_seldom() -> None:
    due = due_unix_ms(EVERY, Past(NOW, tried_unix_ms=NOW, failures=1), next_by_cron)
    assert due == NOW + 30_000
    assert [retry_seconds(count) for count in (1, 2, 3, 8, 1000)] == [30, 60, 120, 3600, 3600]


def test_an_interval_is_behind_after_two_of_them() -> None:
    done = Past(NOW, NOW, NOW)
    assert behind(EVERY, done, NOW + 30 * MINUTE, next_by_cron) == ""
    assert "31 min" in behind(EVERY, done, NOW + 31 * MINUTE, next_by_cron)


def test_a_cron_line_is_behind_when_two_of_its_moments_have_passed() -> None:
    hourly, done = policy(cron="0 * * * *"), Past(NOW, NOW, NOW)
    assert behind(hourly, done, NOW + 60 * MINUTE, next_by_cron) == ""
    assert behind(hourly, done, NOW + 110 * MINUTE, next_by_cron)


def test_a_policy_that_fails_is_behind_with_the_cause() -> None:
    past = Past(NOW, tried_unix_ms=NOW, failures=3, failure="access denied")
    assert behind(EVERY, past, NOW, next_by_cron) == "the last 3 runs failed: access denied"


def test_a_commit_that_waits_for_long_is_behind() -> None:
    past = Past(NOW, waiting_since_unix_ms=NOW)
    assert behind(policy(on_commit=True), past, NOW + 9 * MINUTE, next_by_cron) == ""
    assert behind(policy(on_commit=True), past, NOW + 11 * MINUTE, next_by_cron)


@pytest.mark.parametrize("line", ["* * * *", "61 * * * *", "0 0 31 2 *", "every day at noon ok"])
def test_what_is_no_cron_line_is_refused(line: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a cron line"):
        check_policy(policy(cron=line), next_by_cron)


def test_an_interval_and_a_cron_line_together_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not both"):
        check_policy(policy(cron="0 * * * *", every_seconds=60), next_by_cron)
