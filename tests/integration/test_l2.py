"""L2 through the SDK on real daemons: what users and operators of a pool with two copies see."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import sdrs
from sdrs import errors
from sdrs.restore import shard_reader
from sdrs_proto.convert import read_policy_from
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.states import make_state, same
from tests.support.waiting import wait_for

QUICK = {"settle_seconds": 0.5, "repair_after_seconds": 1, "repair_last_copy_after_seconds": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("l2")
    with running_cluster(folder, node_count=3, controller={**QUICK, "repair_interval_seconds": 1}) as cluster:
        with cluster.connect() as client:
            client.create_pool("fast", "L2")
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    cluster.wait_until_up()
    with cluster.connect() as client:
        wait_for(lambda: _is_whole(client), "all groups to be whole")
        yield client


def _is_whole(client: sdrs.Cluster) -> bool:
    groups = client.groups("fast")
    return all(set(g.members) == set(g.home) and g.primary == g.home[0] and not g.problem for g in groups)


def _holders(client: sdrs.Cluster, job: str, step: int) -> list[set[str]]:
    shards = client.checkpoints(job).shards(step)
    return [{holder.node_id for holder in blob.holders} for shard in shards for blob in shard.blobs]


def test_a_save_is_on_two_nodes_and_comes_back_from_either(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    ckpts = client.checkpoints("pair", pool="fast")
    done = ckpts.save(step=1, state=make_state(1)).wait("L2")
    assert str(done.level) == "L2"
    holders = _holders(client, "pair", 1)
    assert holders
    assert all(len(nodes) == 2 for nodes in holders)
    assert ckpts.verify(1).ok
    by_name = {daemon.name: daemon for daemon in cluster.nodes}
    for name in sorted(holders[0]):
        by_name[name].kill()
        try:
            assert same(ckpts.restore(), make_state(1))
        finally:
            by_name[name].start()
            cluster.wait_until_up()


@pytest.mark.parametrize("policy", ["round_robin", "least_response_time", "weighted_response_time"])
def test_reads_are_right_under_every_policy(client: sdrs.Cluster, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.update_pool("fast", read_policy=policy).pool.read_policy == policy
    ckpts = client.checkpoints(f"read-{policy.replace('_', '-')}", pool="fast")
    ckpts.save(step=1, state=make_state(1)).wait("L2")
    told: list[str] = []

    class ToldReader(shard_reader.ShardReader):
        def __init__(self, process: Any, save: Any, record: Any, count: Any) -> None:
            told.append(read_policy_from(record.read_policy))
            super().__init__(process, save, record, count)

    monkeypatch.setattr(shard_reader, "ShardReader", ToldReader)
    for _ in range(3):
        assert same(ckpts.restore(), make_state(1))
    assert told == [policy] * 3


def test_no_save_fails_while_primaries_are_switched_over(client: sdrs.Cluster) -> None:
    ckpts = client.checkpoints("moving", pool="fast")
    over = threading.Event()
    saved: list[int] = []
    failures: list[BaseException] = []

    def save_on() -> None:
        try:
            while not over.is_set():
                step = len(saved) + 1
                ckpts.save(step=step, state=make_state(step)).wait("L2")
                saved.append(step)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=save_on)
    writer.start()
    try:
        for _ in range(2):
            for group in client.groups("fast"):
                before = len(saved)
                moved = client.switchover(group.id)
                assert moved.primary != group.primary
                wait_for(lambda before=before: failures or len(saved) > before, "a save after the move")
    finally:
        over.set()
        writer.join()
    assert failures == []
    assert sorted(checkpoint.step for checkpoint in ckpts.list()) == saved
    for group in client.groups("fast"):
        client.switchover(group.id, to=group.id.partition(":")[2])


def test_a_pool_that_may_be_degraded_says_so_and_rises_by_itself(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    """I6."""
    client.create_pool("thrifty", "L2", allow_degraded=True)
    ckpts = client.checkpoints("thrifty", pool="thrifty")
    for daemon in cluster.nodes[1:]:
        daemon.kill()
    try:
        done = ckpts.save(step=1, state=make_state(1)).wait()
        assert str(done.level) == "L1"
        with pytest.raises(errors.DeadlineExceededError):
            ckpts.save(step=2, state=make_state(2)).wait("L2", timeout=1)
    finally:
        for daemon in cluster.nodes[1:]:
            daemon.start()
    wait_for(lambda: str(ckpts.get(1).level) == "L2", "the level to rise", 60)
    assert all(len(nodes) == 2 for nodes in _holders(client, "thrifty", 1))
    assert same(ckpts.restore(step=1), make_state(1))


def test_metrics_tell_of_groups_and_failovers(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    victim = cluster.nodes[0]
    before = _figure(client, r"sdrs_failovers_total (\S+)")
    epoch = _figure(client, r'sdrs_controller_group_epoch{group="fast:node-1",pool="fast"} (\S+)')
    victim.kill()
    try:
        wait_for(lambda: _figure(client, r"sdrs_failovers_total (\S+)") > before, "the failover to be counted")
        assert _figure(client, r'sdrs_controller_group_epoch{group="fast:node-1",pool="fast"} (\S+)') > epoch
        assert _figure(client, r'sdrs_nodes{state="down"} (\S+)') == 1
        assert _figure(client, r"sdrs_automatic_failover (\S+)") == 1
        event = next(event for event in client.history(group="fast:node-1") if event.kind == "primary_promoted")
        assert event.node_id != "node-1"
    finally:
        victim.start()
    node = next(node for node in client.nodes() if node.id == "node-2")
    text = _metrics(node.endpoints.metrics)
    assert "sdrs_group_epoch{" in text
    assert "sdrs_relayed_bytes_total" in text


def _figure(client: sdrs.Cluster, pattern: str) -> float:
    found = re.search("^" + pattern, _metrics(client.info().metrics_endpoint), re.MULTILINE)
    assert found, pattern
    return float(found[1])


def _metrics(endpoint: str) -> str:
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=5) as response:
        return bytes(response.read()).decode()
