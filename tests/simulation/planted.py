"""Whether a bug that was planted is found: by some seed of a few, and for the right reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.node import NodeProcess
from tests.simulation.story import play
from tests.simulation.world import World

_MAX_SEEDS = 60


def found_by(
    *signs: str,
    kinds: tuple[str, ...] = (),
    commands: tuple[str, ...] = (),
    is_coded: bool = False,
    on_node: Callable[[NodeProcess], None] | None = None,
) -> None:
    """``kinds``, ``commands``: the faults and the operators' doings that bring this bug out most often.

    ``is_coded``: only seeds with fragments of a code, else only those without.
    """

    def plant(world: World) -> None:
        world.fault_kinds, world.commands = kinds, commands
        if on_node:
            world.on_node = on_node

    for seed in range(int(is_coded), 2 * _MAX_SEEDS, 2):
        failure = play(seed, plant=plant).failure
        if failure:
            assert any(sign in failure for sign in signs), f"seed {seed} failed for another reason: {failure}"
            print(f"found by seed {seed}: {failure[:200]}")
            return
    pytest.fail(f"{_MAX_SEEDS} seeds did not find it")
