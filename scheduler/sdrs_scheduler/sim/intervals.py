"""How long a job works between two saves."""

from __future__ import annotations

import math

from sdrs_scheduler.jobs.advice import optimal_interval_seconds
from sdrs_scheduler.sim.settings import Restart, SimSettings

# Saves that cost nothing would come without end.
_LEAST_SECONDS = 10.0


def interval_of(settings: SimSettings, nodes: int) -> float:
    """For a job on so many nodes. One that starts from the top anyway does not save."""
    if settings.restart is Restart.SCRATCH:
        return math.inf
    if settings.interval_seconds is not None:
        return settings.interval_seconds
    return max(_LEAST_SECONDS, optimal_interval_seconds(settings.save_seconds, settings.mtbf_seconds / nodes))
