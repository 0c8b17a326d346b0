"""What a controller asks of nodes about the catalog itself (P19), over the service ``Storage``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sdrs_core.cluster import Node
from sdrs_core.codes import MIRROR, parse_code
from sdrs_core.errors import CorruptDataError
from sdrs_core.ids import BlobId, ClusterId, DiskId, SaveId, check_name, check_random_id, check_step
from sdrs_core.packing import parse_packing
from sdrs_core.snapshots import SnapshotId
from sdrs_proto import convert
from sdrs_proto.limits import MAX_PAGE_SIZE
from sdrs_proto.services import STORAGE
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.control.witnesses import Testimony, WitnessedFragment
from sdrs_storaged.rpc.channels import Channels, call, stream

_LONG_SECONDS = 60.0
_SNAPSHOT_SECONDS = 1800.0


class WitnessClient:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def store_snapshot(self, node: Node, snapshot: SnapshotId, pieces: AsyncIterator[bytes]) -> None:
        async def chunks() -> AsyncIterator[pb.SnapshotChunk]:
            yield pb.SnapshotChunk(id=convert.snapshot_id_to(snapshot))
            async for piece in pieces:
                yield pb.SnapshotChunk(data=piece)

        stub = self._channels.stub(node.endpoints.grpc, STORAGE)
        await call(stub.store_snapshot, chunks(), f"node {node.id}", _SNAPSHOT_SECONDS)

    async def ask(self, address: str) -> Testimony:
        stub = self._channels.stub(address, STORAGE)
        response = await call(stub.list_snapshots, pb.ListSnapshotsRequest(), f"node at {address}", _LONG_SECONDS)
        node = convert.node_from(response.node)
        check_name(node.id, "node id")
        return Testimony(
            node,
            ClusterId(response.cluster_id),
            convert.authority_from(response.authority),
            tuple(convert.snapshot_id_from(snapshot) for snapshot in response.snapshots),
        )

    async def read_snapshot(self, address: str, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        request = pb.ReadSnapshotRequest(id=convert.snapshot_id_to(snapshot))
        stub = self._channels.stub(address, STORAGE)
        async for chunk in stream(stub.read_snapshot, request, f"node at {address}", _SNAPSHOT_SECONDS):
            yield chunk.data

    async def list_fragments(self, address: str, after: str) -> tuple[list[WitnessedFragment], str]:
        request = pb.ListFragmentsRequest(page_size=MAX_PAGE_SIZE, page_token=after, with_origin=True)
        stub = self._channels.stub(address, STORAGE)
        response = await call(stub.list_fragments, request, f"node at {address}", _LONG_SECONDS)
        return [_fragment_from(info, address) for info in response.fragments], response.next_page_token


def _fragment_from(info: pb.FragmentInfo, address: str) -> WitnessedFragment:
    if not info.HasField("origin") or not info.hash:
        raise CorruptDataError(
            f"the node at {address} does not tell what fragment {info.blob_id} is of: upgrade it, or leave it out"
        )
    origin = info.origin
    # A node of an earlier version tells neither of these, and has whole copies only.
    code = info.code or origin.code or MIRROR
    parse_code(code)
    parse_packing(origin.packing)
    return WitnessedFragment(
        blob_id=BlobId(check_random_id(info.blob_id, "blob id")),
        fragment_index=info.fragment_index,
        save_id=SaveId(check_random_id(info.save_id, "save id")),
        disk_id=DiskId(info.disk_id),
        size_bytes=info.size_bytes,
        hash=info.hash,
        created_unix_ms=info.created_unix_ms,
        job=check_name(origin.job, "job"),
        step=check_step(origin.step),
        attempt=origin.attempt,
        rank=origin.rank,
        ordinal=origin.ordinal,
        world_size=origin.world_size,
        blob_count=origin.blob_count,
        kind=str(convert.kind_from(origin.kind)) if origin.kind else "",
        pool=origin.pool,
        code=code,
        source_size_bytes=info.source_size_bytes or info.size_bytes,
        source_hash=info.source_hash or info.hash,
        save_pool=origin.save_pool,
        packing=origin.packing,
    )
