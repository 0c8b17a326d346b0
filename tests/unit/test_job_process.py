"""``current_job`` in real processes: signals, forks, and a controller that is not there."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sdrs
from sdrs.job import beats as beats_module
from sdrs.job.agreement import Phase, Proposal, Vote
from sdrs.job.beats import Beats
from sdrs.job.causes import Cause
from sdrs.job.environment import read_environment
from sdrs.job.notes import Beat, Orders, beat_to, orders_from, proposal_from, proposal_to, votes_from
from sdrs.job.rank import Rank
from sdrs.records import Note
from tests.support.cluster import free_port
from tests.support.waiting import wait_for

LEAST = {"SDRS_JOB_ID": "llm-ab12", "SDRS_ATTEMPT": "2", "SDRS_JOB_NAME": "llm"}


@pytest.fixture
def in_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a cluster that does not answer."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SDRS_RESUME_STEP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (LEAST | {"SDRS_URL": f"sdrs://127.0.0.1:{free_port()}"}).items():
        monkeypatch.setenv(name, value)
    yield
    job = sdrs.current_job()
    assert job
    job.close()


def threads_of_beats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sdrs-beats"]


def test_there_is_no_job_and_no_thread_outside_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDRS_JOB_ID", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    assert sdrs.current_job() is None
    assert threads_of_beats() == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_has_one_job_and_nothing_is_left_of_it_after_close(in_a_job: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    job = sdrs.current_job()
    assert job
    assert sdrs.current_job() is job
    assert (job.id, job.name, job.attempt, job.resume_step, job.history) == ("llm-ab12", "llm", 2, None, "llm")
    assert "llm-ab12" in repr(job)
    assert len(threads_of_beats()) == 1
    assert signal.getsignal(signal.SIGTERM) is not before
    job.close()
    assert threads_of_beats() == []
    assert signal.getsignal(signal.SIGTERM) is before
    again = sdrs.current_job()
    assert again is not job


def test_without_a_controller_training_goes_on_and_that_is_said_once(
    in_a_job: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING, "sdrs"):
        job = sdrs.current_job()
        assert job
        job.report(step=3, loss=0.5)
        wait_for(lambda: caplog.records, "the first failed beat", 60)
        for _ in range(3):
            job.rank_state.wakes.put(None)
            wait_for(lambda: job.rank_state.wakes.empty(), "another beat", 60)
        job._beats.close("ended")
    assert ["not heard" in record.getMessage() for record in caplog.records] == [True]


def test_a_signal_that_nobody_waited_for_is_a_warning(in_a_job: None) -> None:
    job = sdrs.current_job()
    assert job
    assert not job.warned
    os.kill(os.getpid(), signal.SIGTERM)
    assert job.warned
    assert job.rank_state.should_save(1, None)
    assert job.preempted
    assert not job.rank_state.should_save(2, None)


def test_a_handler_that_was_there_before_is_called_as_well(in_a_job: None) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        job = sdrs.current_job()
        assert job
        os.kill(os.getpid(), signal.SIGUSR1)
        assert job.warned
        assert heard == [signal.SIGUSR1]
        job.close()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_job_that_is_first_asked_for_in_a_thread_takes_signals_once_the_main_thread_asks(in_a_job: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=sdrs.current_job)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    job = sdrs.current_job()
    assert job
    os.kill(os.getpid(), signal.SIGTERM)
    assert job.warned


def test_a_forked_child_is_ended_by_sigterm_and_is_a_job_of_its_own(in_a_job: None) -> None:
    job = sdrs.current_job()
    assert job
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        own = sdrs.current_job()
        is_own = own is not None and own is not job and len(threads_of_beats()) == 1
        if own:
            own.close()
        os.write(writer, b"own" if is_own else b"not own")
        signal.pause()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read(3) == b"own"
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert not job.warned


LOOP = """
import sys, time, sdrs
job = sdrs.current_job()
print("ready", flush=True)
step = 0
while True:
    step += 1
    job.report(step=step, loss=1.0)
    if job.rank_state.should_save(step, None):
        print(f"saving {job.preempted}", flush=True)
        job.leave()
    time.sleep(0.01)
