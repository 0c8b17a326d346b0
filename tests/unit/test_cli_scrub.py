"""``sdrs scrub`` against a controller of canned answers: what it asks for, what it prints, how it exits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sdrs.cli import scrub as scrub_cli
from sdrs.cli.root import root
from sdrs_core.errors import RefusedError
from sdrs_proto.v1 import control_pb2 as pb
from tests.support.fake_controller import FakeController, serving

BEGAN_UNIX_MS = 1_700_000_000_000


def status(**facts: Any) -> pb.ScrubStatus:
    given = {
        "id": "s1",
        "depth": pb.SCRUB_DEPTH_DEEP,
        "trigger": "an operator",
        "started_unix_ms": BEGAN_UNIX_MS,
        "ended_unix_ms": BEGAN_UNIX_MS + 65_000,
        "checked_checkpoints": 4,
        "total_checkpoints": 4,
        "checked_fragments": 24,
        "checked_bytes": 3 << 20,
    }
    return pb.ScrubStatus(**{**given, **facts})


class Scrubbing(FakeController):
    """``answers``: what it says each time it is asked; the last one from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[pb.ScrubStatus | None] = [None]

    def start_scrub(self, request: pb.StartScrubRequest) -> pb.StartScrubResponse:
        begun = status(depth=request.depth, job=request.job, ended_unix_ms=0, checked_checkpoints=0)
        return pb.StartScrubResponse(scrub=begun)

    def stop_scrub(self, request: pb.StopScrubRequest) -> pb.StopScrubResponse:
        return pb.StopScrubResponse(scrub=self.answers[0])

    def get_scrub(self, request: pb.GetScrubRequest) -> pb.GetScrubResponse:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return pb.GetScrubResponse(scrub=answer, shallow_done_unix_ms=BEGAN_UNIX_MS)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SDRS_URL", raising=False)
    monkeypatch.setattr(scrub_cli, "_POLL_SECONDS", 0.01)


@pytest.fixture
def controller() -> Iterator[Scrubbing]:
    controller = Scrubbing()
    with serving(controller):
        yield controller


@pytest.fixture
def sdrs(controller: Scrubbing) -> Any:
    def run(*arguments: str, expect: int = 0) -> Result:
        result = CliRunner().invoke(root, ["--url", controller.url, *arguments])
        assert result.exit_code == expect, f"sdrs {' '.join(arguments)}: {result.exit_code}\n{result.output}"
        return result

    return run


def test_a_scrub_is_shallow_unless_told_and_is_not_waited_for(controller: Scrubbing, sdrs: Any) -> None:
    told = sdrs("scrub", "start").stdout
    assert "shallow scrub of all checkpoints is under way" in told
    asked = controller.asked("start_scrub")
    assert (asked.depth, asked.job) == (pb.SCRUB_DEPTH_SHALLOW, "")
    assert asked.request_id
    begun = json.loads(sdrs("scrub", "start", "--deep", "--job", "llm", "-o", "json").stdout)
    asked = controller.asked("start_scrub")
    assert (asked.depth, asked.job) == (pb.SCRUB_DEPTH_DEEP, "llm")
    assert (begun["state"], begun["depth"], begun["job"], begun["ended"]) == ("under_way", "deep", "llm", None)
    assert not [name for name, _ in controller.requests if name == "get_scrub"]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({}, 0),
        ({"unknown_fragments": 2}, 0),
        ({"bad_fragments": 1, "repaired_fragments": 1}, 3),
        ({"missing_fragments": 1}, 3),
        ({"undecided_fragments": 6}, 3),
        ({"damaged_checkpoints": 1, "bad_fragments": 3}, 1),
    ],
)
def test_waiting_ends_with_the_scrub_and_exits_by_what_it_found(
    controller: Scrubbing, sdrs: Any, found: dict[str, int], code: int
) -> None:
    controller.answers = [*(status(ended_unix_ms=0, checked_checkpoints=n) for n in range(3)), status(**found)]
    result = sdrs("scrub", "start", "--deep", "--wait", "-o", "json", expect=code)
    told = json.loads(result.stdout)
    assert told["state"] == "done"
    assert {name: told[name] for name in found} == found
    assert len([name for name, _ in controller.requests if name == "get_scrub"]) == 4


def test_waiting_for_a_scrub_that_another_one_followed_is_told(controller: Scrubbing, sdrs: Any) -> None:
    controller.answers = [status(ended_unix_ms=0), status(id="s2", ended_unix_ms=0)]
    assert "another scrub began" in sdrs("scrub", "start", "--deep", "--wait", expect=6).stderr


def test_one_that_is_in_the_way_is_refused_with_the_reason(controller: Scrubbing, sdrs: Any) -> None:
    controller.failures["start_scrub"] = RefusedError("a shallow scrub of all checkpoints is under way")
    assert "shallow scrub of all" in sdrs("scrub", "start", "--deep", expect=4).stderr


def test_status_tells_of_the_one_under_way_or_of_the_last_with_its_problems(controller: Scrubbing, sdrs: Any) -> None:
    told = sdrs("scrub", "status")
    assert "last deep scrub" in told.stdout
    assert "never" in told.stdout
    controller.answers = [status(bad_fragments=2, repaired_fragments=1, problems=["llm step 7, rank 0: corrupt"])]
    told = sdrs("scrub", "status")
    assert "in 1m 5s" in told.stdout
    assert "llm step 7, rank 0: corrupt" in told.stderr
    state = json.loads(sdrs("scrub", "status", "-o", "json").stdout)
    assert state["shallow_done"] == "2023-11-14T22:13:20.000Z"
    assert state["deep_done"] is None
    assert (state["scrub"]["bad_fragments"], state["scrub"]["problems"]) == (2, ["llm step 7, rank 0: corrupt"])
    controller.answers = [status(ended_unix_ms=0, checked_checkpoints=1, bytes_per_second=5 << 20)]
    told = sdrs("scrub", "status")
    assert "under way since" in told.stdout
    assert "1 of 4" in told.stdout
    assert "5.0 MiB/s" in told.stdout


@pytest.mark.parametrize(
    ("facts", "words", "state"),
    [
        ({"stopped": True, "checked_checkpoints": 3}, "stopped", "stopped"),
        ({}, "no scrub is under way", "done"),
        ({"ended_unix_ms": 0}, "ends as soon as", "under_way"),
    ],
    ids=["one under way", "none", "one that takes its time"],
)
def test_stopping_tells_what_was_covered(
    controller: Scrubbing, sdrs: Any, facts: dict[str, Any], words: str, state: str
) -> None:
    controller.answers = [status(**facts)]
    told = sdrs("scrub", "stop")
    assert words in told.stdout + told.stderr
    assert f"{facts.get('checked_checkpoints', 4)} of 4" in told.stdout
    assert json.loads(sdrs("scrub", "stop", "-o", "json").stdout)["state"] == state


def test_one_that_was_stopped_while_it_was_waited_for_is_no_success(controller: Scrubbing, sdrs: Any) -> None:
    controller.answers = [status(stopped=True, checked_checkpoints=1)]
    assert "stopped" in sdrs("scrub", "start", "--deep", "--wait", expect=3).stdout
