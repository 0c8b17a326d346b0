"""``sdrs sim run``: what it prints, what it says of what it cannot do, and how it exits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sdrs.cli.root import Root
from sdrs_scheduler.cli.sim import sim
from sdrs_scheduler.sim import plot

Run = Callable[..., Result]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    rows = [f"j{n},{1 + n % 8},{n * 600},{3_000 + 700 * n},u{n % 2},{30 + 10 * (n % 3)}" for n in range(40)]
    path.write_text("\n".join(["job_id,num_gpu,submit_time,duration,user,priority", *rows]) + "\n")
    return path


@pytest.fixture
def run(trace: Path) -> Run:
    # As `sdrs` is, with the verb that it finds by an entry point where it is installed.
    root = Root(name="sdrs")
    root.add_command(sim)

    def invoke(*arguments: str, file: Path = trace, nodes: str = "4", gpus: str = "8") -> Result:
        line = ["sim", "run", "--trace", str(file), "--nodes", nodes, "--gpus", gpus, *arguments]
        return CliRunner().invoke(root, line)

    return invoke


def test_it_tells_how_long_jobs_take_and_what_failures_cost(run: Run) -> None:
    result = run("--mtbf", "1d")
    assert result.exit_code == 0, result.output
    for words in ("jobs done", "40 of 40", "average completion", "p99 completion", "goodput", "GPU-hours", "restarts"):
        assert words in result.stdout


def test_json_has_all_figures_and_what_was_assumed(run: Run, trace: Path) -> None:
    result = run("--mtbf", "2d", "--torn", "0.05", "--seed", "7", "--level", "L3", "-o", "json")
    answer = json.loads(result.stdout)
    assert answer["trace"] == {
        "file": str(trace),
        "kind": "plain",
        "time_unit": "s",
        "jobs": 40,
        "jobs_without_gpu": 0,
    }
    assert answer["sweep"] is None
    (one,) = answer["results"]
    assert one["settings"] == {
        "nodes": 4,
        "gpus_per_node": 8,
        "mtbf_seconds": 172800.0,
        "repair_seconds": 3600.0,
        "interval_seconds": 1800.0,
        "save_seconds": 10.0,
        "restore_seconds": 30.0,
        "level": "L3",
        "policy": "priority",
        "restart": "verified",
        "preemption": "checkpoint",
        "torn": 0.05,
        "tick_seconds": 0.0,
        "seed": 7,
        "interval": "30m",
    }
    assert one["report"].keys() == {
        *("job_count", "done_count", "average_completion", "median_completion", "p99_completion", "average_wait"),
        *("makespan", "utilization", "goodput", "allocated_gpu_hours", "useful_gpu_hours", "lost_gpu_hours"),
        *("saving_gpu_hours", "restoring_gpu_hours", "node_failure_count", "restart_count", "preemption_count"),
    }
    assert one["report"]["done_count"] == 40
    assert 0 < one["report"]["goodput"] <= 1


def test_never_and_auto_are_null_in_json(run: Run) -> None:
    (one,) = json.loads(run("--mtbf", "never", "--checkpoint-interval", "auto", "-o", "json").stdout)["results"]
    assert (one["settings"]["mtbf_seconds"], one["settings"]["interval_seconds"]) == (None, None)
    assert one["settings"]["interval"] == "auto"


@pytest.mark.parametrize(
    ("sweep", "labels"),
    [
        ("level", ["L1", "L2", "L3"]),
        ("interval", ["1m", "5m", "15m", "30m", "1h", "2h", "4h", "8h", "auto"]),
        ("policy", ["priority", "fifo", "srtf", "srsf"]),
        ("restart", ["verified", "blind", "scratch"]),
        ("preempt", ["checkpoint", "kill", "none"]),
    ],
)
def test_a_sweep_has_a_row_for_each(run: Run, sweep: str, labels: list[str]) -> None:
    result = run("--sweep", sweep, "--mtbf", "2d", "--jobs", "15")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()] == [sweep, *labels]


def test_only_the_first_jobs_are_taken_on_demand(run: Run) -> None:
    assert "12 of 12" in run("--jobs", "12").stdout


def test_jobs_without_gpus_are_told_of(run: Run, trace: Path) -> None:
    trace.write_text(trace.read_text() + "cpu,0,5,100,,\n")
    result = run()
    assert result.exit_code == 0
    assert "1 jobs" in result.stderr


def test_it_draws_a_picture(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    result = run("--sweep", "level", "--mtbf", "2d", "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so_before_it_begins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--plot", str(tmp_path / "out.png"))
    assert result.exit_code == 4
    assert "pip install 'sdrs[bench]'" in one_line(result)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--torn", "2"], "from 0 to 1"),
        (["--plot", "x.doc"], ".png"),
        (["--plot", "nowhere/at/all.png"], "does not exist"),
        (["--mtbf", "0s"], "above 0"),
        (["--checkpoint-interval", "0"], "above 0"),
    ],
)
def test_impossible_wishes_are_refused_in_one_line(run: Run, arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in one_line(result)


@pytest.mark.parametrize("count", ["0", "-3", "1000000000"])
def test_a_cluster_without_nodes_is_refused(run: Run, count: str) -> None:
    assert "nodes" in one_line(run(nodes=count))
    assert "GPUs" in one_line(run(gpus=count))
    assert run(nodes=count).exit_code == run(gpus=count).exit_code == 2


def test_a_level_that_needs_more_nodes_is_refused(run: Run) -> None:
    result = run("--level", "L3", nodes="2")
    assert result.exit_code == 2
    assert "at least 3 nodes" in one_line(result)


def test_a_missing_file_is_named(run: Run, tmp_path: Path) -> None:
    result = run(file=tmp_path / "none.csv")
    assert result.exit_code == 1
    assert "none.csv" in one_line(result)


def test_a_bad_row_is_named_by_its_line(run: Run, trace: Path) -> None:
    trace.write_text(trace.read_text() + "x,many,5,100,,\n")
    result = run()
    assert result.exit_code == 2
    assert f'{trace}:42: num_gpu: "many"' in one_line(result)


def test_what_is_no_duration_is_a_usage_error(run: Run) -> None:
    result = run("--mtbf", "soon")
    assert result.exit_code == 2
    assert "'soon' is not a duration" in result.stderr


def test_jobs_that_were_given_up_are_warned_of(run: Run) -> None:
    result = run("--mtbf", "60s", "--repair", "60s", "--restart", "scratch", "--jobs", "2")
    assert result.exit_code == 0
    assert "fail faster than they get on" in result.stderr


def one_line(result: Result) -> str:
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line
