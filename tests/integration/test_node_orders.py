"""What the controller asks of nodes, over a real socket: what arrives is what was meant, and signed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from sdrs_core.checkpoints import Blob, ContentKind, Holder, Save, SaveState, Shard, Verdict
from sdrs_core.cluster import Authority, Endpoints, Node, Order
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import BlobId, DiskId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_proto.services import STORAGE, handler
from sdrs_proto.signing import signature
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.control.copier import HeldFragment, Pull
from sdrs_storaged.control.looks import FragmentCheck
from sdrs_storaged.rpc.channels import Channels
from sdrs_storaged.rpc.edge import serve
from sdrs_storaged.rpc.node_client import NodeClient

BLOB, SAVE, DISK = BlobId("b" * 32), SaveId("a" * 32), DiskId("d" * 32)
SOURCE = BlobId("c" * 32)
HELD = pb.HeldFragment(
    blob_id=BLOB,
    fragment_index=3,
    save_id=SAVE,
    size_bytes=10,
    hash="hash",
    disk_id=DISK,
    code="4+2",
    source_size_bytes=40,
    source_hash="whole",
)
EXPECTED = HeldFragment(BLOB, 3, SAVE, 10, "hash", DISK, "4+2", 40, "whole")
HOLDER = Holder(NodeId("a"), DISK, 1, "fragment")
ORDER = Order(Authority(2, 7, 99), "secret")


class Storage:
    """Answers, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[pb.LookupFragmentsRequest | pb.PullFragmentRequest | pb.VerifyFragmentRequest] = []

    def __getattr__(self, name: str) -> object:
        async def unexpected(_: object) -> None:
            raise AssertionError(f"{name} was not expected")

        return unexpected

    async def lookup_fragments(self, request: pb.LookupFragmentsRequest) -> pb.LookupFragmentsResponse:
        self.asked.append(request)
        return pb.LookupFragmentsResponse(held=[HELD], under_way=[pb.FragmentUnderWay(made_bytes=7)])

    async def pull_fragment(self, request: pb.PullFragmentRequest) -> pb.PullFragmentResponse:
        self.asked.append(request)
        if not request.sources:
            raise UnavailableError("no source answers")
        return pb.PullFragmentResponse(held=HELD)

    async def verify_fragment(self, request: pb.VerifyFragmentRequest) -> AsyncIterator[pb.VerifyFragmentResponse]:
        self.asked.append(request)
        yield pb.VerifyFragmentResponse(checked_bytes=5)
        yield pb.VerifyFragmentResponse(checked_bytes=10, verdict=pb.FRAGMENT_VERDICT_CORRUPT, detail="a flipped bit")


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
    source = Blob(SOURCE, 1, 40, "whole", "2+1", (HOLDER,))
    blob = Blob(BLOB, 1, 40, "whole", "4+2")
    shard = Shard(SAVE, 5, ContentKind.STATE, 120, "content", (source, source, source))
    return Pull(save, shard, blob, 3, source, PoolName("second"), max_bytes_per_second=1000)


def test_orders_arrive_whole_and_signed() -> None:
    async def run() -> None:
        server, storage, channels = grpc.aio.server(), Storage(), Channels()
        server.add_generic_rpc_handlers((handler(STORAGE, storage, serve),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            client, target, sources = NodeClient(channels), node("b", address), [(node("a", "127.0.0.1:1"), HOLDER)]
            assert await client.lookup_fragments(target, [(BLOB, 3)]) == [EXPECTED]
            assert await client.pull_fragment(target, a_pull(), sources, ORDER) == EXPECTED
            with pytest.raises(UnavailableError, match="no source answers"):
                await client.pull_fragment(target, a_pull(), [], ORDER)
            checks = client.verify_fragment(
                target, BLOB, 5, "hash", code="4+2", sources=sources, max_bytes_per_second=7
            )
            assert [check async for check in checks] == [
                FragmentCheck(5, None, ""),
                FragmentCheck(10, Verdict.CORRUPT, "a flipped bit"),
            ]
            assert await client.made_bytes(target, (BLOB, 3)) == 7
        finally:
            await channels.close()
            await server.stop(None)
        lookup, pull, _, verify, _ = storage.asked
        assert isinstance(lookup, pb.LookupFragmentsRequest)
        assert [(name.blob_id, name.fragment_index) for name in lookup.fragments] == [(BLOB, 3)]
        _check_pull(pull)
        assert isinstance(verify, pb.VerifyFragmentRequest)
        assert (verify.blob_id, verify.fragment_index, verify.expected_hash) == (BLOB, 5, "hash")
        assert (verify.code, verify.max_bytes_per_second) == ("4+2", 7)
        assert _sources(verify) == [("a", 1, "fragment")]

    asyncio.run(run())


def _check_pull(pull: object) -> None:
    assert isinstance(pull, pb.PullFragmentRequest)
    assert pull.signature == signature("secret", pull)
    assert (pull.authority.incarnation, pull.authority.term, pull.authority.revision) == (2, 7, 99)
    assert (pull.hash, pull.source_blob_id, pull.source_code) == ("whole", SOURCE, "2+1")
    assert (_sources(pull), pull.max_bytes_per_second) == ([("a", 1, "fragment")], 1000)
    intent = pull.intent
    assert (intent.save_id, intent.blob_id, intent.ordinal, intent.size_bytes) == (SAVE, BLOB, 1, 40)
    assert (intent.fragment_index, intent.code) == (3, "4+2")
    assert (intent.job, intent.step, intent.attempt, intent.rank) == ("llm-7b", 1000, 4, 5)
    assert (intent.world_size, intent.blob_count) == (8, 3)
    # A mirror's header tells both pools; that of a fragment in the checkpoint's own pool tells one.
    assert (intent.pool, intent.save_pool) == ("second", "fast")
    assert (intent.group_id, intent.epoch) == ("", 0)


def _sources(request: pb.PullFragmentRequest | pb.VerifyFragmentRequest) -> list[tuple[str, int, str]]:
    return [(source.node.id, source.fragment_index, source.hash) for source in request.sources]