"""


def started_loop(program: str = LOOP) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment |= LEAST | {"SDRS_URL": f"sdrs://127.0.0.1:{free_port()}"}
    loop = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert loop.stdout
    line = loop.stdout.readline()
    assert line == "ready\n", (line, loop.stderr and loop.stderr.read())
    return loop


@pytest.mark.parametrize("warning", [signal.SIGTERM, signal.SIGUSR1])
def test_a_warned_process_lives_saves_and_leaves_with_75(warning: signal.Signals) -> None:
    with started_loop() as loop:
        loop.send_signal(warning)
        said, errors = loop.communicate(timeout=60)
    assert loop.returncode == 75, errors
    assert said == "saving True\n"
    assert "Traceback" not in errors


def test_stacks_are_written_on_sigusr2_and_the_training_goes_on() -> None:
    with started_loop() as loop:
        loop.send_signal(signal.SIGUSR2)
        assert loop.stderr
        told = ""
        while "most recent call first" not in told:
            told = loop.stderr.readline()
            assert told, "it ended without its stacks"
        loop.send_signal(signal.SIGTERM)
        loop.communicate(timeout=60)
    assert loop.returncode == 75


def test_the_thread_does_not_keep_a_process_alive() -> None:
    with started_loop("import sdrs; job = sdrs.current_job(); print('ready', flush=True)") as loop:
        _, errors = loop.communicate(timeout=60)
    assert loop.returncode == 0, errors


def test_a_controller_that_never_answers_does_not_hold_up_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = f"""
import os, time
os.environ["SDRS_URL"] = "sdrs://127.0.0.1:{silent.getsockname()[1]}"
import sdrs
job = sdrs.current_job()
print("ready", flush=True)
time.sleep(0.5)  # until it is in the middle of its first call
"""
        with started_loop(program) as loop:
            _, errors = loop.communicate(timeout=60)
    assert loop.returncode == 0, errors
    assert "Traceback" not in errors


# What is in the notes


class Posted:
    """Keeps what was posted last under each key."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def post(self, key: str, value: bytes, answer: str = "") -> Note | None:
        self.values[key] = value
        return Note(answer, self.values[answer], 0.0) if answer in self.values else None

    def notes(self, prefix: str) -> list[Note]:
        return [Note(key, value, 0.0) for key, value in self.values.items() if key.startswith(prefix)]


def beating(posted: Posted, **environment: str) -> tuple[Rank, Beats]:
    facts = read_environment(LEAST | environment)
    assert facts
    rank = Rank(facts)
    return rank, Beats(facts, rank, lambda: posted)  # type: ignore[arg-type, return-value]


def test_a_beat_tells_where_the_training_is() -> None:
    posted = Posted()
    rank, beats = beating(posted, RANK="3", WORLD_SIZE="4")
    beats._beat()
    value = json.loads(posted.values["beat/llm-ab12/2/3"])
    assert (value["step"], value["loss"], value["nan_step"], value["event"]) == (None, None, None, "")
    rank.report(7, 0.25)
    beats._beat()
    value = json.loads(posted.values["beat/llm-ab12/2/3"])
    assert (value["step"], value["rank"], value["pid"], value["loss"]) == (7, 3, os.getpid(), 0.25)
    assert (value["saving"], value["nan_step"]) == (False, None)
    rank.should_save(8, 1)
    rank.end("leaving")
    beats._beat()
    value = json.loads(posted.values["beat/llm-ab12/2/3"])
    assert (value["step"], value["event"]) == (8, "leaving")


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_no_number_is_noticed_and_the_first_one_stays(loss: float) -> None:
    posted = Posted()
    rank, beats = beating(posted)
    rank.report(6, 0.5)
    rank.report(7, loss)
    rank.report(8, loss)
    assert not rank.wakes.empty()  # it is told at once
    beats._beat()
    value = json.loads(posted.values["beat/llm-ab12/2/0"])
    assert (value["step"], value["nan_step"], value["loss"]) == (8, 7, 0.5)


def test_a_loss_that_is_a_word_is_refused() -> None:
    rank, _ = beating(Posted())
    with pytest.raises(sdrs.errors.InvalidArgumentError, match="loss"):
        rank.report(1, "low")


def test_orders_come_as_the_answer_of_a_beat() -> None:
    posted = Posted()
    rank, beats = beating(posted)
    posted.values["orders/llm-ab12/2"] = b'{"save": true, "deadline_unix_ms": 12, "interval_seconds": 0}'
    beats._beat()
    assert rank.is_warned
    assert rank.should_save(1, None)


def test_what_is_not_understood_in_a_note_is_left_out() -> None:
    assert orders_from(b"\xff") == orders_from(b"[]") == Orders()
    assert orders_from(b'{"save": "yes", "interval_seconds": -1, "deadline_unix_ms": "x"}') == Orders()
    assert proposal_from(b'{"number": 1}') is None
    assert votes_from(b"3") == (-1, 0, Vote())
    proposal = Proposal(7, 30, Cause.WARNED, Phase.CONFIRMED)
    assert proposal_from(proposal_to(proposal)) == proposal
    assert votes_from(beat_to(Beat(1, 2, 3, 4, warned_unix_ms=5, agreed=6))) == (3, 5, Vote(agreed=6))


def test_a_gpu_that_cannot_be_asked_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-none")
    monkeypatch.setenv("LOCAL_RANK", "x")
    utilization = beats_module.Utilization()
    assert utilization.read() is None
    assert utilization.read() is None


def test_outside_of_a_job_only_an_interval_is_a_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sdrs.job.pace import SavePace

    for name in ("SDRS_JOB_ID", "WORLD_SIZE", "RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert not SavePace("llm").should_save(1, None)
    monkeypatch.setenv("SDRS_SAVE_INTERVAL_SECONDS", "0.05")
    pace = SavePace("llm")
    wait_for(lambda: pace.should_save(1, None), "the interval to be over")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(sdrs.errors.InvalidArgumentError, match="inside of a job only"):
        pace.should_save(2, None)
