"""Restores of coded checkpoints on real daemons: the right bytes while enough is left, else a clear error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import sdrs
from sdrs import errors
from sdrs.restore.shard_reader import ShardReader
from sdrs.restore.targets import ByteCount, MemoryTarget
from sdrs_core.checkpoints import Blob
from sdrs_core.cluster import Node
from sdrs_core.codes import MIRROR
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1.control_pb2 import ListShardsRequest
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for

# Several ranges, and a last stripe that is short.
STATE_BYTES = 150 * MIB + 1234
# Nobody repairs what these tests break.
QUIET = {"repair_interval_seconds": 3600, "repair_after_seconds": 3600, "settle_seconds": 0.5}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("l3"), node_count=6, controller=QUIET) as cluster:
        with cluster.connect() as client:
            client.create_pool("prod", "L3", ec="4+2")
            client.checkpoints("whole", pool="prod").save(1, make_state(1, STATE_BYTES)).wait("L3")
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    for node in cluster.nodes:
        assert node.process
        if node.process.poll() is not None:
            node.start()
    cluster.wait_until_up()
    with cluster.connect() as client:
        yield client


def restore(client: sdrs.Cluster) -> None:
    """The checkpoint that all of these tests read, and that none of them damages."""
    assert same(client.checkpoints("whole", pool="prod").restore(step=1), make_state(1, STATE_BYTES))


def coded_blob(client: sdrs.Cluster, job: str) -> Blob:
    return next(blob for blob in client.checkpoints(job).shards(1)[0].blobs if blob.code != MIRROR)


def file_of(cluster: LocalCluster, blob: Blob, index: int) -> Path:
    holder = next(holder for holder in blob.holders if holder.fragment_index == index)
    daemon = next(node for node in cluster.nodes if node.name == holder.node_id)
    (found,) = daemon.data_dir.glob(f"disk-*/fragments/*/{blob.id}.{index}")
    return found


@contextmanager
def seen_as(client: sdrs.Cluster, through: Callable[[Node], Node]) -> Iterator[None]:
    """The SDK sees nodes with other endpoints than they have."""
    routes = client.process().routes
    real = routes.open
    routes.open = lambda node, *rest: real(through(node), *rest)  # type: ignore[method-assign]
    try:
        yield
    finally:
        routes.open = real  # type: ignore[method-assign]


def refusing(*names: str) -> Callable[[Node], Node]:
    def through(node: Node) -> Node:
        if node.id not in names:
            return node
        return replace(node, endpoints=replace(node.endpoints, unix="", grpc="127.0.0.1:1", data="127.0.0.1:1"))

    return through


def test_a_coded_state_comes_back_and_progress_tells_all_of_it(client: sdrs.Cluster) -> None:
    checkpoints = client.checkpoints("whole", pool="prod")
    assert {blob.code for blob in checkpoints.shards(1)[0].blobs} == {"4+2", MIRROR}
    seen: list[tuple[int, int]] = []
    state = checkpoints.restore(progress=lambda read, total: seen.append((read, total)))
    assert same(state, make_state(1, STATE_BYTES))
    size_bytes = checkpoints.get(1).size_bytes
    assert seen[-1] == (size_bytes, size_bytes)
    assert [read for read, _ in seen] == sorted(read for read, _ in seen)


def test_without_any_two_nodes_it_comes_back(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    names = [node.name for node in cluster.nodes]
    for lost in combinations(names, 2):
        with cluster.connect() as fresh, seen_as(fresh, refusing(*lost)):
            restore(fresh)


def test_with_nodes_killed_it_comes_back_until_three_are_which_is_said_at_once(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    checkpoints = client.checkpoints("whole", pool="prod")
    for daemon in cluster.nodes[:2]:
        daemon.kill()
        restore(client)
    cluster.nodes[4].kill()
    began = time.monotonic()
    with pytest.raises(errors.UnavailableError) as caught:
        checkpoints.restore(step=1)
    assert time.monotonic() - began < STALL_SECONDS
    for daemon in (*cluster.nodes[:2], cluster.nodes[4]):
        assert daemon.name in str(caught.value)
    assert checkpoints.get(1).damage == ""
    cluster.nodes[1].start()
    wait_for(lambda: client.node("node-2")[0].state == "up", "the node to be back")
    restore(client)


def test_two_nodes_that_stand_still_are_not_waited_for(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    frozen = [cluster.nodes[1], cluster.nodes[3]]
    for daemon in frozen:
        daemon.freeze()
    try:
        began = time.monotonic()
        for _ in range(3):
            restore(client)
        assert time.monotonic() - began < STALL_SECONDS
    finally:
        for daemon in frozen:
            daemon.thaw()


def test_a_node_that_stops_in_the_middle_is_not_waited_for(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    """Over sockets: of a passed file the rest can be read without the node."""
    victim = cluster.nodes[2]

    def freeze(read: int, total: int) -> None:
        if read > total // 4:
            victim.freeze()

    try:
        with seen_as(client, tcp_only):
            began = time.monotonic()
            state = client.checkpoints("whole", pool="prod").restore(step=1, progress=freeze)
            assert time.monotonic() - began < STALL_SECONDS
        assert same(state, make_state(1, STATE_BYTES))
    finally:
        victim.thaw()


def tcp_only(node: Node) -> Node:
    return replace(node, endpoints=replace(node.endpoints, unix=""))


def grpc_only(node: Node) -> Node:
    return replace(node, endpoints=replace(node.endpoints, unix="", data="127.0.0.1:1"))


@pytest.mark.parametrize("way", [tcp_only, grpc_only])
def test_every_way_to_the_nodes_gives_the_same_bytes(
    client: sdrs.Cluster, cluster: LocalCluster, way: Callable[[Node], Node]
) -> None:
    lost = refusing("node-1", "node-5")
    with seen_as(client, way):
        restore(client)
    with cluster.connect() as fresh, seen_as(fresh, lambda node: lost(way(node))):
        restore(fresh)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    flip_bit(path, 4096 + MIB + 77)


def swap(*paths: Path) -> None:
    """Each in the place of the next, under its name."""
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(content)


def each(damage: Callable[[Path], object]) -> Callable[..., None]:
    def damaging(*paths: Path) -> None:
        for path in paths:
            damage(path)

    return damaging


DAMAGES = {"flipped": each(flip), "cut": each(cut_off), "deleted": each(Path.unlink), "swapped": swap}


def identity(path: Path) -> tuple[int, int] | None:
    """Not by its inode alone: a new file may get that of one that is gone."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_fragments_are_read_around_and_told(cluster: LocalCluster, client: sdrs.Cluster, damage: str) -> None:
    checkpoints = client.checkpoints(damage, pool="prod")
    checkpoints.save(1, make_state(2, 20 * MIB + 5)).wait("L3")
    blob = coded_blob(client, damage)
    files = [file_of(cluster, blob, index) for index in (0, 2)]
    DAMAGES[damage](*files)
    damaged = {path: found for path in files if (found := identity(path))}
    assert same(checkpoints.restore(), make_state(2, 20 * MIB + 5))
    # The nodes have looked themselves, and what is damaged is put aside; perhaps there is a new one already.
    wait_for(lambda: all(identity(path) != found for path, found in damaged.items()), "the damaged fragments to go")
    assert same(checkpoints.restore(), make_state(2, 20 * MIB + 5))


