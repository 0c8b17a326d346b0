"""The twin of the checkpoint storage, as the scheduler sees it: histories in memory, and it does what a test says."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from sdrs_core.errors import UnavailableError
from sdrs_core.levels import Level, parse_level
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.jobs.resume import Check, Generation
from sdrs_scheduler.jobs.spec import CheckpointWish


class MemoryStorage:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self.histories: dict[str, list[Generation]] = {}
        # What a verification finds, by step; whole where nothing is said.
        self.checks: dict[int, Check] = {}
        self.verified: list[int] = []
        self.attempts: dict[str, tuple[str, int]] = {}
        self.trouble: list[tuple[int, str]] = []
        self.cordons: dict[str, str] = {}
        self.storage_nodes = {"n1", "n2", "n3"}
        self.is_reachable = True

    def save(self, history: str, step: int, level: Level = Level.L2, **fields: object) -> Generation:
        """A generation is committed now."""
        now = self._clock.unix_ms()
        generation = Generation(f"save-{next(self._numbers)}", step, level, now - 500, now)
        generation = replace(generation, **fields)  # type: ignore[arg-type]
        self.histories.setdefault(history, []).append(generation)
        return generation

    def raise_levels(self, history: str, level: Level) -> None:
        self.histories[history] = [replace(generation, level=level) for generation in self.histories[history]]

    def _answer(self) -> None:
        if not self.is_reachable:
            raise UnavailableError("the controller does not answer", peer="memory")

    def generations(self, history: str) -> tuple[Generation, ...]:
        self._answer()
        return tuple(sorted(self.histories.get(history, ()), key=lambda generation: -generation.step))

    def check(self, history: str, generation: Generation) -> Check:
        self._answer()
        self.verified.append(generation.step)
        return self.checks.get(generation.step, Check(True))

    def wanted_level(self, wish: CheckpointWish) -> Level:
        return parse_level(wish.level or "L2")

    def delete(self, history: str, step: int) -> None:
        self.histories[history] = [found for found in self.histories[history] if found.step != step]

    def open_attempt(self, history: str, job_id: str, number: int) -> None:
        self._answer()
        self.attempts[history] = (job_id, number)

    def trouble_since(self, unix_ms: int) -> tuple[str, ...]:
        self._answer()
        return tuple(text for at, text in self.trouble if at >= unix_ms)

    def cordoned_nodes(self) -> Mapping[str, str]:
        self._answer()
        return dict(self.cordons)

    def cordon(self, node: str, reason: str) -> bool:
        if node in self.storage_nodes:
            self.cordons[node] = reason
        return node in self.storage_nodes
