"""Saves whose node or controller fails on the way: another try, another node, a clear error; never a false success."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sdrs
from sdrs import errors
from sdrs.rpc.nodes import NodeCalls
from sdrs.transfer import data_channel
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

# Nobody stages: this is about what the SDK sends by itself.
STREAMED = {"staging_bytes": 0}


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("streamed"), node_count=2, node=STREAMED) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def lone_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster without another node to go to. Tests may kill the node, and leave it up."""
    with running_cluster(tmp_path_factory.mktemp("lone"), node=STREAMED) as cluster:
        yield cluster


@pytest.fixture
def node_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the SDK called each method of nodes."""
    counts: Counter[str] = Counter()
    real = NodeCalls.call

    def call(self: NodeCalls, method: str, *args: Any, **options: Any) -> Any:
        counts[method] += 1
        return real(self, method, *args, **options)

    monkeypatch.setattr(NodeCalls, "call", call)
    return counts


def interfere(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[Callable[[], Any]], Any]) -> None:
    """Let ``act`` handle the first call of ``method``; it gets a function that makes the real call."""
    real = NodeCalls.call
    is_first = True

    def call(self: NodeCalls, name: str, *args: Any, **options: Any) -> Any:
        nonlocal is_first
        if name == method and is_first:
            is_first = False
            return act(lambda: real(self, name, *args, **options))
        return real(self, name, *args, **options)

    monkeypatch.setattr(NodeCalls, "call", call)


def holder(checkpoints: sdrs.Checkpoints, step: int) -> str:
    return str(checkpoints.shards(step)[0].blobs[0].holders[0].node_id)


def test_a_save_moves_to_another_node_when_its_own_is_gone(local_cluster: LocalCluster) -> None:
    with local_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("moving")
        checkpoints.save(1, make_state(1)).wait()
        first = holder(checkpoints, 1)
        next(node for node in local_cluster.nodes if node.name == first).kill()
        checkpoints.save(2, make_state(2)).wait(timeout=30)
        assert holder(checkpoints, 2) != first
        assert same(checkpoints.restore(), make_state(2))


def test_a_save_waits_for_its_only_node_to_come_back(lone_node: LocalCluster) -> None:
    with lone_node.connect() as cluster:
        checkpoints = cluster.checkpoints("waiting")
        lone_node.nodes[0].kill()
        saving = checkpoints.save(1, make_state(1))
        lone_node.nodes[0].start()
        assert saving.wait(timeout=30).step == 1


def test_a_node_that_stays_away_is_named(lone_node: LocalCluster) -> None:
    lone_node.nodes[0].kill()
    with (
        lone_node.connect(timeout_seconds=1) as cluster,
        pytest.raises((errors.UnavailableError, errors.SaveFailedError), match="node"),
    ):
        cluster.checkpoints("gone").save(1, make_state(1)).wait(timeout=60)
    lone_node.nodes[0].start()
    lone_node.wait_until_up()


def test_the_controller_may_restart_during_a_save(local_cluster: LocalCluster) -> None:
    with local_cluster.connect(timeout_seconds=20) as cluster:
        checkpoints = cluster.checkpoints("restarting", attempt="run:1")
        waiting = checkpoints.save(1, make_state(0), rank=0, world_size=2)
        local_cluster.controller.kill()
        other = checkpoints.save(1, make_state(1), rank=1, world_size=2)
        local_cluster.controller.start()
        assert waiting.wait(timeout=30).save_id == other.wait(timeout=30).save_id


def test_a_controller_that_is_busy_for_a_moment_is_waited_for(local_cluster: LocalCluster) -> None:
    local_cluster.controller.freeze()
    thaw = threading.Timer(0.5, local_cluster.controller.thaw)
    thaw.start()
    try:
        with local_cluster.connect() as cluster:
            assert cluster.info().controller_pid == local_cluster.controller.pid
    finally:
        thaw.join()


def test_what_is_durable_is_not_sent_again(
    lone_node: LocalCluster, monkeypatch: pytest.MonkeyPatch, node_calls: Counter[str]
) -> None:
    """P11: the node was out of reach for the seal only."""

    def refuse(real: Callable[[], Any]) -> Any:
        raise errors.UnavailableError("the seal did not arrive")

    sent: list[str] = []
    monkeypatch.setattr(data_channel, "open_channel", _counting(data_channel.open_channel, sent))
    with lone_node.connect() as cluster:
        checkpoints = cluster.checkpoints("durable")
        interfere(monkeypatch, "seal_shard", refuse)
        saving = checkpoints.save(1, {"a": make_state(1, 20 * MIB), "b": make_state(2, 20 * MIB)})
        saving.wait()
        assert len(sent) == 2, "a blob that was durable was sent twice"
        assert saving.progress().sent_bytes == saving.progress().total_bytes
        assert checkpoints.verify(1).ok


def _counting(real: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        calls.append("call")
        return real(*args, **options)

    return call


def test_a_seal_whose_answer_was_lost_is_found_again(
    shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, node_calls: Counter[str]
) -> None:
    """P6: one's own commit is success."""

    def lose_the_answer(real: Callable[[], Any]) -> Any:
        real()
        raise errors.UnavailableError("the answer was lost")

    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("lost")
        interfere(monkeypatch, "seal_shard", lose_the_answer)
        assert checkpoints.save(1, make_state(1)).wait().step == 1
        assert node_calls["seal_shard"] == 1
        assert same(checkpoints.restore(), make_state(1))


