"""kill -9 at each step of a backup and of a pruning: what is listed restores, and nothing that is used is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdrs.backups import Run
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Keep, Policy, Target, TargetName
from sdrs_core.ids import PoolName
from tests.support.backed_up import BucketView, finished
from tests.support.cluster import LocalCluster, make_cluster
from tests.support.faulty_s3 import Fault, FaultyS3
from tests.support.s3_servers import S3Server, moto_s3  # noqa: F401
from tests.support.waiting import wait_for

MIB = 1 << 20
JOB = "llm-7b"
BACKUP_POINTS = (
    "backup.begun",
    "backup.uses",
    "backup.object",
    "backup.uploaded",
    "backup.manifest",
    "backup.committing",
    "backup.committed",
    "backup.listed",
    "backup.ending",
)
PRUNE_POINTS = (
    "prune.condemned",
    "prune.uncommitted",
    "prune.manifests",
    "prune.uses",
    "prune.objects_condemned",
    "prune.objects_deleted",
    "prune.objects_forgotten",
)


def state(seed: int) -> dict[str, np.ndarray]:
    return {"weights": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8)}


class Armed:
    """A cluster whose controller dies where it is told, a bucket, and a job that goes on and on."""

    def __init__(self, cluster: LocalCluster, target: Target) -> None:
        self.cluster = cluster
        self.target = target
        self._points = cluster.folder / "points"
        self._step = 0
        with cluster.connect() as connected:
            connected.backups.add_target(target)
            # On demand only.
            connected.backups.set_policy(Policy(target.name, PoolName("default"), JOB, keep=Keep(last=1)))

    def save(self) -> int:
        self._step += 1
        with self.cluster.connect() as connected:
            connected.checkpoints(JOB).save(step=self._step, state=state(self._step)).wait()
        return self._step

    def run(self, kind: RunKind) -> Run:
        with self.cluster.connect() as connected:
            return finished(connected, connected.backups.start(kind, self.target.name, Selection()))

    def run_killed_at(self, point: str, kind: RunKind) -> Run:
        """The controller dies there; the next one goes on with the run by itself, to its end."""
        with self.cluster.connect() as connected:
            self._points.write_text(f"{point}=kill")
            run = connected.backups.start(kind, self.target.name, Selection())
            assert self.cluster.controller.wait_for_death() == -9
        self._points.unlink()
        self.check()
        self.cluster.controller.start()
        self.cluster.wait_until_up()
        with self.cluster.connect() as connected:
            return finished(connected, run)

    def check(self) -> set[str]:
        """All that the bucket lists is there to the last byte."""
        with BucketView(self.target) as view:
            return set(view.restorable())

    def listed(self) -> dict[str, int]:
        with self.cluster.connect() as connected:
            return {str(one.save_id): one.step for one in connected.backups.list(target=self.target.name)}


@pytest.fixture(scope="module")
def armed(
    armed_cluster: LocalCluster,
    moto_s3: S3Server,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Armed:
    return Armed(armed_cluster, moto_s3.target(tmp_path_factory.mktemp("target")))


@pytest.mark.parametrize("point", BACKUP_POINTS)
def test_a_backup_goes_on_after_its_controller_was_killed(armed: Armed, point: str) -> None:
    step = armed.save()
    run = armed.run_killed_at(point, RunKind.BACKUP)
    assert (run.failure, run.problems) == ("", ())
    listed = armed.listed()
    assert step in listed.values()
    assert armed.check() == set(listed)


@pytest.mark.parametrize("point", PRUNE_POINTS)
def test_a_pruning_goes_on_after_its_controller_was_killed(armed: Armed, point: str) -> None:
    armed.save()
    step = armed.save()
    assert armed.run(RunKind.BACKUP).failure == ""
    assert armed.run_killed_at(point, RunKind.PRUNE).failure == ""
    assert list(armed.listed().values()) == [step]
    assert armed.check() == set(armed.listed())
    with BucketView(armed.target) as view:
        assert {place.key for place in view.places()} == view.object_keys(), "what nobody uses is gone"


def test_another_node_takes_over_a_coded_blob_from_one_that_dies_in_its_upload(
    tmp_path: Path,
    moto_s3: S3Server,  # noqa: F811
) -> None:
    parts = {name: np.random.default_rng(number).integers(0, 256, 17 * MIB, dtype=np.uint8) for number, name in
             enumerate(("a", "b", "c", "d"))}  # fmt: skip
    cluster = make_cluster(tmp_path, node_count=3)
    cluster.nodes[0].environment["SDRS_FAULT_POINTS"] = "upload.progress=kill"
    try:
        cluster.start()
        with cluster.connect() as connected:
            connected.create_pool("coded", level="L3", ec="2+1")
            connected.checkpoints(JOB, pool="coded").save(step=1, state=parts).wait()
            target = connected.backups.add_target(moto_s3.target(tmp_path, name="lasting"))
            run = finished(connected, connected.backups.start(RunKind.BACKUP, target.name, Selection()))
            assert (run.failure, run.problems, run.done_checkpoints) == ("", (), 1)
        assert cluster.nodes[0].wait_for_death() == -9
        with BucketView(target) as view:
            assert len(view.restorable()) == 1
    finally:
        for daemon in [*cluster.nodes, cluster.controller]:
            if daemon.process and daemon.process.poll() is None:
                daemon.kill()


@pytest.fixture
def proxy(moto_s3: S3Server) -> Iterator[FaultyS3]:  # noqa: F811
    faulty = FaultyS3(moto_s3.endpoint)
    yield faulty
    faulty.stop()


def test_a_target_that_hangs_holds_up_neither_saves_nor_other_targets(
    armed: Armed,
    proxy: FaultyS3,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    hanging = replace(moto_s3.target(tmp_path, name="hanging"), endpoint=proxy.endpoint)
    with armed.cluster.connect() as connected:
        connected.backups.add_target(hanging)
        armed.save()
        proxy.faults.append(Fault("hang", "PUT", "/objects/"))
        run = connected.backups.start(RunKind.BACKUP, hanging.name, Selection())
        step = armed.save()
        assert armed.run(RunKind.BACKUP).failure == ""
        assert step in armed.listed().values()
        assert connected.backups.runs(TargetName("hanging"))[0].is_under_way
        proxy.heal()
        assert finished(connected, run).failure == ""
    with BucketView(hanging) as view:
        assert view.restorable()


def test_daemons_stop_in_time_while_a_target_hangs(
    armed: Armed,
    proxy: FaultyS3,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    hanging = replace(moto_s3.target(tmp_path, name="silent"), endpoint=proxy.endpoint)
    with armed.cluster.connect() as connected:
        connected.backups.add_target(hanging)
        proxy.faults.append(Fault("hang", "PUT", "/objects/"))
        connected.backups.start(RunKind.BACKUP, hanging.name, Selection())
        wait_for(lambda: proxy.count("PUT", "/objects/"), "the upload to hang")
    assert armed.cluster.nodes[0].stop() == 0
    assert armed.cluster.controller.stop() == 0
