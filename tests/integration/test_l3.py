"""L3 through the SDK on real daemons: six nodes, 4+2, and what a save is worth when nodes die under it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import sdrs
from sdrs import errors
from sdrs_core.checkpoints import Blob
from sdrs_core.codes import MIRROR, Code
from tests.support.cluster import DaemonProcess, LocalCluster, make_cluster
from tests.support.fragments import joined, payload_of
from tests.support.waiting import wait_for

CODE = Code(4, 2)
MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("l3")
    # Nobody repairs what these tests look at.
    quiet = {"settle_seconds": 0.5, "repair_interval_seconds": 3600, "repair_after_seconds": 3600}
    cluster = make_cluster(folder, node_count=6, controller=quiet)
    for node in cluster.nodes:
        node.environment["SDRS_FAULT_POINTS"] = str(_points(node))
    try:
        cluster.start()
        with cluster.connect() as client:
            client.create_pool("prod", "L3", ec="4+2")
        yield cluster
    finally:
        for daemon in [*cluster.nodes, cluster.controller]:
            if daemon.process and daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGCONT)
                daemon.kill()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    for node in cluster.nodes:
        _points(node).unlink(missing_ok=True)
        assert node.process
        if node.process.poll() is not None:
            node.start()
    cluster.wait_until_up()
    with cluster.connect() as client:
        wait_for(lambda: _is_whole(client), "all groups to be whole", 60)
        yield client


def _is_whole(client: sdrs.Cluster) -> bool:
    """Whoever leads: a node that is killed often is not given its groups back for a while."""
    groups = client.groups("prod")
    return len(groups) == 6 and all(len(group.members) == 6 and not group.problem for group in groups)


def _points(node: DaemonProcess) -> Path:
    return node.folder / f"{node.name}.points"


def _saving_node(cluster: LocalCluster, client: sdrs.Cluster) -> DaemonProcess:
    """The primary that a single rank on this host saves to."""
    primary = min(client.groups("prod"), key=lambda group: group.id).primary
    return next(node for node in cluster.nodes if node.name == primary)


def _state(step: int, array_count: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    large = {f"layer{number}": random.random(2 * MIB + 1000 + number) for number in range(array_count)}
    return {**large, "bias": random.random(100)}


def _blobs(client: sdrs.Cluster, job: str, step: int) -> list[Blob]:
    return [blob for shard in client.checkpoints(job).shards(step) for blob in shard.blobs]


def _held(
    cluster: LocalCluster, client: sdrs.Cluster, job: str, step: int
) -> list[tuple[Blob, dict[int, bytes]]] | None:
    """What is on record, with what lies there; None if repair has moved something between the two looks."""
    blobs = _blobs(client, job, step)
    files = {(path.parts[-5], path.name): path for path in cluster.fragments()}
    try:
        return [
            (
                blob,
                {h.fragment_index: payload_of(files[h.node_id, f"{blob.id}.{h.fragment_index}"]) for h in blob.holders},
            )
            for blob in blobs
        ]
    except (KeyError, FileNotFoundError):
        return None


def _check(cluster: LocalCluster, client: sdrs.Cluster, job: str, step: int, state: dict[str, np.ndarray]) -> None:
    """What is on record is on disk, and any of it that suffices brings the state back."""
    found: dict[str, np.ndarray] = {}
    for blob, held in wait_for(lambda: _held(cluster, client, job, step), "record and disks to agree"):
        if blob.code == MIRROR:
            found |= safetensors.numpy.load(held[0])
            continue
        assert blob.code == str(CODE)
        for index, fragment in held.items():
            assert len(fragment) == CODE.fragment_bytes(blob.size_bytes, index)
        plain = {
            joined(CODE, {index: held[index] for index in some}, blob.size_bytes)
            for some in combinations(held, CODE.data)
        }
        assert len(plain) == 1
        found |= safetensors.numpy.load(plain.pop())
    by_bytes = {array.tobytes() for array in found.values()}
    assert {array.tobytes() for array in state.values()} <= by_bytes


def test_a_save_is_spread_over_six_nodes_and_any_four_fragments_bring_it_back(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    state = _state(1)
    done = client.checkpoints("spread", pool="prod").save(step=1, state=state).wait("L3")
    assert (str(done.level), done.degraded) == ("L3", False)
    names = Counter(path.name.partition(".")[0] for path in cluster.fragments())
    blobs = _blobs(client, "spread", 1)
    assert {blob.code for blob in blobs} == {MIRROR, "4+2"}
    for blob in blobs:
        nodes = [holder.node_id for holder in blob.holders]
        wanted = CODE.parity + 1 if blob.code == MIRROR else CODE.total
        assert len(set(nodes)) == len(nodes) == names[blob.id] == wanted
    _check(cluster, client, "spread", 1, state)


def test_over_grpc_alone_it_is_the_same(
    cluster: LocalCluster, client: sdrs.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdrs.transfer.routes.DATA_CHANNEL_BYTES", 1 << 60)
    state = _state(2)
    done = client.checkpoints("plain", pool="prod").save(step=1, state=state).wait("L3")
    assert (str(done.level), done.degraded) == ("L3", False)
    assert "4+2" in {blob.code for blob in _blobs(client, "plain", 1)}
    _check(cluster, client, "plain", 1, state)


@pytest.mark.parametrize("visit", [1, 12])
def test_a_member_that_is_killed_in_mid_save_costs_the_save_nothing_but_its_fragments(
    cluster: LocalCluster, client: sdrs.Cluster, visit: int
) -> None:
    primary = _saving_node(cluster, client)
    victim = next(node for node in cluster.nodes if node is not primary)
    _points(victim).write_text(f"fragment.write=kill@{visit}")
    state = _state(visit)
    ckpts = client.checkpoints(f"bereft-{visit}", pool="prod")
    done = ckpts.save(step=1, state=state).wait("L3")
    victim.wait_for_death()
    assert (str(done.level), done.degraded) == ("L3", True)
    assert ckpts.get(1).degraded
    _check(cluster, client, ckpts.job, 1, state)


@pytest.mark.parametrize("point", ["stripe.encoded=kill@7", "coded.cut=kill@3", "seal.confirmed=kill"])
def test_a_save_outlives_its_primary(cluster: LocalCluster, client: sdrs.Cluster, point: str) -> None:
    primary = _saving_node(cluster, client)
    _points(primary).write_text(point)
    job = f"orphaned-{point.partition('.')[0]}-{point.partition('=')[0].partition('.')[2]}"
    state = _state(3)
    done = client.checkpoints(job, pool="prod").save(step=1, state=state).wait("L3")
    primary.wait_for_death()
    assert (str(done.level), done.degraded) == ("L3", True)
    for blob in _blobs(client, job, 1):
        assert primary.name not in {holder.node_id for holder in blob.holders}
    _check(cluster, client, job, 1, state)


def test_with_four_nodes_left_no_node_has_more_than_can_be_lost(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    """P10."""
    lost = cluster.nodes[4:]
    for node in lost:
        node.kill()
    names = {node.name for node in lost}
    wait_for(
        lambda: all(names.isdisjoint(group.members) for group in client.groups("prod") if group.primary not in names),
        "the groups to go on without them",
        30,
    )
    state = _state(4)
    done = client.checkpoints("crowded", pool="prod").save(step=1, state=state).wait("L3")
    assert (str(done.level), done.degraded) == ("L3", True)
    for blob in _blobs(client, "crowded", 1):
        crowd = sorted(Counter(holder.node_id for holder in blob.holders).values())
        assert crowd == ([1, 1, 1] if blob.code == MIRROR else [1, 1, 2, 2])
    _check(cluster, client, "crowded", 1, state)


def test_waiting_for_more_than_a_pool_promises_is_refused(client: sdrs.Cluster) -> None:
    with pytest.raises(errors.UnsupportedError, match="promises L1"):
        client.checkpoints("modest").save(step=1, state={"x": 1}).wait("L3")
