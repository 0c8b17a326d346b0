"""Finding and stopping daemons, with stand-ins that have a daemon's command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sdrs.cli.local_daemons import node_daemons
from sdrs.cli.local_layout import Layout
from sdrs.cli.local_processes import (
    Process,
    Started,
    find_etcd,
    find_processes,
    find_runs,
    job_environment,
    running_node_addresses,
    stop,
)

# Says when its handlers are in place; without that a signal could come too early.
OBEDIENT = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEDIENT}"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def daemon_arguments(config: Path) -> tuple[str, ...]:
    return ("sdrs_storaged", "--config", str(config))


def test_daemons_are_found_by_folder(tmp_path: Path, start: Start) -> None:
    ours = start(OBEDIENT, *daemon_arguments(tmp_path / "a" / "node-1.toml"))
    start(OBEDIENT, *daemon_arguments(tmp_path / "b" / "node-1.toml"))
    start(OBEDIENT, "editor", str(tmp_path / "a" / "node-1.toml"))
    assert find_processes(tmp_path / "a") == [Process("node-1", tmp_path / "a" / "node-1.toml", ours.pid)]


def test_jobs_find_the_python_of_sdrs_unless_an_environment_is_activated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert job_environment()["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    monkeypatch.setenv("VIRTUAL_ENV", "/home/ada/env")
    assert job_environment()["PATH"] == "/usr/bin"


def test_etcds_are_found_by_folder_as_script_and_as_binary(tmp_path: Path, start: Start) -> None:
    ours = start(OBEDIENT, "/usr/bin/etcd", "--config-file", str(tmp_path / "etcd-1.yaml"))
    start(OBEDIENT, "/usr/bin/editor", "--config-file", str(tmp_path / "etcd-1.yaml"))
    assert find_processes(tmp_path) == [Process("etcd-1", tmp_path / "etcd-1.yaml", ours.pid)]
    assert stop(find_processes(tmp_path), grace_seconds=30) == []
    assert ours.wait(30) == -15


def test_the_scheduler_is_found_by_folder_and_its_runs_apart(tmp_path: Path, start: Start) -> None:
    ours = start(OBEDIENT, "sdrs_scheduler", "--config", str(tmp_path / "scheduler.toml"))
    shepherd = "sdrs_scheduler.executors.local.shepherd"
    folder = tmp_path / "scheduler" / "local" / "runs" / "llm-1a2b.1"
    run = start(OBEDIENT, shepherd, str(folder))
    start(OBEDIENT, shepherd, str(tmp_path / "elsewhere" / "scheduler" / "runs" / "llm-1a2b.1"))
    start(OBEDIENT, shepherd)
    assert find_processes(tmp_path) == [Process("scheduler", tmp_path / "scheduler.toml", ours.pid)]
    assert find_runs(tmp_path) == [Process("llm-1a2b.1", folder, run.pid)]
    assert stop(find_runs(tmp_path), grace_seconds=30, kill=False) == []
    assert run.wait(30) == -15


def test_what_is_not_to_be_killed_is_left(tmp_path: Path, start: Start) -> None:
    process = start(STUBBORN, *daemon_arguments(tmp_path / "node-1.toml"))
    assert [one.name for one in stop(find_processes(tmp_path), grace_seconds=0.2, kill=False)] == ["node-1"]
    assert process.poll() is None


def test_addresses_are_those_of_nodes_that_serve_now(tmp_path: Path, start: Start) -> None:
    processes = [start(OBEDIENT, *daemon_arguments(tmp_path / f"node-{number}.toml")) for number in (1, 2, 3)]
    for number, pid in enumerate([processes[0].pid, 1], start=1):  # node-2's is of an earlier run, node-3 has none yet
        (tmp_path / f"node-{number}").mkdir()
        (tmp_path / f"node-{number}" / "run.json").write_text(json.dumps({"pid": pid, "grpc": f"127.0.0.1:{number}"}))
    assert running_node_addresses(tmp_path) == ["127.0.0.1:1"]


def test_the_etcd_on_the_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    from_wheel = find_etcd()
    assert from_wheel is None or from_wheel.endswith("etcdbin/etcd")
    (tmp_path / "etcd").write_text("#!/bin/sh\n")
    (tmp_path / "etcd").chmod(0o755)
    assert find_etcd() == str(tmp_path / "etcd")


def test_a_daemon_is_asked_to_stop(tmp_path: Path, start: Start) -> None:
    process = start(OBEDIENT, *daemon_arguments(tmp_path / "node-1.toml"))
    assert stop(find_processes(tmp_path), grace_seconds=30) == []
    assert process.wait(30) == -15
    assert find_processes(tmp_path) == []


def test_a_daemon_that_does_not_listen_is_killed_and_named(tmp_path: Path, start: Start) -> None:
    process = start(STUBBORN, *daemon_arguments(tmp_path / "node-1.toml"))
    killed = stop(find_processes(tmp_path), grace_seconds=0.2)
    assert [one.name for one in killed] == ["node-1"]
    assert process.wait(30) == -9


def test_a_pid_that_now_belongs_to_another_program_is_left_alone(tmp_path: Path, start: Start) -> None:
    stranger = start(OBEDIENT, "something", "else")
    assert stop([Process("node-1", tmp_path / "node-1.toml", stranger.pid)], grace_seconds=0.2) == []
    assert stranger.poll() is None


def test_a_process_that_is_gone_already_is_no_error(tmp_path: Path, start: Start) -> None:
    process = start(OBEDIENT, *daemon_arguments(tmp_path / "node-1.toml"))
    found = find_processes(tmp_path)
    process.kill()
    process.wait(30)
    assert stop(found, grace_seconds=1) == []


def test_the_tail_of_a_log_is_its_last_lines_of_this_run(tmp_path: Path, start: Start) -> None:
    daemon = node_daemons(tmp_path, Layout(7070, (1,)))[0]
    daemon.log.parent.mkdir()
    daemon.log.write_bytes(b"of an earlier run\n")
    started = Started(daemon, start(OBEDIENT), log_offset=daemon.log.stat().st_size)  # type: ignore[arg-type]
    assert "earlier" not in started.log_tail(3)
    with daemon.log.open("ab") as log:
        log.writelines(b"line %d\n" % number for number in range(5000))
        log.write(b"\xff broken\n")
    assert started.log_tail(3).splitlines() == ["  line 4998", "  line 4999", "  � broken"]
