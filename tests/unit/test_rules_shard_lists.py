"""What readers are told of a shard: all of its blobs, mirrors too, and the nodes that can be asked for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from sdrs_core.checkpoints import Blob
from sdrs_core.ids import BlobId, NodeId
from sdrs_proto.convert import shard_from
from sdrs_proto.v1.control_pb2 import ListShardsRequest
from sdrs_storaged.control.archives import Archives
from sdrs_storaged.rpc.control_service import ControlService
from tests.support.mirrors import FAST, A, B, C, holder, mirrored, started_with_mirrors, write

GONE = NodeId("node-gone")
NO_ARCHIVES = SimpleNamespace(exporter=None, importer=None, rebuilder=None)


def test_holders_of_mirrors_are_named_and_one_that_was_removed_is_left_out() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 1, [A, B])
        (shard,) = await harness.shards(save)
        blob = shard.blobs[0]
        mirror = Blob(BlobId("d" * 32), blob.ordinal, blob.size_bytes, blob.hash, holders=(holder(C), holder(GONE)))
        await write(harness, replace(shard, mirrors=(mirror,)))
        service = ControlService(harness.controller, cast(Archives, NO_ARCHIVES), lambda: "")
        answer = await service.list_shards(ListShardsRequest(save_id=save.save_id, rank=0, pool=FAST))
        assert {node.id for node in answer.nodes} == {A, B, C}
        assert shard_from(answer.shards[0]).mirrors == (mirror,)

    asyncio.run(run())
