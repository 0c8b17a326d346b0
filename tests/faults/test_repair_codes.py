"""Fragments of a code by themselves, on real daemons: rebuilt after a loss, moved off a drained node, made anew in
another form, mirrored in a second pool and brought back from there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sdrs
from sdrs_core.checkpoints import Blob
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

SECONDS = 60.0
SIZE_BYTES = 5 * MIB + 1234


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    quick = {
        "repair_interval_seconds": 0.5,
        "repair_after_seconds": 0,
        "repair_last_copy_after_seconds": 0,
        "grace_seconds": 0,
    }
    with running_cluster(tmp_path_factory.mktemp("codes"), node_count=5, controller=quick) as running:
        with running.connect() as client:
            client.create_pool("deep", level="L3", ec="2+1")
            client.create_pool("spare", level="L2", mirrors=2)
            client.create_pool("doubled", level="L3", ec="2+1", mirror_pool="spare", mirror_ratio=0.5)
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with cluster.connect() as connected:
        yield connected


def blobs(ckpts: sdrs.Checkpoints, step: int) -> list[Blob]:
    return [blob for shard in ckpts.shards(step) for blob in shard.blobs]


def large(ckpts: sdrs.Checkpoints, step: int) -> Blob:
    return max(blobs(ckpts, step), key=lambda blob: blob.size_bytes)


def places(blob: Blob) -> set[tuple[str, int]]:
    return {(holder.node_id, holder.fragment_index) for holder in blob.holders if not holder.dropping}


def files(cluster: LocalCluster, blob: Blob) -> set[tuple[str, int]]:
    """Who has which fragment, in truth."""
    found = [path for path in cluster.fragments() if path.name.startswith(blob.id)]
    return {(path.parents[3].name, int(path.name.rpartition(".")[2])) for path in found}


def daemon(cluster: LocalCluster, name: str) -> DaemonProcess:
    return next(node for node in cluster.nodes if node.name == name)


def test_a_killed_nodes_fragments_are_rebuilt_and_one_too_many_goes_when_it_is_back(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    ckpts = client.checkpoints("killed", pool="deep")
    state = make_state(1, SIZE_BYTES)
    ckpts.save(step=1, state=state).wait("L3")
    before = large(ckpts, 1)
    assert (before.code, len(places(before))) == ("2+1", 3)
    name = max(places(before))[0]
    daemon(cluster, name).kill()
    wait_for(
        lambda: {index for node, index in places(large(ckpts, 1)) if node != name} == {0, 1, 2},
        "the lost fragment to be rebuilt",
        SECONDS,
    )
    assert same(ckpts.restore(step=1), state)
    daemon(cluster, name).start()
    cluster.wait_until_up()
    wait_for(lambda: len(places(large(ckpts, 1))) == 3, "what is too many to be let go", SECONDS)
    wait_for(lambda: files(cluster, before) == places(large(ckpts, 1)), "disks to hold what is on record", SECONDS)
    assert ckpts.verify(1).ok


def test_a_drained_node_is_emptied_and_everything_can_be_read_meanwhile(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    ckpts = client.checkpoints("drained", pool="deep")
    state = make_state(2, SIZE_BYTES)
    ckpts.save(step=1, state=state).wait("L3")
    name = min(places(large(ckpts, 1)))[0]
    client.drain_node(name)
    try:

        def is_empty() -> bool:
            assert same(ckpts.restore(step=1), state)
            return not any(path.parents[3].name == name for path in cluster.fragments())

        wait_for(is_empty, f"{name} to hold nothing any more", SECONDS)
        assert {index for _, index in places(large(ckpts, 1))} == {0, 1, 2}
        assert ckpts.verify(1).ok
    finally:
        client.drain_node(name, cancel=True)


def test_a_pool_that_is_given_another_form_gets_it_and_what_was_before_goes(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    client.create_pool("changing", level="L2", mirrors=2)
    ckpts = client.checkpoints("changing", pool="changing")
    state = make_state(3, SIZE_BYTES)
    ckpts.save(step=1, state=state).wait("L2")
    for change, code in (({"level": "L3", "ec": "2+1"}, "2+1"), ({"ec": "3+1"}, "3+1"), ({"level": "L2"}, "mirror")):
        before = large(ckpts, 1)
        client.update_pool("changing", **change)  # type: ignore[arg-type]
        wait_for(lambda code=code: large(ckpts, 1).code == code, f"the blob to be stored as {code}", SECONDS)
        after = large(ckpts, 1)
        assert (after.hash, after.size_bytes) == (before.hash, before.size_bytes)
        assert after.id != before.id
        assert files(cluster, after) >= places(after)
        assert same(ckpts.restore(step=1), state)
        wait_for(lambda before=before: files(cluster, before) == set(), "the old fragments to be collected", SECONDS)
        assert ckpts.verify(1).ok


def test_what_too_many_nodes_lost_comes_back_from_the_mirror(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    ckpts = client.checkpoints("doubled", pool="doubled")
    state = make_state(4, SIZE_BYTES)
    ckpts.save(step=1, state=state).wait("L3")
    wait_for(lambda: ckpts.get(1).mirror_pool == "spare", "the mirror to be there", SECONDS)
    own = large(ckpts, 1)
    lost = sorted(places(own))[:2]
    for name, index in lost:
        node = daemon(cluster, name)
        assert node.stop() == 0
        for path in cluster.fragments():
            if path.name == f"{own.id}.{index}":
                path.unlink()
    assert len(files(cluster, own)) == 1
    for name, _ in lost:
        daemon(cluster, name).start()
    cluster.wait_until_up()
    wait_for(lambda: len(files(cluster, large(ckpts, 1))) >= 3, "the fragments to be made again", SECONDS)
    wait_for(lambda: {index for _, index in places(large(ckpts, 1))} == {0, 1, 2}, "them to be on record", SECONDS)
    assert large(ckpts, 1).hash == own.hash
    assert (ckpts.get(1).damage, ckpts.verify(1).ok) == ("", True)
    assert same(ckpts.restore(step=1), state)
