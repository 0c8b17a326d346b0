"""``sdrs backup`` against a controller of canned answers: what it asks for, what it prints, how it exits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sdrs.cli import backup_runs
from sdrs.cli.root import root
from sdrs_core.errors import RefusedError
from sdrs_proto.v1 import backup_pb2 as pb
from tests.support.fake_controller import FakeController, serving

BEGAN_UNIX_MS = 1_700_000_000_000


def make_run(**facts: Any) -> pb.BackupRun:
    given = {
        "id": "r1",
        "target": "nas",
        "kind": pb.BACKUP_RUN_KIND_BACKUP,
        "trigger": "an operator",
        "started_unix_ms": BEGAN_UNIX_MS,
        "ended_unix_ms": BEGAN_UNIX_MS + 65_000,
        "done_checkpoints": 2,
        "total_checkpoints": 2,
        "moved_bytes": 3 << 20,
    }
    return pb.BackupRun(**{**given, **facts})


def make_backup(step: int, **facts: Any) -> pb.Backup:
    given = {"target": "nas", "job": "llm", "step": step, "save_id": "s", "size_bytes": 1 << 20, "in_cluster": True}
    return pb.Backup(**{**given, **facts})


class BackingUp(FakeController):
    """``runs``: what it says of its run each time it is asked; the last one from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.target = pb.BackupTarget(name="nas", bucket="b", prefix="p", addressing="auto", credentials="chain")
        self.owner = ""
        self.runs = [make_run()]
        self.backups = [make_backup(1, damage="object x is gone"), make_backup(2)]
        self.policy = pb.BackupPolicy()
        self.steps = [pb.TestBackupTargetResponse(where="controller", step="write", ok=True)]

    def add_backup_target(self, request: pb.AddBackupTargetRequest) -> pb.AddBackupTargetResponse:
        self.target = request.target
        self.target.source_cluster_id = "" if request.take_over else self.owner
        return pb.AddBackupTargetResponse(target=self.target)

    def list_backup_targets(self, request: pb.ListBackupTargetsRequest) -> pb.ListBackupTargetsResponse:
        return pb.ListBackupTargetsResponse(targets=[pb.BackupTargetStatus(target=self.target, checkpoints=2)])

    def test_backup_target(self, request: pb.TestBackupTargetRequest) -> Iterator[pb.TestBackupTargetResponse]:
        yield from self.steps

    def set_backup_policy(self, request: pb.SetBackupPolicyRequest) -> pb.SetBackupPolicyResponse:
        self.policy = request.policy
        return pb.SetBackupPolicyResponse(policy=self.policy)

    def list_backup_policies(self, request: pb.ListBackupPoliciesRequest) -> pb.ListBackupPoliciesResponse:
        return pb.ListBackupPoliciesResponse(policies=[pb.BackupPolicyStatus(policy=self.policy)])

    def start_backup_run(self, request: pb.StartBackupRunRequest) -> pb.StartBackupRunResponse:
        begun = make_run(kind=request.kind, selection=request.selection, ended_unix_ms=0)
        return pb.StartBackupRunResponse(run=begun)

    def list_backup_runs(self, request: pb.ListBackupRunsRequest) -> pb.ListBackupRunsResponse:
        answer = self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]
        return pb.ListBackupRunsResponse(runs=[answer])

    def list_backups(self, request: pb.ListBackupsRequest) -> pb.ListBackupsResponse:
        return pb.ListBackupsResponse(backups=[one for one in self.backups if request.job in ("", one.job)])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SDRS_URL", raising=False)
    monkeypatch.setattr(backup_runs, "_POLL_SECONDS", 0.01)


@pytest.fixture
def controller() -> Iterator[BackingUp]:
    controller = BackingUp()
    with serving(controller):
        yield controller


@pytest.fixture
def sdrs(controller: BackingUp) -> Any:
    def run(*arguments: str, expect: int = 0) -> Result:
        result = CliRunner().invoke(root, ["--url", controller.url, *arguments])
        assert result.exit_code == expect, f"sdrs {' '.join(arguments)}: {result.exit_code}\n{result.output}"
        return result

    return run


def test_a_target_is_added_as_it_was_named_and_tried(controller: BackingUp, sdrs: Any) -> None:
    sdrs("backup", "target", "add", "nas", "--bucket", "b", "--prefix", "/p/", "--limit", "100MB/s")
    asked = controller.asked("add_backup_target").target
    assert (asked.name, asked.bucket, asked.prefix, asked.max_bytes_per_second) == ("nas", "b", "p", 100_000_000)
    assert controller.asked("test_backup_target")


def test_a_target_that_fails_its_test_is_added_and_said_to_be_so(controller: BackingUp, sdrs: Any) -> None:
    controller.steps.append(
        pb.TestBackupTargetResponse(where="node-1", step="delete", ok=False, detail="needs s3:DeleteObject")
    )
    told = sdrs("backup", "target", "add", "nas", "--bucket", "b", expect=3)
    assert "delete fails from node-1: needs s3:DeleteObject" in told.stderr
    assert "needs s3:DeleteObject" in sdrs("backup", "target", "test", "nas", expect=1).stdout


