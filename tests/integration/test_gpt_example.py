"""The GPT of examples/: killed and resumed, its losses are those of the undisturbed training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


# Eight ranks are started one pair after the other, each importing torch: that takes its time when others compute.
@pytest.mark.timeout(240)
def test_a_gpt_that_is_killed_twice_has_the_loss_curve_of_one_that_is_not(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SDRS_")}
    told = subprocess.run(
        [sys.executable, str(EXAMPLES / "gpt_survives.py"), "--steps", "30", "--save-every", "5"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "all 30 losses are those of the undisturbed training, bit for bit" in told.stdout
    assert list(tmp_path.iterdir()) == []  # it cleans up after itself
