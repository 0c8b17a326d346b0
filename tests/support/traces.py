"""Small made-up traces for the simulator."""

from __future__ import annotations

from random import Random

from sdrs_scheduler.sim.traces import TraceJob


def job(name: str, gpus: int, submit: float, duration: float, priority: int = 50) -> TraceJob:
    return TraceJob(name, gpus, float(submit), float(duration), priority=priority)


def mixed_trace(seed: int, count: int = 120) -> list[TraceJob]:
    """Many small and a few large jobs within a day, of two priorities and three users."""
    random = Random(seed)
    jobs = [
        TraceJob(
            id=f"j{number:03}",
            gpus=random.choice((1, 1, 1, 2, 4, 8, 8, 16)),
            submit_seconds=float(random.randrange(86_400)),
            duration_seconds=float(random.choice((60, 600, 5_000, 20_000, 60_000))),
            user=f"u{number % 3}",
            priority=random.choice((30, 50)),
        )
        for number in range(count)
    ]
    return sorted(jobs, key=lambda one: one.submit_seconds)
