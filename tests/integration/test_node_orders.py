"""What the controller asks of nodes, over a real socket: what arrives is what was meant, and signed."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from sdrs_core.checkpoints import Blob, ContentKind, Holder, Save, SaveState, Shard
from sdrs_core.cluster import Authority, Endpoints, Node, Order
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import BlobId, DiskId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_proto.services import STORAGE, handler
from sdrs_proto.signing import signature
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.control.copier import HeldFragment, Pull
from sdrs_storaged.rpc.channels import Channels
from sdrs_storaged.rpc.edge import serve
from sdrs_storaged.rpc.node_client import NodeClient

BLOB, SAVE, DISK = BlobId("b" * 32), SaveId("a" * 32), DiskId("d" * 32)
HELD = pb.HeldFragment(blob_id=BLOB, fragment_index=3, save_id=SAVE, size_bytes=10, hash="hash", disk_id=DISK)
ORDER = Order(Authority(2, 7, 99), "secret")


class Storage:
    """Answers, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[pb.LookupFragmentsRequest | pb.PullFragmentRequest] = []

    def __getattr__(self, name: str) -> object:
        async def unexpected(_: object) -> None:
            raise AssertionError(f"{name} was not expected")

        return unexpected

    async def lookup_fragments(self, request: pb.LookupFragmentsRequest) -> pb.LookupFragmentsResponse:
        self.asked.append(request)
        return pb.LookupFragmentsResponse(held=[HELD])

    async def pull_fragment(self, request: pb.PullFragmentRequest) -> pb.PullFragmentResponse:
        self.asked.append(request)
        if not request.sources:
            raise UnavailableError("no source answers")
        return pb.PullFragmentResponse(held=HELD)


def node(name: str, address: str) -> Node:
    return Node(NodeId(name), Endpoints(address, "127.0.0.1:2", "", "", "host"), "rack-1", 1, "test")


def a_pull() -> Pull:
    save = Save(
        save_id=SAVE,
        job=JobName("llm-7b"),
        step=1000,
        attempt=4,
        world_size=8,
        pool=PoolName("fast"),
        kind=ContentKind.STATE,
        state=SaveState.COMMITTED,
        level=Level.L2,
        size_bytes=30,
        created_unix_ms=1,
    )
    blob = Blob(BLOB, 1, 10, "hash", holders=(Holder(NodeId("a"), DISK, 3, "hash"),))
    return Pull(save, Shard(SAVE, 5, ContentKind.STATE, 30, "content", (blob, blob, blob)), blob, 3, "hash")


def test_orders_to_copy_arrive_whole_and_signed() -> None:
    async def run() -> None:
        server, storage, channels = grpc.aio.server(), Storage(), Channels()
        server.add_generic_rpc_handlers((handler(STORAGE, storage, serve),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            client, target = NodeClient(channels), node("b", address)
            expected = HeldFragment(BLOB, 3, SAVE, 10, "hash", DISK)
            assert await client.lookup_fragments(target, [(BLOB, 3)]) == [expected]
            assert await client.pull_fragment(target, a_pull(), [node("a", "127.0.0.1:1")], ORDER) == expected
            with pytest.raises(UnavailableError, match="no source answers"):
                await client.pull_fragment(target, a_pull(), [], ORDER)
        finally:
            await channels.close()
            await server.stop(None)
        lookup, pull, _ = storage.asked
        assert [(name.blob_id, name.fragment_index) for name in lookup.fragments] == [(BLOB, 3)]
        assert isinstance(pull, pb.PullFragmentRequest)
        assert pull.signature == signature("secret", pull)
        assert (pull.authority.incarnation, pull.authority.term, pull.authority.revision) == (2, 7, 99)
        assert (pull.fragment_index, pull.hash, [source.id for source in pull.sources]) == (3, "hash", ["a"])
        intent = pull.intent
        assert (intent.save_id, intent.blob_id, intent.ordinal, intent.size_bytes) == (SAVE, BLOB, 1, 10)
        assert (intent.job, intent.step, intent.attempt, intent.rank) == ("llm-7b", 1000, 4, 5)
        assert (intent.world_size, intent.blob_count, intent.pool) == (8, 3, "fast")
        assert (intent.group_id, intent.epoch) == ("", 0)

    asyncio.run(run())