@pytest.mark.parametrize("damage", DAMAGES)
def test_with_three_fragments_damaged_the_error_names_them(
    cluster: LocalCluster, client: sdrs.Cluster, damage: str
) -> None:
    job = f"three-{damage}"
    checkpoints = client.checkpoints(job, pool="prod")
    checkpoints.save(1, make_state(2, 20 * MIB + 5)).wait("L3")
    blob = coded_blob(client, job)
    DAMAGES[damage](*(file_of(cluster, blob, index) for index in (1, 3, 5)))
    with pytest.raises(errors.CorruptDataError) as caught:
        checkpoints.restore(step=1)
    for index in (1, 3, 5):
        assert f"fragment {index} of blob {blob.id}" in str(caught.value)
    assert checkpoints.get(1).damage


def test_files_and_exports_of_several_ranks_come_from_coded_blobs(client: sdrs.Cluster, tmp_path: Path) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    source.mkdir()
    (source / "large.bin").write_bytes(np.random.default_rng(1).bytes(70 * MIB + 5))
    (source / "small.txt").write_text("hello")
    files = client.checkpoints("files", pool="prod")
    files.save_files(1, source).wait("L3")
    with seen_as(client, refusing("node-3", "node-6")):
        files.restore_files(dest)
    assert (dest / "large.bin").read_bytes() == (source / "large.bin").read_bytes()
    assert (dest / "small.txt").read_text() == "hello"
    ranks = client.checkpoints("ranks", pool="prod", attempt="run:1")
    for rank in (0, 1):
        ranks.save(1, make_state(rank, 17 * MIB), rank=rank, world_size=2)
    wait_for(lambda: ranks.list(), "both ranks to be in")
    seen: list[tuple[int, int]] = []
    with seen_as(client, refusing("node-1", "node-2")):
        ranks.export_state(tmp_path / "export", progress=lambda read, total: seen.append((read, total)))
    assert seen[-1][0] == seen[-1][1] == ranks.get(1).size_bytes
    for rank in (0, 1):
        arrays = [a for path in sorted(tmp_path.glob(f"export/rank-{rank:05}/*")) for a in load_file(path).values()]
        assert any(np.array_equal(array, make_state(rank, 17 * MIB)["weights"]) for array in arrays)
        assert same(ranks.restore(rank=rank), make_state(rank, 17 * MIB))


