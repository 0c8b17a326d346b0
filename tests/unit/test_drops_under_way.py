"""A drop goes on at the node when the controller gave up waiting for it: what it will take does not count (P14)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from sdrs_core.cluster import Authority
from sdrs_core.errors import SdrsError, StaleTermError, UnavailableError
from sdrs_core.ids import BlobId, DiskId, NodeId, SaveId
from sdrs_proto.signing import signature
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.rpc.storage_service import StorageService
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.fragment import StoredFragment

SECRET = "secret"
KEPT, LEAVING = BlobId("a" * 32), BlobId("b" * 32)
INDEX = 2
NOTHING = cast(Any, None)


class Node:
    """A store, an identity and a puller in one: a drop waits in ``delete`` until the test lets it go on."""

    node_id, secret = NodeId("n1"), SECRET

    def __init__(self) -> None:
        self.held = {KEPT, LEAVING}
        self.deleting = threading.Event()
        self.may_delete = threading.Event()
        self.refusal: SdrsError | None = None

    def obey(self, authority: Authority) -> None:
        if self.refusal:
            raise self.refusal

    def lookup(self, blob_id: BlobId, index: int) -> StoredFragment | None:
        return (
            StoredFragment(blob_id, index, SaveId("c" * 32), DiskId("d" * 32), 1, "h", 0.0, "mirror", 1, "h")
            if self.holds(blob_id)
            else None
        )

    def holds(self, blob_id: BlobId) -> bool:
        return blob_id in self.held

    def delete(self, blob_id: BlobId, index: int) -> bool:
        self.deleting.set()
        assert self.may_delete.wait(30)
        self.held.discard(blob_id)
        return True

    def made_bytes(self, key: object) -> int | None:
        return None

    async def pull(self, request: pb.PullFragmentRequest) -> StoredFragment:
        """As a node that has it already, or fetches it."""
        self.held.add(BlobId(request.intent.blob_id))
        found = self.lookup(BlobId(request.intent.blob_id), request.intent.fragment_index)
        assert found
        return found


def service_of(node: Node) -> StorageService:
    return StorageService(
        cast(Any, node),
        NOTHING,
        cast(Any, node),
        NOTHING,
        NOTHING,
        writing=NOTHING,
        sealing=NOTHING,
        pulling=cast(Any, node),
        uploading=NOTHING,
        verifying=NOTHING,
        reads=NOTHING,
        repair_reads=NOTHING,
        read_workers=NOTHING,
        looks=Workers("looks", 4),
    )


def drop() -> pb.DropFragmentsRequest:
    request = pb.DropFragmentsRequest(fragments=[pb.FragmentName(blob_id=LEAVING, fragment_index=INDEX)])
    request.signature = signature(SECRET, request)
    return request


def pull() -> pb.PullFragmentRequest:
    request = pb.PullFragmentRequest(intent=pb.WriteIntent(blob_id=LEAVING, fragment_index=INDEX))
    request.signature = signature(SECRET, request)
    return request


async def told_held(service: StorageService) -> set[str]:
    names = [pb.FragmentName(blob_id=blob_id, fragment_index=INDEX) for blob_id in (KEPT, LEAVING)]
    response = await service.lookup_fragments(pb.LookupFragmentsRequest(fragments=names))
    return {held.blob_id for held in response.held}


def test_a_copy_that_is_being_dropped_is_neither_told_nor_taken_for_one_that_was_fetched() -> None:
    async def run() -> None:
        node = Node()
        service = service_of(node)
        dropping = asyncio.create_task(service.drop_fragments(drop()))
        try:
            await asyncio.to_thread(node.deleting.wait, 30)
            assert await told_held(service) == {KEPT}
            with pytest.raises(UnavailableError, match="being dropped"):
                await service.pull_fragment(pull())
        finally:
            node.may_delete.set()
            await dropping
        assert (await service.pull_fragment(pull())).held.blob_id == LEAVING
        assert await told_held(service) == {KEPT, LEAVING}

    asyncio.run(run())


def test_a_drop_that_is_refused_leaves_the_copy_counting() -> None:
    async def run() -> None:
        node = Node()
        node.refusal = StaleTermError("a newer controller was seen")
        service = service_of(node)
        with pytest.raises(StaleTermError):
            await service.drop_fragments(drop())
        assert await told_held(service) == {KEPT, LEAVING}

    asyncio.run(run())
