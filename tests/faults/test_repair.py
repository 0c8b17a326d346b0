"""Copies by themselves, on real daemons: a node is killed and comes back, a copy rots, another is lost unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sdrs
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.states import make_state, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for

PAYLOAD_OFFSET = 4096
SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    quick = {"repair_interval_seconds": 0.5, "repair_after_seconds": 0, "repair_last_copy_after_seconds": 0}
    with running_cluster(tmp_path_factory.mktemp("repair"), node_count=3, controller=quick) as running:
        with running.connect() as client:
            client.create_pool("fast", level="L2", mirrors=2)
            client.create_pool("everywhere", level="L2", mirrors=3)
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with cluster.connect() as connected:
        yield connected


def holders(ckpts: sdrs.Checkpoints, step: int) -> set[str]:
    """Who is on record for each blob of the step; all blobs must agree, so that there is one answer."""
    sets = {frozenset(h.node_id for h in blob.holders) for shard in ckpts.shards(step) for blob in shard.blobs}
    return set(sets.pop()) if len(sets) == 1 else set()


def copies(cluster: LocalCluster, ckpts: sdrs.Checkpoints, step: int) -> dict[str, Path]:
    """The files of a step's first blob, by node."""
    blob_id = ckpts.shards(step)[0].blobs[0].id
    return {path.parents[3].name: path for path in cluster.fragments() if path.name.startswith(blob_id)}


def test_a_killed_nodes_copies_are_made_elsewhere_and_it_counts_again_when_it_is_back(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    ckpts = client.checkpoints("killed", pool="fast")
    ckpts.save(step=1, state=make_state(1)).wait("L2")
    before = holders(ckpts, 1)
    assert len(before) == 2
    [lost] = [node for node in cluster.nodes if node.name == max(before)]
    lost.kill()
    wait_for(lambda: len(holders(ckpts, 1)) == 3, "the copy to be made on the third node", SECONDS)
    wait_for(lambda: client.info().degraded_blob_count == 0, "nothing to be degraded any more", SECONDS)
    assert same(ckpts.restore(step=1), make_state(1))
    lost.start()
    wait_for(lambda: len(holders(ckpts, 1)) == 2, "the copy too many to be let go", SECONDS)
    wait_for(lambda: set(copies(cluster, ckpts, 1)) == holders(ckpts, 1), "disks to hold what is on record", SECONDS)
    assert ckpts.verify(1).ok
    cluster.wait_until_up()


def test_a_copy_that_rots_is_found_replaced_and_no_damage(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    ckpts = client.checkpoints("rotten", pool="fast")
    ckpts.save(step=1, state=make_state(2)).wait("L2")
    name, path = copies(cluster, ckpts, 1).popitem()
    flip_bit(path, PAYLOAD_OFFSET + 1000)
    found = ckpts.verify(1)
    assert [(problem.node_id, problem.undecided) for problem in found.problems] == [(name, False)]
    assert "being replaced" in found.problems[0].problem
    assert ckpts.get(1).damage == ""
    wait_for(lambda: len(holders(ckpts, 1)) == 2, "the copy to be made again", SECONDS)
    assert ckpts.verify(1).ok
    assert same(ckpts.restore(step=1), make_state(2))


def _delete(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("lose", [_delete, _empty], ids=["deleted", "emptied"])
def test_what_a_node_lost_while_it_was_away_is_found_when_it_is_back(
    cluster: LocalCluster, client: sdrs.Cluster, lose: Callable[[Path], None]
) -> None:
    # On all nodes, so that nobody else can make up for it meanwhile.
    ckpts = client.checkpoints(f"away{lose.__name__}", pool="everywhere")
    ckpts.save(step=1, state=make_state(3)).wait("L2")
    name, path = copies(cluster, ckpts, 1).popitem()
    [node] = [node for node in cluster.nodes if node.name == name]
    assert node.stop() == 0
    lose(path)
    node.start()
    cluster.wait_until_up()

    def is_mended() -> bool:
        on_record, files = holders(ckpts, 1), copies(cluster, ckpts, 1)
        return len(on_record) == 3 and all(node_id in files and _size_bytes(files[node_id]) for node_id in on_record)

    wait_for(is_mended, "the lost copy to be replaced", SECONDS)
    assert ckpts.verify(1).ok
    assert same(ckpts.restore(step=1), make_state(3))