def test_a_byte_range_of_a_coded_blob_is_read_alone(client: sdrs.Cluster) -> None:
    checkpoints = client.checkpoints("whole", pool="prod")
    save = checkpoints.get(1)
    request = ListShardsRequest(save_id=save.save_id, rank=0, pool="prod")
    record = client.process().control.call("list_shards", request)
    reader = ShardReader(client.process(), save, record, ByteCount(None, save.size_bytes))
    blob = next(blob for blob in reader.shard.blobs if blob.code != MIRROR)
    whole, part = MemoryTarget([blob]), MemoryTarget([blob])
    reader.read([blob], whole)
    for lost in ([], ["node-1"], ["node-2", "node-4"]):
        with seen_as(client, refusing(*lost)):
            for start, end in [
                (5 * MIB + 3, 5 * MIB + 9),
                (30 * MIB - 1, 41 * MIB),
                (blob.size_bytes - 7, blob.size_bytes),
            ]:
                reader.read_range(blob, start, end, part)
                assert part.buffer(blob)[start:end] == whole.buffer(blob)[start:end]


def test_what_the_own_pool_cannot_serve_comes_from_its_mirror(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quick = {"repair_interval_seconds": 1, "repair_after_seconds": 3600, "settle_seconds": 0.5}
    with running_cluster(tmp_path, node_count=5, controller=quick) as cluster, cluster.connect() as client:
        client.create_pool("spare", "L2", nodes=["node-4", "node-5"])
        client.create_pool(
            "main", "L3", ec="2+1", nodes=["node-1", "node-2", "node-3"], mirror_pool="spare", mirror_ratio=1.0
        )
        checkpoints = client.checkpoints("mirrored", pool="main")
        checkpoints.save(1, make_state(3, 20 * MIB)).wait("L3")
        wait_for(lambda: checkpoints.get(1).mirror_pool == "spare", "the mirror to be whole", 60)
        assert same(checkpoints.restore(), make_state(3, 20 * MIB))
        assert "mirror" not in caplog.text
        kill_all(cluster.nodes[:2])
        assert same(checkpoints.restore(), make_state(3, 20 * MIB))
        assert "is read from its mirror in pool spare" in caplog.text
        kill_all(cluster.nodes[2:4])
        assert same(checkpoints.restore(), make_state(3, 20 * MIB))


def kill_all(daemons: list[DaemonProcess]) -> None:
    for daemon in daemons:
        daemon.kill()