def test_bytes_that_change_on_their_way_are_sent_again(
    shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, wrong = data_channel.digest, [b"\0" * 16]
    monkeypatch.setattr(data_channel, "digest", lambda block: wrong.pop() if wrong else real(block))
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("flipped")
        checkpoints.save(1, make_state(1, 8 * MIB)).wait()
        assert not wrong
        assert same(checkpoints.restore(), make_state(1, 8 * MIB))


def test_a_slow_save_is_renewed_while_it_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        running_cluster(tmp_path, controller={"save_ttl_seconds": 1}, node=STREAMED) as local,
        local.connect() as cluster,
    ):
        begun: list[str] = []
        control, routes = cluster.process().control, cluster.process().routes
        real_call, real_send = control.call, routes.send

        def call(method: str, *args: Any, **options: Any) -> Any:
            begun.extend([method] if method == "begin_save" else [])
            return real_call(method, *args, **options)

        def send(*args: Any) -> Any:
            time.sleep(2)  # longer than the save lives unrenewed
            return real_send(*args)

        monkeypatch.setattr(control, "call", call)
        monkeypatch.setattr(routes, "send", send)
        cluster.checkpoints("slow").save(1, {"x": 1}).wait()
        assert begun == ["begin_save"], "the save expired while it was being sent"


def test_a_save_that_is_given_up_leaves_nothing_pending(
    shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(real: Callable[[], Any]) -> Any:
        raise errors.InternalError("a defect")

    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("given-up")
        interfere(monkeypatch, "seal_shard", fail)
        with pytest.raises(errors.InternalError):
            checkpoints.save(1, make_state(1)).wait()
        wait_for(lambda: cluster.info().pending_save_count == 0, "the save to be aborted")
        assert checkpoints.save(1, make_state(2)).wait().step == 1


def test_a_state_that_is_sent_from_where_it_lies_fails_in_save_itself(
    shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(real: Callable[[], Any]) -> Any:
        raise errors.InternalError("a defect")

    with shared_cluster.connect(staging_bytes=0) as cluster:
        interfere(monkeypatch, "seal_shard", fail)
        with pytest.raises(errors.InternalError):
            cluster.checkpoints("live-failure").save(1, make_state(1))
        cluster.checkpoints("live-failure").save(2, make_state(1)).wait()
