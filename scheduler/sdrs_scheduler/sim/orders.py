"""The production policy, set up as the simulation wants it."""

from __future__ import annotations

from dataclasses import replace

from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.sim.settings import PolicyName, Preemption, SimSettings

_BY_NAME = {
    PolicyName.PRIORITY: PolicySettings(),
    # Nobody overtakes, as FIFO is meant where others are compared with it.
    PolicyName.FIFO: PolicySettings(order="fifo", backfill_depth=0),
    PolicyName.SRTF: PolicySettings(order="shortest_left"),
    PolicyName.SRSF: PolicySettings(order="least_gpu_seconds_left"),
}


def policy_settings(settings: SimSettings) -> PolicySettings:
    chosen = replace(
        _BY_NAME[settings.policy],
        preemption=settings.preemption is not Preemption.NONE and settings.policy is not PolicyName.FIFO,
        restart_seconds=settings.restore_seconds,
        leaving_seconds=settings.save_seconds if settings.preemption is Preemption.CHECKPOINT else 0.0,
        explain=False,
    )
    if settings.policy is PolicyName.PRIORITY:
        return chosen
    # By the letter: whoever is shorter goes first, a large job holds nothing open, and nothing is spared.
    return replace(chosen, reservations_max=0, hysteresis_seconds=0.0)