def test_a_prefix_of_another_cluster_is_only_read_unless_it_is_taken_over(controller: BackingUp, sdrs: Any) -> None:
    controller.owner = "other"
    told = sdrs("backup", "target", "add", "nas", "--bucket", "b")
    assert "holds backups of cluster other: it is only read" in told.stderr
    sdrs("backup", "target", "add", "nas", "--bucket", "b", "--take-over", expect=2)  # nobody to ask
    told = sdrs("backup", "target", "add", "nas", "--bucket", "b", "--take-over", "--yes")
    assert "only read" not in told.stderr


def test_a_policy_is_set_as_it_was_said(controller: BackingUp, sdrs: Any) -> None:
    told = sdrs(
        *("backup", "policy", "set", "prod", "--target", "nas", "--every", "15m"),
        *("--keep-last", "10", "--keep-daily", "7", "--evict-after", "14d"),
    )
    assert "every 15m; keeps 10 last, 7 daily" in told.stdout
    asked = controller.asked("set_backup_policy").policy
    assert (asked.pool, asked.every_seconds, asked.keep_daily, asked.evict_after_seconds) == ("prod", 900, 7, 1209600)
    sdrs(*("backup", "policy", "set", "prod", "--target", "nas", "--every", "1h", "--cron", "* * * * *"), expect=2)
    sdrs(*("backup", "policy", "set", "prod", "--target", "nas", "--keep-last", str(1 << 32)), expect=2)
    sdrs(*("backup", "policy", "set", "prod", "--target", "nas", "--every", "0s"), expect=2)


def test_a_run_is_waited_for_and_its_end_is_the_exit_code(controller: BackingUp, sdrs: Any) -> None:
    controller.runs = [make_run(ended_unix_ms=0, done_checkpoints=0), make_run()]
    assert "2 of 2 checkpoints; 3.0 MiB uploaded in 1m 5s" in sdrs("backup", "run").stdout
    controller.runs = [make_run(failure="the bucket is gone")]
    assert "the bucket is gone" in sdrs("backup", "run", expect=1).stderr
    controller.runs = [make_run(failed_checkpoints=1, problems=["llm step 2: unreadable"])]
    assert "llm step 2: unreadable" in sdrs("backup", "run", expect=3).stderr
    assert "is under way" in sdrs("backup", "run", "--no-wait").stdout


def test_a_job_that_nobody_knows_is_an_error_and_one_with_nothing_to_do_is_not(
    controller: BackingUp, sdrs: Any
) -> None:
    controller.runs = [make_run(kind=pb.BACKUP_RUN_KIND_VERIFY, done_checkpoints=0, total_checkpoints=0)]
    assert 'no backup of job "lmm"' in sdrs("backup", "verify", "--job", "lmm", expect=1).stderr
    sdrs("backup", "verify", "--job", "llm")


def test_a_step_without_its_job_is_refused(sdrs: Any) -> None:
    assert "name it with --job" in sdrs("backup", "run", "--step", "3", expect=2).output


def test_what_a_restore_asks_for_comes_from_a_target_that_has_it_sound(controller: BackingUp, sdrs: Any) -> None:
    controller.runs = [make_run(kind=pb.BACKUP_RUN_KIND_IMPORT)]
    sdrs("backup", "restore", "llm", "2")
    asked = controller.asked("start_backup_run")
    assert asked.target == "nas"
    assert (asked.selection.job, asked.selection.step, asked.selection.missing_only) == ("llm", 2, True)
    assert "no target has a backup of step 9" in sdrs("backup", "restore", "llm", "9", expect=1).output


def test_backups_are_listed_with_what_is_wrong_with_them(sdrs: Any) -> None:
    told = sdrs("backup", "list", "llm")
    assert "damaged" in told.stdout
    assert "object x is gone" in told.stderr
    found = json.loads(sdrs("backup", "list", "llm", "-o", "json").stdout)
    assert [one["step"] for one in found] == [2, 1]
    assert found[1]["damage"] == "object x is gone"


def test_pruning_asks_first_unless_it_only_tells(controller: BackingUp, sdrs: Any) -> None:
    sdrs("backup", "prune", expect=2)
    assert not any(name == "start_backup_run" for name, _ in controller.requests)
    controller.runs = [make_run(kind=pb.BACKUP_RUN_KIND_PRUNE, selection={"dry_run": True}, deleted_checkpoints=3)]
    assert "3 backups would be deleted" in sdrs("backup", "prune", "--dry-run").stdout
    assert controller.asked("start_backup_run").selection.dry_run


def test_an_unknown_target_is_named_with_those_that_are_known(sdrs: Any) -> None:
    assert 'no backup target "oss": known are nas' in sdrs("backup", "sync", "oss", expect=1).stderr


def test_what_the_controller_refuses_is_told_with_its_exit_code(controller: BackingUp, sdrs: Any) -> None:
    controller.failures["start_backup_run"] = RefusedError("a backup to nas is under way")
    assert "a backup to nas is under way" in sdrs("backup", "sync", "nas", expect=4).stderr
