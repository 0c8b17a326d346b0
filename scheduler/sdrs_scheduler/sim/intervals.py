"""How long a job works between two saves."""

from __future__ import annotations

import math

from sdrs_scheduler.sim.settings import Restart, SimSettings


def interval_of(settings: SimSettings, nodes: int) -> float:
    """For a job on so many nodes. One that starts from the top anyway does not save."""
    if settings.restart is Restart.SCRATCH:
        return math.inf
    if settings.interval_seconds is not None:
        return settings.interval_seconds
    return math.sqrt(2 * max(1.0, settings.save_seconds) * settings.mtbf_seconds / nodes)
