"""Limits of local runs. No cgroup v2 tree with controllers is to be had where tests run: files stand in for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sdrs_scheduler.executors.local.limits import CgroupLimits, WatchedLimits, delegated_cgroup, limits_for

OWN = "1:name=systemd:/x\n0::/system.slice/sdrs-scheduler.service/scheduler\n"


def delegated(root: Path, controllers: str) -> Path:
    base = root / "system.slice/sdrs-scheduler.service"
    (base / "scheduler").mkdir(parents=True)
    (base / "cgroup.controllers").write_text(controllers)
    (base / "cgroup.subtree_control").write_text("")
    return base


def test_a_delegated_tree_is_found_and_its_controllers_are_turned_on(tmp_path: Path) -> None:
    base = delegated(tmp_path, "cpuset cpu memory pids\n")
    assert delegated_cgroup(OWN, tmp_path) == base
    assert (base / "cgroup.subtree_control").read_text() == "+memory +cpu"


def test_a_tree_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    base = delegated(tmp_path, "hugetlb\n")
    assert delegated_cgroup(OWN, tmp_path) is None
    assert delegated_cgroup("0::/system.slice/other.service\n", tmp_path) is None
    assert delegated_cgroup("0::/\n", tmp_path) is None
    assert delegated_cgroup("", tmp_path) is None
    assert (base / "cgroup.subtree_control").read_text() == ""


def test_a_group_gets_the_limits_and_tells_who_was_killed_for_memory(tmp_path: Path) -> None:
    limits = limits_for(tmp_path, "run.1.n1", 1 << 30, 4)
    group = tmp_path / "run.1.n1"
    assert isinstance(limits, CgroupLimits)
    assert limits.note == ""
    assert (group / "memory.max").read_text() == str(1 << 30)
    assert (group / "memory.oom.group").read_text() == "1"
    assert (group / "cpu.max").read_text() == "400000 100000"
    limits.join()
    assert (group / "cgroup.procs").read_text() == "0"
    assert not limits.was_out_of_memory()
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\n")
    assert not limits.was_out_of_memory()
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\n")
    assert limits.was_out_of_memory()


def test_without_a_tree_it_is_said_what_does_not_hold(tmp_path: Path) -> None:
    limits = limits_for(None, "run", 1 << 30, 4)
    assert isinstance(limits, WatchedLimits)
    assert limits.note == (
        "memory is looked at once a second and CPUs are not limited: "
        "no part of the cgroup v2 tree is delegated to the scheduler"
    )
    assert "takes no group" in limits_for(tmp_path / "missing", "run", 0, 4).note
    assert limits_for(None, "run", 0, 0).note == ""


def test_a_shepherd_stays_small() -> None:
    """One is in memory for each run: nothing of the cluster's packages belongs there."""
    told = "import sdrs_scheduler.executors.local.shepherd, sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-P", "-c", told], capture_output=True, text=True, check=True).stdout
    ours = {name for name in loaded.split() if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert ours == {"sdrs_scheduler"}
