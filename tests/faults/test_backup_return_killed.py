"""kill -9 and full disks on the way back from a backup: nothing half is seen, and it is completed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sdrs
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Policy, Target
from sdrs_core.ids import PoolName
from tests.support.backed_up import finished
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.from_backups import back_up, bring_in
from tests.support.s3_servers import S3Server, moto_s3  # noqa: F401
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

STEPS = (1, 2)


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A controller and two nodes that die or fail where the file ``points`` says."""
    folder = tmp_path_factory.mktemp("armed")
    with running_cluster(
        folder,
        node_count=2,
        controller={"grace_seconds": 0},
        environment={"SDRS_FAULT_POINTS": str(folder / "points")},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(armed: LocalCluster) -> Iterator[sdrs.Cluster]:
    with armed.connect(timeout_seconds=20) as client:
        yield client


@pytest.fixture(scope="module")
def target(
    client: sdrs.Cluster,
    moto_s3: S3Server,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Target:
    return client.backups.add_target(moto_s3.target(tmp_path_factory.mktemp("target")))


def arm(cluster: LocalCluster, text: str) -> Path:
    points = cluster.folder / "points"
    points.write_text(text)
    return points


def reborn(cluster: LocalCluster, points: Path) -> None:
    cluster.controller.wait_for_death()
    points.unlink()
    cluster.controller.start()


def backed_up(client: sdrs.Cluster, target: Target, job: str) -> sdrs.Checkpoints:
    ckpts = client.checkpoints(job)
    for step in STEPS:
        ckpts.save(step=step, state=make_state(step, MIB)).wait()
    back_up(client, target, job=job)
    return ckpts


@pytest.mark.parametrize("point", ["import.shards", "recall.made", "recall.settling"])
def test_an_import_whose_controller_is_killed_goes_on_under_the_next(
    armed: LocalCluster, client: sdrs.Cluster, target: Target, point: str
) -> None:
    ckpts = backed_up(client, target, point)
    for step in STEPS:
        ckpts.delete(step)
    points = arm(armed, f"{point}=kill@2")
    run = client.backups.start(RunKind.IMPORT, target.name, Selection(job=point))
    reborn(armed, points)
    ended = finished(client, run)
    assert (ended.failure, ended.problems) == ("", ())
    for step in STEPS:
        assert same(ckpts.restore(step=step), make_state(step, MIB))
        assert ckpts.get(step).evicted == ""


def test_a_restore_whose_controller_is_killed_while_it_recalls_is_served_by_the_next(
    armed: LocalCluster, client: sdrs.Cluster, target: Target
) -> None:
    ckpts = backed_up(client, target, "restoring")
    for step in STEPS:
        ckpts.delete(step)
    bring_in(client, target, job="restoring", lazy=True)
    points = arm(armed, "recall.pulled=kill")
    with ThreadPoolExecutor() as threads:
        restoring = threads.submit(ckpts.restore)
        reborn(armed, points)
        assert same(restoring.result(60), make_state(2, MIB))


def test_an_eviction_whose_controller_is_killed_loses_nothing(
    armed: LocalCluster, client: sdrs.Cluster, target: Target
) -> None:
    ckpts = backed_up(client, target, "aging")
    points = arm(armed, "evict.marked=kill")
    client.backups.set_policy(Policy(target.name, PoolName("default"), job="aging", evict_after_seconds=1))
    reborn(armed, points)
    client.backups.remove_policy(target.name, "default", "aging")
    assert ckpts.get(1).evicted == target.name
    assert same(ckpts.restore(step=1), make_state(1, MIB))
    assert same(ckpts.restore(), make_state(2, MIB))


def test_an_import_onto_full_disks_says_so_leaves_nothing_half_and_completes_once_there_is_room(
    armed: LocalCluster, client: sdrs.Cluster, target: Target
) -> None:
    ckpts = backed_up(client, target, "no-room")
    for step in STEPS:
        ckpts.delete(step)
    points = arm(armed, "fragment.write=ENOSPC")
    run = bring_in(client, target, job="no-room")
    assert "has no room to bring no-room step" in run.failure
    assert [save.evicted for save in ckpts.list()] == [target.name, target.name]
    points.unlink()

    def is_done() -> bool:
        return not bring_in(client, target, job="no-room").failure

    wait_for(is_done, "the nodes to say that they take writes again", 30)
    for step in STEPS:
        assert same(ckpts.restore(step=step), make_state(step, MIB))
