"""Traces: what is read from them, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.sim.traces import TimeUnit, TraceKind, read_trace

MURI = "job_id,num_gpu,submit_time,iterations,model_name,duration,iteration_time,priority"
CHRONUS = "job_id,user,num_gpu,submit_time,duration,expect_time_list,best_effort,job_type"
PLAIN = "job_id,num_gpu,submit_time,duration,user,priority"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_plain_trace_is_in_seconds_and_begins_at_its_first_job(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PLAIN, "b,2,110,60.5,ann,70", "a,1,100,30,,"))
    assert (trace.kind, trace.unit) == (TraceKind.PLAIN, TimeUnit.SECONDS)
    assert [(job.id, job.submit_seconds, job.duration_seconds) for job in trace.jobs] == [("a", 0, 30), ("b", 10, 60.5)]
    assert [(job.user, job.priority, job.gpus) for job in trace.jobs] == [("", 50, 1), ("ann", 70, 2)]


def test_columns_for_users_and_priorities_may_be_missing(tmp_path: Path) -> None:
    (job,) = read_trace(written(tmp_path, "job_id,num_gpu,submit_time,duration", "a,1,0,30")).jobs
    assert (job.user, job.priority) == ("", 50)


def test_a_trace_of_muri_is_in_milliseconds(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MURI, "0,8,0,10956,gpt2,5095000,437,0", "1,8,1534000,1463,vgg16,281000,214,1"))
    assert trace.kind is TraceKind.MURI
    assert [(job.submit_seconds, job.duration_seconds) for job in trace.jobs] == [(0, 5095), (1534, 281)]
    assert trace.jobs[1].priority > trace.jobs[0].priority


def test_a_trace_of_chronus_is_in_minutes_and_its_best_effort_may_wait(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, CHRONUS, "0,vc1,1,10,20,30,0,strict", "1,vc2,1,12,20,30,1,best"))
    assert trace.kind is TraceKind.CHRONUS
    assert [(job.submit_seconds, job.duration_seconds) for job in trace.jobs] == [(0, 1200), (120, 1200)]
    assert trace.jobs[1].priority < trace.jobs[0].priority
    assert [job.user for job in trace.jobs] == ["vc1", "vc2"]


def test_the_unit_can_be_given(tmp_path: Path) -> None:
    path = written(tmp_path, CHRONUS, "0,vc1,1,10,20,30,0,strict")
    assert read_trace(path, TimeUnit.SECONDS).jobs[0].duration_seconds == 20


def test_jobs_without_gpus_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PLAIN, "a,0,0,10,,", "b,1,5,10,,"))
    assert trace.without_gpu_count == 1
    # What was left out does not shift the times of the others either.
    assert [(job.id, job.submit_seconds) for job in trace.jobs] == [("b", 0)]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("b,x,0,10,,", "num_gpu"),
        ("b,-1,0,10,,", "num_gpu"),
        ("b,1.5,0,10,,", "num_gpu"),
        ("b,1,,10,,", "submit_time"),
        ("b,1,-3,10,,", "submit_time"),
        ("b,1,nan,10,,", "submit_time"),
        ("b,1,0,0,,", "duration"),
        ("b,1,0,inf,,", "duration"),
        ("b,1,0", "duration"),
        ("b,1,0,10,,101", "priority"),
        ("a,1,0,10,,", "job_id"),
        (",1,0,10,,", "job_id"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_field(tmp_path: Path, row: str, field: str) -> None:
    path = written(tmp_path, PLAIN, "a,1,0,10,,", row)
    with pytest.raises(InvalidArgumentError) as caught:
        read_trace(path)
    assert caught.value.message.startswith(f"{path}:3: {field}: ")


def test_a_header_that_lacks_columns_says_which(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="lacks num_gpu, duration"):
        read_trace(written(tmp_path, "job_id,submit_time", "a,1"))


@pytest.mark.parametrize("content", [b"", b"job_id,num_gpu,submit_time,duration\n", b"\xff\xfe\x00", b"\x00\x01\x02\n"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"trace\.csv"):
        read_trace(path)
