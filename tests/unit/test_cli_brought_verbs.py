"""Verbs that other packages bring: found by entry points, in help and completion, and loaded only when used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sdrs.cli.root import root

BRINGS = """
[sdrs.verbs]
greet = greeting_cli:greet
absent = no_such_package_here.cli:verb
wrong = greeting_cli:NOT_A_VERB
"""
GREETING = """
import click
from sdrs.cli.settings import VerbGroup, pass_settings

print("loaded", file=__import__("sys").stderr)
NOT_A_VERB = 5

@click.group(cls=VerbGroup)
def greet():
    "Greet somebody."

@greet.command("people", examples="sdrs greet people Ada")
@click.argument("name")
@pass_settings
def people(settings, name):
    "Greet people."
    print(f"hello {name} {settings.is_json}")
"""


@pytest.fixture
def brought(tmp_path: Path) -> Path:
    """An installed package that brings verbs, and one whose package is missing."""
    metadata = tmp_path / "greeting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(BRINGS)
    (tmp_path / "greeting_cli.py").write_text(GREETING)
    return tmp_path


def sdrs(brought: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(brought), *(entry for entry in sys.path if entry)])
    return subprocess.run(
        [sys.executable, "-m", "sdrs.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def test_a_brought_verb_runs_with_the_options_of_every_verb(brought: Path) -> None:
    done = sdrs(brought, "greet", "people", "Ada", "-o", "json")
    assert (done.returncode, done.stdout) == (0, "hello Ada True\n")


def test_help_lists_brought_verbs_after_our_own_also_those_that_cannot_be_loaded(brought: Path) -> None:
    done = sdrs(brought, "--help")
    assert done.returncode == 0
    lines = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line.split()]
    assert lines.index("version") < lines.index("absent") < lines.index("greet")
    assert "Greet somebody." in done.stdout
    assert done.stdout.count("(does not work here)") == 2


def test_a_verb_whose_package_is_missing_says_what_to_install(brought: Path) -> None:
    done = sdrs(brought, "absent", "run", "--now")
    assert done.returncode == 1
    assert "needs the package no_such_package_here" in done.stderr
    assert "pip install 'sdrs[cli,server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_brought_and_is_no_verb_is_an_error_that_names_it(brought: Path) -> None:
    done = sdrs(brought, "wrong")
    assert done.returncode == 1
    assert "greeting_cli:NOT_A_VERB is no command" in done.stderr


def test_a_verb_that_nobody_brings_is_a_usage_error(brought: Path) -> None:
    done = sdrs(brought, "dance")
    assert done.returncode == 2
    assert "No such command 'dance'" in done.stderr


def test_our_own_verbs_neither_look_for_others_nor_load_them(brought: Path) -> None:
    done = sdrs(brought, "version")
    assert done.returncode == 0
    assert "loaded" not in done.stderr
    program = (
        "import sys\nfrom sdrs.cli import brought_verbs\nfrom sdrs.cli.root import root\n"
        "brought_verbs._brought = lambda: sys.exit('looked')\n"
        "root.main(['pool', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("words", "offered"), [("sdrs gr", "greet"), ("sdrs greet pe", "people")])
def test_brought_verbs_are_completed(brought: Path, words: str, offered: str) -> None:
    count = str(len(words.split()) - 1)
    done = sdrs(brought, _SDRS_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count)
    assert f"plain,{offered}" in done.stdout


def test_no_verb_of_our_own_is_replaced_by_a_brought_one() -> None:
    assert root.commands.keys().isdisjoint({"job", "queue", "sim"})
