"""Restores through the SDK: verified bytes or a clear error, from whichever way they come."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import sdrs
from sdrs import errors
from sdrs.transfer import FragmentRange, Summary
from sdrs_core.cluster import Node
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for


def test_restored_arrays_may_be_changed_and_leave_the_checkpoint_alone(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("writable")
        checkpoints.save(1, make_state(1, 20 * MIB)).wait()
        state = checkpoints.restore()
        state["weights"][:] = 7
        assert same(checkpoints.restore(), make_state(1, 20 * MIB))


def test_progress_ends_with_all_bytes(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("progress")
        done = checkpoints.save(1, make_state(1, 20 * MIB)).wait()
        seen: list[tuple[int, int]] = []
        checkpoints.restore(progress=lambda read, total: seen.append((read, total)))
        assert seen[-1] == (done.size_bytes, done.size_bytes)
        assert all(total == done.size_bytes for _, total in seen)
        checked: list[tuple[int, int]] = []
        verification = checkpoints.verify(1, progress=lambda read, total: checked.append((read, total)))
        assert verification.ok
        assert verification.checked_bytes == done.size_bytes
        assert checked[-1] == (done.size_bytes, done.size_bytes)


def test_what_is_not_there_is_named(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("missing")
        with pytest.raises(errors.NotFoundError, match='job "missing" has no checkpoint yet; known jobs'):
            checkpoints.restore()
        checkpoints.save(1, make_state(1)).wait()
        with pytest.raises(errors.NotFoundError, match="step 2"):
            checkpoints.restore(step=2)
        with pytest.raises(errors.InvalidArgumentError, match="world_size 1"):
            checkpoints.restore(rank=3)
        with pytest.raises(errors.InvalidArgumentError, match="use restore, or name a step that holds files"):
            checkpoints.restore_files("unused")


def test_files_come_back_as_they_were(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "small.txt").write_text("hello")
    (source / "deep" / "large.bin").write_bytes(np.random.default_rng(1).bytes(20 * MIB + 5))
    (source / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (source / "deep" / "run.sh").chmod(0o750)
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("files")
        checkpoints.save_files(1, source).wait()
        restored = checkpoints.restore_files(dest)
        assert restored.step == 1
        assert restored.kind == "files"
        found = {path.relative_to(dest) for path in dest.rglob("*")}
        assert found == {path.relative_to(source) for path in source.rglob("*")}
        for name in ("small.txt", "deep/large.bin", "deep/run.sh"):
            assert (dest / name).read_bytes() == (source / name).read_bytes()
        assert (dest / "deep" / "run.sh").stat().st_mode & 0o777 == 0o750
        with pytest.raises(errors.InvalidArgumentError, match="use restore_files"):
            checkpoints.restore()


def test_a_state_is_exported_as_files_that_safetensors_reads(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("exported", attempt="run:1")
        for rank in (0, 1):
            checkpoints.save(1, make_state(rank, 17 * MIB), rank=rank, world_size=2)
        seen: list[tuple[int, int]] = []
        wait_for(lambda: checkpoints.list(), "both ranks to be in")
        checkpoints.export_state(tmp_path, progress=lambda read, total: seen.append((read, total)))
        assert seen[-1][0] == seen[-1][1] == checkpoints.get(1).size_bytes
        for rank in (0, 1):
            arrays = [a for path in sorted(tmp_path.glob(f"rank-{rank:05}/*")) for a in load_file(path).values()]
            assert any(np.array_equal(array, make_state(rank, 17 * MIB)["weights"]) for array in arrays)


def test_a_damaged_newest_generation_is_passed_over_loudly(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("damaged")
        checkpoints.save(1, make_state(1)).wait()
        before = set(shared_cluster.fragments())
        checkpoints.save(2, make_state(2)).wait()
        (fragment,) = set(shared_cluster.fragments()) - before
        flip_bit(fragment, 4096 + 2 * MIB)
        with pytest.warns(sdrs.RestoreWarning, match=r"step 1 is restored instead of newer ones: step 2 \("):
            assert same(checkpoints.restore(), make_state(1))
        # By now the damage is on record: the bytes are not read again, and it is still said.
        assert "corrupt" in checkpoints.get(2).damage
        with pytest.warns(sdrs.RestoreWarning, match="step 2"):
            assert same(checkpoints.restore(), make_state(1))
        (blob,) = checkpoints.shards(2)[0].blobs
        with pytest.raises(errors.CorruptDataError) as caught:
            checkpoints.restore(step=2)
        for fact in ("damaged step 2", "rank 0", blob.id, blob.holders[0].node_id):
            assert fact in str(caught.value)


def test_when_no_generation_is_left_each_reason_is_told(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("hopeless")
        before = set(shared_cluster.fragments())
        for step in (1, 2):
            checkpoints.save(step, make_state(step)).wait()
        for fragment in set(shared_cluster.fragments()) - before:
            fragment.unlink()
        with pytest.raises(errors.NotRestorableError) as caught:
            checkpoints.restore()
        assert "step 1 (" in str(caught.value)
        assert "step 2 (" in str(caught.value)
        assert "missing" in str(caught.value)


def test_data_on_a_node_that_is_down_is_unavailable_not_lost(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as local, local.connect() as cluster:
        checkpoints = cluster.checkpoints("down")
        checkpoints.save(1, make_state(1)).wait()
        local.nodes[0].kill()
        with pytest.raises(errors.UnavailableError, match="node-1"):
            checkpoints.restore(step=1)
        assert checkpoints.get(1).damage == ""
        local.nodes[0].start()
        local.wait_until_up()
        assert same(checkpoints.restore(step=1), make_state(1))


def _tcp_only(node: Node) -> Node:
    return replace(node, endpoints=replace(node.endpoints, unix=""))


def _grpc_only(node: Node) -> Node:
    # A port that refuses: what a firewall leaves when only the gRPC port is open.
    return replace(node, endpoints=replace(node.endpoints, unix="", data="127.0.0.1:1"))


@pytest.mark.parametrize("way", ["local", "tcp", "grpc"])
def test_every_way_gives_the_same_bytes_and_the_same_errors(
    shared_cluster: LocalCluster, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One contract for the transfer interface: write, read, a range, a missing blob."""
    with shared_cluster.connect() as cluster:
        through = {"local": lambda node: node, "tcp": _tcp_only, "grpc": _grpc_only}[way]
        paths = Rerouted(cluster, through)
        checkpoints = cluster.checkpoints(way)
        checkpoints.save(1, make_state(1, 70 * MIB)).wait()
        assert same(checkpoints.restore(), make_state(1, 70 * MIB))
        if way == "grpc":
            assert caplog.text.count("its gRPC port is used instead") == len(paths.used_nodes)
        else:
            assert "instead" not in caplog.text

        shard = checkpoints.shards(1)[0]
        blob = max(shard.blobs, key=lambda blob: blob.size_bytes)
        node, _ = cluster.node(blob.holders[0].node_id)
        opened = cluster.process().routes.open(node, FragmentRange(blob.id, 0, MIB, 2 * MIB))
        target = memoryview(np.empty(2 * MIB + 4096, np.uint8))
        start = -np.frombuffer(target, np.uint8).__array_interface__["data"][0] % 4096
        opened.read_into(target[start:], MIB)
        opened.close()
        assert opened.summary == Summary.of_copy(blob.size_bytes, blob.hash, opened.summary.table)
        with pytest.raises(errors.NotFoundError):
            cluster.process().routes.open(node, FragmentRange(type(blob.id)("0" * 32), 0, 0, 2 * MIB)).close()


class Rerouted:
    """Shows the SDK nodes whose endpoints are only partly reachable."""

    def __init__(self, cluster: sdrs.Cluster, through: Callable[[Node], Node]) -> None:
        self.used_nodes: set[str] = set()
        real = cluster.process().routes
        send, open_range = real.send, real.open

        def note(node: Node) -> Node:
            self.used_nodes.add(node.id)
            return through(node)

        real.send = lambda node, *rest: send(note(node), *rest)  # type: ignore[method-assign]
        real.open = lambda node, *rest: open_range(note(node), *rest)  # type: ignore[method-assign]


def test_a_restore_without_trouble_warns_of_nothing(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster, warnings.catch_warnings():
        warnings.simplefilter("error")
        cluster.checkpoints("quiet").save(1, {"x": os.getpid()}).wait()
        cluster.checkpoints("quiet").restore()
