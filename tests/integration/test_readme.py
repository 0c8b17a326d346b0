"""The tour of README.md, as it is written: a reader types it word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def _tour() -> str:
    """What follows each ``$`` in the tour's blocks, with here-documents and without the output that is shown."""
    section = (ROOT / "README.md").read_text().partition("## A tour")[2].partition("\n### ")[0]
    lines: list[str] = []
    for block in re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        until = ""
        for line in block.splitlines():
            if until:
                lines.append(line)
                until = "" if line == until else until
            elif line.startswith("$ "):
                lines.append(line[2:])
                here = re.search(r"<<'(\w+)'", line)
                until = here[1] if here else ""
    return "\n".join(lines)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SDRS_", "XDG_"))}
    environment |= {"HOME": str(tmp_path)}
    yield environment
    subprocess.run([BIN / "sdrs", "down"], env=environment, timeout=60, check=True, stdout=subprocess.DEVNULL)


def test_the_tour_does_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    script = _tour()
    for written, here in [
        (".venv/bin/", f"{BIN}/"),
        ("up --nodes 6", "up --nodes 6 --port 7070"),
        ("7070", str(free_port())),
        ("/tmp/tour-30", str(tmp_path / "tour-30")),
        ("ckpt delete", "ckpt delete --yes"),  # nobody is here to answer
    ]:
        assert written in script
        script = script.replace(written, here)
    ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    assert "sdrs: error" not in ran.stderr
    assert "\n30 [30, 20, 10] L3\n" in ran.stdout
    assert "tour step 30: ok, " in ran.stdout
    assert (tmp_path / "tour-30" / "rank-00000" / "blob-0000.safetensors").exists()
    assert "\n30 L3\n" in ran.stdout  # saved on, although two nodes were killed
    assert "node_lost" in ran.stdout
    assert "started node-1" in ran.stdout
    # The byte that was overwritten is of one fragment only: it is found, and reads are right.
    assert "is damaged" in ran.stdout + ran.stderr
    assert "\n30\n" in ran.stdout
    assert "keeps the last 5, every 1000 steps, nothing older than 30d" in ran.stdout
    assert "tour step 20 is on hold" in ran.stdout
    assert "tour step 10 is deleted" in ran.stdout
