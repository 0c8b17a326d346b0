"""No space left: no false acknowledgement, a clear error, and recovery once space is freed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sdrs import errors
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.file_systems import needs_root, small_file_system
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for


@needs_root
def test_a_really_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 48) as small:
        settings = {"disks": [str(small / "disk-1")], "full_percent": 100, "near_full_percent": 100}
        with (
            running_cluster(tmp_path, node=settings, controller={"grace_seconds": 0}) as cluster,
            cluster.connect() as client,
        ):
            ckpts = client.checkpoints("full")
            ckpts.save(step=1, state=make_state(1, 20 * MIB)).wait()
            with pytest.raises(errors.FullError):
                ckpts.save(step=2, state=make_state(2, 40 * MIB)).wait()
            assert [checkpoint.step for checkpoint in ckpts.list()] == [1]
            assert same(ckpts.restore(), make_state(1, 20 * MIB))
            ckpts.delete(1)  # deleting works on a full disk
            wait_for(lambda: not list(small.glob("disk-1/fragments/*/*")), "the space to be freed")
            wait_for(lambda: client.nodes()[0].disks[0].used_bytes < 20 * MIB, "the controller to hear of it")
            ckpts.save(step=2, state=make_state(2, 40 * MIB)).wait()
            assert same(ckpts.restore(), make_state(2, 40 * MIB))


def test_a_pool_above_its_full_threshold_refuses_by_name_and_warns_before(tmp_path: Path) -> None:
    settings = {"disk_capacity_bytes": 100 * MIB, "near_full_percent": 30, "full_percent": 60}
    with running_cluster(tmp_path, node=settings) as cluster, cluster.connect() as client:
        ckpts = client.checkpoints("filling")
        ckpts.save(step=1, state=make_state(1, 40 * MIB)).wait()
        wait_for(lambda: any("nearly full" in w for w in client.info().warnings), "the warning before it is full")
        with pytest.raises(errors.FullError):
            ckpts.save(step=2, state=make_state(2, 40 * MIB)).wait()
        assert same(ckpts.restore(), make_state(1, 40 * MIB))


@pytest.mark.parametrize("point", ["fragment.write", "inventory.write", "meta.commit"])
def test_no_space_at_any_write_is_no_acknowledgement(armed_cluster: LocalCluster, point: str) -> None:
    """Data, inventory and metadata in turn."""
    points = armed_cluster.folder / "points"
    with armed_cluster.connect(timeout_seconds=3) as client:
        ckpts = client.checkpoints(f"enospc-{point}")
        ckpts.save(step=1, state=make_state(1)).wait()
        points.write_text(f"{point}=ENOSPC")
        with pytest.raises(errors.FullError):
            ckpts.save(step=2, state=make_state(2)).wait(timeout=60)
        assert [checkpoint.step for checkpoint in ckpts.list()] == [1]
        points.unlink()
        ckpts.save(step=2, state=make_state(2)).wait()
        assert same(ckpts.restore(), make_state(2))


def test_a_disk_that_fails_an_fsync_takes_no_more_writes_until_it_is_opened_again(armed_cluster: LocalCluster) -> None:
    points = armed_cluster.folder / "points"
    with armed_cluster.connect(timeout_seconds=3) as client:
        ckpts = client.checkpoints("eio")
        ckpts.save(step=1, state=make_state(1)).wait()
        points.write_text("fragment.fsync=EIO@1")
        with pytest.raises(errors.SdrsError):
            ckpts.save(step=2, state=make_state(2)).wait(timeout=60)
        points.unlink()
        # I9: the next fsync would succeed, and must not be believed.
        with pytest.raises(errors.SdrsError):
            ckpts.save(step=3, state=make_state(3)).wait(timeout=60)
        wait_for(lambda: any("failed" in w for w in client.info().warnings), "the failed disk to be told")
        assert same(ckpts.restore(), make_state(1))
        armed_cluster.nodes[0].stop()
        armed_cluster.nodes[0].start()
        armed_cluster.wait_until_up()
        ckpts.save(step=3, state=make_state(3)).wait()
        assert [checkpoint.step for checkpoint in ckpts.list()] == [3, 1]


@needs_root
def test_a_node_whose_whole_folder_is_full_goes_on_serving_and_deleting(tmp_path: Path) -> None:
    """I7: not the thresholds' doing, but another program's. Its own small files are there, too."""
    with small_file_system(tmp_path / "node-1", 64) as small:
        settings = {"full_percent": 100, "near_full_percent": 100}
        with (
            running_cluster(tmp_path, node=settings, controller={"grace_seconds": 0}) as cluster,
            cluster.connect() as client,
        ):
            ckpts = client.checkpoints("full")
            for step in (1, 2):
                ckpts.save(step=step, state=make_state(step)).wait()
            _fill(small / "another-program")
            with pytest.raises(errors.FullError):
                ckpts.save(step=3, state=make_state(3)).wait()
            assert same(ckpts.restore(step=1), make_state(1))
            cluster.nodes[0].kill()
            cluster.nodes[0].start()
            cluster.controller.stop()  # a new term, which the node persists before it obeys (P14)
            cluster.controller.start()
            cluster.wait_until_up()
            assert same(ckpts.restore(step=2), make_state(2))
            ckpts.delete(1)
            wait_for(lambda: len(cluster.fragments()) == 1, "the space to be freed")
            wait_for(lambda: client.nodes()[0].takes_writes, "the node to tell so")
            ckpts.save(step=3, state=make_state(3, MIB)).wait()
            assert same(ckpts.restore(), make_state(3, MIB))


def _fill(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(fd, bytes(4096)):
            pass
    except OSError:
        pass
    finally:
        os.close(fd)
