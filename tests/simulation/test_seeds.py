"""Seeds: each a cluster, its faults and its end. A failing one is replayed, with all that happened, by

    SDRS_SEED=123 pytest -s tests/simulation/test_seeds.py

``make soak`` plays SDRS_SEEDS of them (20000 unless told), from SDRS_FIRST_SEED on, for at most SDRS_SOAK_SECONDS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulation.story import play
from tests.simulation.world import Outcome

SEEDS = 120
_PORTION = 20
_ROOT = Path(__file__).parents[2]


def _check(outcome: Outcome) -> None:
    assert not outcome.failure, (
        f"seed {outcome.seed} failed {outcome.failure}\n"
        f"replay it: SDRS_SEED={outcome.seed} pytest -s tests/simulation/test_seeds.py"
    )


@pytest.mark.skipif("SDRS_SEED" not in os.environ, reason="no seed to replay")
def test_the_given_seed() -> None:
    outcome = play(int(os.environ["SDRS_SEED"]), keeps_trace=True)
    print("\n".join(outcome.trace))
    print(f"digest {outcome.digest}, {outcome.virtual_seconds:.1f} virtual seconds, {outcome.commits} commits")
    _check(outcome)


@pytest.mark.skipif("SDRS_SEED" in os.environ, reason="another seed was asked for")
@pytest.mark.parametrize("first", range(0, SEEDS, _PORTION))
def test_nothing_acknowledged_is_lost_and_all_is_well_after_healing(first: int) -> None:
    commits = 0
    for seed in range(first, first + _PORTION):
        outcome = play(seed)
        _check(outcome)
        commits += outcome.commits
    assert commits > _PORTION, "so few commits test nothing"


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_the_same_to_the_bit_in_every_process(hash_seed: str) -> None:
    code = "from tests.simulation.story import play; print(*[play(seed).digest for seed in (5, 11)])"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert found.stdout.split() == [play(seed, keeps_trace=True).digest for seed in (5, 11)]


@pytest.mark.soak
def test_many_seeds() -> None:
    first, count = int(os.environ.get("SDRS_FIRST_SEED", "1000")), int(os.environ.get("SDRS_SEEDS", "20000"))
    ends = time.monotonic() + float(os.environ.get("SDRS_SOAK_SECONDS", "inf"))
    failed: list[Outcome] = []
    for seed in range(first, first + count):
        outcome = play(seed)
        if outcome.failure:
            failed.append(outcome)
            print(f"seed {seed} failed {outcome.failure}", flush=True)
        if (seed - first) % 500 == 499:
            print(f"{seed - first + 1} seeds played, {len(failed)} failed", flush=True)
        if time.monotonic() > ends:
            break
    assert not failed, f"seeds {[outcome.seed for outcome in failed]} failed; the first: {failed[0].failure}"
