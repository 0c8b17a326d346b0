"""How often a job should save, by Young and Daly: often enough that a failure costs little, rarely enough that saving
does not. The failure rate is what was seen, with a prior for jobs that have not failed yet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sdrs_scheduler.jobs.job import Attempt
from sdrs_scheduler.jobs.resume import Generation
from sdrs_scheduler.jobs.spec import FailureClass

# One node fails about every 50 days where nothing else is known (Llama 3: 2,048 nodes, every 3.1 hours, is 265 days;
# smaller clusters are less well kept).
PRIOR_NODE_MTBF_SECONDS = 50 * 86_400.0
# As so many failures the prior counts: little, so that it gives way to the first that are seen.
_PRIOR_FAILURES = 0.02
_MIN_INTERVAL_SECONDS = 10.0
# Somebody asked for these, or it saved before: they say nothing about how often work is lost.
_NO_FAILURES = (
    FailureClass.PREEMPTED,
    FailureClass.REQUEUED,
    FailureClass.NEVER_RESTART,
    FailureClass.PERMANENT,
)
_SAVES_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class Advice:
    interval_seconds: float
    save_seconds: float
    mtbf_seconds: float
    failure_count: int
    sentence: str


def optimal_interval_seconds(save_seconds: float, mtbf_seconds: float) -> float:
    """Daly's higher order estimate; beyond half of the MTBF saving pays no more, and it is the MTBF."""
    if save_seconds >= mtbf_seconds / 2:
        return mtbf_seconds
    ratio = math.sqrt(save_seconds / (2 * mtbf_seconds))
    return math.sqrt(2 * save_seconds * mtbf_seconds) * (1 + ratio / 3 + ratio**2 / 9) - save_seconds


def measured_save_seconds(generations: Sequence[Generation]) -> float | None:
    """From begin to commit, of the newest ones; None without any."""
    spans = [
        (generation.committed_unix_ms - generation.created_unix_ms) / 1000
        for generation in generations[:_SAVES_LOOKED_AT]
        if generation.committed_unix_ms > generation.created_unix_ms > 0
    ]
    return statistics.median(spans) if spans else None


def advise(
    attempts: Sequence[Attempt], generations: Sequence[Generation], node_count: int, now_unix_ms: int
) -> Advice | None:
    """None before the first save was measured."""
    save_seconds = measured_save_seconds(generations)
    if save_seconds is None:
        return None
    run_seconds = 0.0
    failure_count = 0
    for attempt in attempts:
        if attempt.started_unix_ms:
            run_seconds += max(0, (attempt.ended_unix_ms or now_unix_ms) - attempt.started_unix_ms) / 1000
        if attempt.verdict and attempt.verdict.failure and attempt.verdict.failure not in _NO_FAILURES:
            failure_count += attempt.ended_unix_ms > 0
    prior_seconds = PRIOR_NODE_MTBF_SECONDS / max(1, node_count)
    likely_seconds = (_PRIOR_FAILURES * prior_seconds + run_seconds) / (_PRIOR_FAILURES + failure_count)
    # A while without a failure proves no more than its own length.
    mtbf_seconds = min(likely_seconds, max(prior_seconds, run_seconds))
    interval_seconds = max(_MIN_INTERVAL_SECONDS, optimal_interval_seconds(save_seconds, mtbf_seconds))
    failures = "1 failure" if failure_count == 1 else f"{failure_count} failures"
    seen = f"{failures} in {_span(run_seconds)}, and a prior" if failure_count else "no failure yet, a prior is used"
    sentence = (
        f"save every {_span(interval_seconds)}: a save takes {_span(save_seconds)}, "
        f"a failure comes about every {_span(mtbf_seconds)} ({seen})"
    )
    return Advice(interval_seconds, save_seconds, mtbf_seconds, failure_count, sentence)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
