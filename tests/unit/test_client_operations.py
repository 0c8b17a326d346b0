"""The operators' half of the SDK, where it decides something itself; the verbs' tests have the rest."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

import sdrs
from sdrs import aio
from sdrs.operations import Operations
from sdrs.pools import Pools
from sdrs.scrubs import Scrubs
from sdrs.upkeep import Upkeep
from sdrs_core.cluster import ReadPolicy
from sdrs_core.errors import InvalidArgumentError
from tests.support.fake_controller import FakeController, serving


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with serving(FakeController()) as controller:
        yield controller


def test_what_can_never_work_is_told_without_asking(controller: FakeController) -> None:
    with sdrs.connect(controller.url) as cluster:
        asked_count = len(controller.requests)
        with pytest.raises(InvalidArgumentError, match="round-robin"):
            cluster.create_pool("fast", "L2", read_policy="nearest")
        with pytest.raises(InvalidArgumentError, match="limit"):
            cluster.history(limit=0)
        with pytest.raises(InvalidArgumentError, match="drain_seconds"):
            cluster.switchover("fast-1", drain_seconds=-1)
        with pytest.raises(InvalidArgumentError, match="host:port"):
            cluster.rebuild_meta([])
        with pytest.raises(InvalidArgumentError, match="mirror_ratio"):
            cluster.create_pool("deep", "L3", ec="4+2", mirror_pool="fast", mirror_ratio=1.5)
        with pytest.raises(InvalidArgumentError, match="4\\+2"):
            cluster.update_pool("fast", ec="4-2")
        with pytest.raises(InvalidArgumentError, match="quota_bytes"):
            cluster.update_pool("fast", quota_bytes=-1)
        with pytest.raises(InvalidArgumentError, match="one or more nodes"):
            cluster.expand_pool("fast", "node-1")
        with pytest.raises(InvalidArgumentError, match="one or more nodes"):
            cluster.shrink_pool("fast", [])
        with pytest.raises(InvalidArgumentError, match="bytes_per_second"):
            cluster.set_repair(bytes_per_second=-1)
        with pytest.raises(InvalidArgumentError, match="concurrency"):
            cluster.set_repair(concurrency=0)
        assert len(controller.requests) == asked_count


@pytest.mark.parametrize("given", ["least-response-time", "least_response_time", ReadPolicy.LEAST_RESPONSE_TIME])
def test_a_read_policy_is_taken_however_it_is_written(controller: FakeController, given: str) -> None:
    with sdrs.connect(controller.url) as cluster:
        made = cluster.create_pool("a", "L2", read_policy=given)
    assert made.pool.read_policy is ReadPolicy.LEAST_RESPONSE_TIME


def test_the_cluster_tells_how_its_copies_are(controller: FakeController) -> None:
    controller.cluster.paused_because = "work"
    controller.cluster.degraded_blob_count = 3
    controller.cluster.repair.waiting_bytes = 7
    with sdrs.connect(controller.url) as cluster:
        info = cluster.info()
    assert (info.paused_because, info.degraded_blob_count, info.repair.waiting_bytes) == ("work", 3, 7)
    assert info.store == "sqlite"


def test_each_operation_has_its_async_twin(controller: FakeController) -> None:
    operations = {
        name
        for part in (Operations, Pools, Upkeep, Scrubs)
        for name, _ in inspect.getmembers(part, inspect.isfunction)
        if not name.startswith("_")
    } - {"process"}
    assert {"switchover", "expand_pool", "drain_node", "start_scrub"} <= operations
    assert {name for name in operations if not inspect.iscoroutinefunction(getattr(aio.Cluster, name, None))} == set()

    async def ask() -> tuple[int, str]:
        async with aio.connect(controller.url) as cluster:
            return len(await cluster.groups()), (await cluster.switchover("fast-1")).primary

    assert asyncio.run(ask()) == (1, "node-2")
