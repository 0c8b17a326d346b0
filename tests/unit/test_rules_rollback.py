"""P18: a node that saw a later history, or a store that went back, stops every change and the collector."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from sdrs_core.cluster import Authority
from sdrs_core.errors import RefusedError
from sdrs_core.ids import BlobId, NodeId, SaveId, random_id
from sdrs_storaged.control.meta.store import Page
from tests.support.control import GRACE_SECONDS, JOB, NODE, Harness, node, started

OTHER = NodeId("node-2")


async def add_orphan(harness: Harness, node_id: NodeId = NODE) -> BlobId:
    blob_id = BlobId(random_id())
    harness.nodes.put(node_id, blob_id, SaveId(random_id()), harness.clock.unix_ms())
    return blob_id


def test_a_node_that_saw_a_later_history_stops_every_change_and_the_collector() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10)
        condemned = await harness.save(20)
        pending = await harness.begin(30)
        await harness.controller.catalog.delete(JOB, 20, why="test")
        await add_orphan(harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        harness.nodes.broken.add(NODE)
        await harness.collect()  # condemned and marked as dropping, but not dropped yet
        harness.nodes.broken.clear()
        await harness.collect()
        assert await harness.shards(condemned) == []
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        harness.nodes.broken.add(NODE)
        await harness.collect()
        harness.nodes.broken.clear()
        await add_orphan(harness)
        before, revision = harness.nodes.names(), await harness.store.revision()
        members = harness.controller.members
        with pytest.raises(RefusedError, match="rolled back"):
            await members.register(
                node(NODE), f"key of {NODE}", seen=Authority(members.cluster.incarnation, 0, revision + 1)
            )
        await harness.pass_time(GRACE_SECONDS + 1)
        for _ in range(3):
            with pytest.raises(RefusedError, match="rolled back"):
                await harness.collect()
        with pytest.raises(RefusedError):
            await harness.seal(pending)
        with pytest.raises(RefusedError):
            await harness.begin(40)
        assert harness.nodes.names() >= before
        assert await harness.store.revision() == revision
        assert any("rolled back" in warning for warning in harness.controller.warnings())

    asyncio.run(run())


def test_a_store_that_went_back_under_its_controller_stops_every_change_and_the_collector() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10)
        records = harness.controller.records
        past = await harness.store.revision() - 1

        async def older_page(*_: object, **__: object) -> Page:
            return Page((), past, more=False)

        with patch.object(records.store, "range", older_page):
            found, _ = await records.page("", int)  # reads go on
        assert found == []
        revision = await harness.store.revision()
        with pytest.raises(RefusedError, match="rolled back"):
            await harness.collect()
        with pytest.raises(RefusedError, match="rolled back"):
            await harness.begin(20)
        assert await harness.store.revision() == revision
        assert any("rolled back" in warning for warning in harness.controller.warnings())

    asyncio.run(run())


def test_a_node_of_a_later_incarnation_stops_every_change_too() -> None:
    async def run() -> None:
        harness = await started()
        members = harness.controller.members
        with pytest.raises(RefusedError):
            await members.register(node(NODE), f"key of {NODE}", seen=Authority(members.cluster.incarnation + 1))
        with pytest.raises(RefusedError):
            await harness.begin(10)

    asyncio.run(run())


def test_a_collection_that_is_under_way_stops_when_the_controller_is_frozen() -> None:
    async def run() -> None:
        harness = await started()
        await add_orphan(harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()

        async def freeze() -> None:
            harness.controller.records.frozen_because = "a node knows better"

        harness.nodes.on_list = freeze
        with pytest.raises(RefusedError):
            await harness.collect()
        assert len(harness.nodes.names()) == 1

    asyncio.run(run())
