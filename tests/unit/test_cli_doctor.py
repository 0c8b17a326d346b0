"""The checks of ``sdrs doctor``: each must be able to say something other than ok."""

from __future__ import annotations

import json
import resource
import shutil
import socket
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from sdrs.cli import machine_checks
from sdrs.cli.doctor import check_cluster_clock
from sdrs.cli.local_layout import Layout, write_layout
from sdrs.cli.machine_checks import ClockReading, Verdict
from sdrs.cli.pointer import Pointer, write_pointer
from sdrs.cli.root import root
from sdrs.cli.staging_check import judge_staging
from tests.support.cluster import free_port

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local xfs rw 0 0
"""


@pytest.fixture(autouse=True)
def _no_cluster_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SDRS_HOME", str(tmp_path / "cluster"))
    monkeypatch.delenv("SDRS_URL", raising=False)


def doctor(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(root, ["doctor", "-o", "json", *arguments])
    return result.exit_code, {check["name"]: check for check in json.loads(result.stdout)}


def test_a_good_machine_passes_and_nothing_is_left_behind(tmp_path: Path) -> None:
    code, checks = doctor()
    assert code == 0
    expected = {"python", "port", "disk space", "fsync", "clock", "open files", "shared memory", "gpus", "cluster"}
    assert expected | {"etcd", "erasure coding"} <= set(checks)
    assert "MB/s" in checks["fsync"]["detail"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_fails(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    code, checks = doctor("--dir", str(tmp_path))
    assert code == 1
    assert checks["folder"]["verdict"] == "fail"


def test_a_port_of_another_program_is_a_warning(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        write_layout(tmp_path, Layout(server.getsockname()[1], (1,)))
        code, checks = doctor("--dir", str(tmp_path))
    assert (code, checks["port"]["verdict"]) == (0, "warn")
    assert "--port" in checks["port"]["advice"]


@pytest.mark.parametrize("by", ["environment", "option"])
def test_the_port_that_is_looked_at_is_that_of_the_cluster_that_was_named(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def port(url: str) -> dict[str, str]:
        if by == "environment":
            monkeypatch.setenv("SDRS_URL", url)
        return doctor(*(["--url", url] if by == "option" else []), "--timeout", "0.2")[1]["port"]

    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        taken = port(f"sdrs://127.0.0.1:{number}")
    assert (taken["verdict"], str(number) in taken["detail"]) == ("ok", True)
    free = port(f"sdrs://localhost:{number}")
    assert free["detail"].startswith(f"{number}, which")
    assert port("sdrs://controller.invalid:7070")["verdict"] == "info"


def test_the_folder_is_that_of_the_cluster_that_up_has_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "elsewhere"
    folder.mkdir()
    write_layout(folder, Layout(port, (1,)))
    url = f"sdrs://127.0.0.1:{port}"
    write_pointer(Pointer(url, folder))
    assert str(folder) in str(doctor("--timeout", "0.2")[1]["disk space"])
    monkeypatch.setenv("SDRS_URL", url)
    _, checks = doctor("--timeout", "0.2")
    assert checks["port"]["detail"] == f"{port} is free"
    assert str(folder) in str(checks["disk space"])
    monkeypatch.setenv("SDRS_URL", "sdrs://127.0.0.1:1")
    assert str(folder) not in str(doctor("--timeout", "0.2")[1]["disk space"])


def test_a_cluster_that_was_named_and_is_away_fails() -> None:
    code, checks = doctor("--url", "sdrs://127.0.0.1:1")
    assert (code, checks["cluster"]["verdict"]) == (1, "fail")


@pytest.mark.parametrize(("used", "verdict"), [(50, Verdict.OK), (90, Verdict.WARN), (96, Verdict.FAIL)])
def test_a_full_disk_is_seen(used: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Of 110 blocks 10 are reserved for root: they count neither as used nor as free.
    usage = shutil._ntuple_diskusage(110, used, 100 - used)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    check = machine_checks.check_disk_space(tmp_path)
    assert check.verdict is verdict
    assert f"{100 - used} B free of 100 B ({used} % used)" in check.detail


@pytest.mark.parametrize(
    ("place", "kind", "verdict"),
    [("/srv", "ext4", Verdict.OK), ("/tmp", "tmpfs", Verdict.WARN), ("/home", "nfs4", Verdict.WARN)],
)
def test_a_file_system_that_cannot_keep_promises_is_seen(place: str, kind: str, verdict: Verdict) -> None:
    check = machine_checks.check_file_system(Path(place), MOUNTS)
    assert (check.verdict, check.detail.partition(":")[0]) == (verdict, kind)


def test_a_folder_that_cannot_be_written_fails() -> None:
    assert machine_checks.check_fsync(Path("/proc/sdrs")).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((1.8e9, 5.0), (1.8e9 + 2, 7.0), Verdict.OK),
        ((1.8e9, 5.0), (1.8e9 + 60, 7.0), Verdict.WARN),
        ((1.8e9, 5.0), (1.8e9 - 60, 7.0), Verdict.WARN),
        ((1000.0, 5.0), (1002.0, 7.0), Verdict.WARN),
    ],
)
def test_a_clock_that_is_wrong_or_jumps_is_a_warning(
    before: tuple[float, float], after: tuple[float, float], verdict: Verdict
) -> None:
    assert machine_checks.check_clock(ClockReading(*before), ClockReading(*after)).verdict is verdict


@pytest.mark.parametrize(("lag_seconds", "verdict"), [(0.5, Verdict.OK), (-60, Verdict.WARN), (60, Verdict.WARN)])
def test_a_clock_away_from_the_controllers_is_a_warning(lag_seconds: float, verdict: Verdict) -> None:
    assert check_cluster_clock(lag_seconds).verdict is verdict


@pytest.mark.parametrize(
    ("limits", "verdict", "words"),
    [
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), Verdict.OK, ""),
        ((4096, 4096), Verdict.OK, ""),
        ((1024, 1 << 20), Verdict.WARN, "ulimit -n"),
        ((1024, 1024), Verdict.WARN, "limits.conf"),
    ],
)
def test_a_low_limit_of_open_files_says_where_to_raise_it(
    limits: tuple[int, int], verdict: Verdict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    check = machine_checks.check_open_files()
    assert check.verdict is verdict
    assert words in check.advice


def test_packages_that_are_missing_or_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = [
        "grpcio>=1.50",
        "pytest>=99.1",
        'no-such-package>=2; extra == "server"',
        'click>=8.1; extra == "cli"',
        'also-missing; extra == "torch"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    sdk, server, cli = machine_checks.check_packages()
    assert (sdk.verdict, server.verdict, cli.verdict) == (Verdict.FAIL, Verdict.WARN, Verdict.OK)
    assert "pytest" in sdk.detail
    assert "99.1" in sdk.detail
    assert "no-such-package is missing" in server.detail
    assert "sdrs[server]" in server.advice


def test_the_kernel_of_the_erasure_code_is_named() -> None:
    check = machine_checks.check_erasure_kernel()
    assert (check.verdict, check.detail.partition(" ")[0]) == (Verdict.OK, "ISA-L")


def test_the_slow_kernel_of_the_erasure_code_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdrs_core.erasure.kernel", lambda: "zfec 1.6 (ISA-L not found: ...)")
    check = machine_checks.check_erasure_kernel()
    assert (check.verdict, check.detail.partition(" ")[0]) == (Verdict.WARN, "zfec")
    assert "pip install pyeclib" in check.advice


def test_the_slow_kernel_that_was_asked_for_is_a_warning_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDRS_ERASURE_KERNEL", "zfec")
    code, checks = doctor()
    assert (code, checks["erasure coding"]["verdict"]) == (0, "warn")
    assert "unset SDRS_ERASURE_KERNEL" in checks["erasure coding"]["advice"]


def test_an_erasure_code_that_nothing_computes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDRS_ERASURE_KERNEL", "gpu")
    check = machine_checks.check_erasure_kernel()
    assert check.verdict is Verdict.FAIL
    assert "'gpu'" in check.detail


def test_staging_is_judged_by_memory_and_by_what_the_tmpfs_has_free() -> None:
    gib = 1 << 30
    mounts = "tmpfs /dev/shm tmpfs rw 0 0\n"
    assert judge_staging(60 * gib, 64 * gib, mounts).verdict is Verdict.OK
    small = judge_staging(64 << 20, 64 * gib, mounts)  # a container's default
    assert small.verdict is Verdict.WARN
    assert "--shm-size" in small.advice
    assert judge_staging(60 * gib, 2 * gib, mounts).verdict is Verdict.WARN
    assert "ext4" in judge_staging(60 * gib, 64 * gib, "/dev/sda1 /dev/shm ext4 rw 0 0\n").detail
