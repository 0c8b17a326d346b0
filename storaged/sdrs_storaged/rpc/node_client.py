"""What the controller asks of nodes, over the service ``Storage``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.cluster import Node, Order
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, DiskId, SaveId, random_id
from sdrs_core.stocks import fragment_bytes
from sdrs_proto import convert
from sdrs_proto.backup_convert import target_to
from sdrs_proto.limits import MAX_PAGE_SIZE
from sdrs_proto.services import STORAGE, Stub
from sdrs_proto.signing import signature
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.config import split_address
from sdrs_storaged.control.backup.orders import ProbeStep, Upload, UploadProgress
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.collector import Fragment
from sdrs_storaged.control.copier import HeldFragment, InBucket, Pull
from sdrs_storaged.control.looks import FragmentCheck
from sdrs_storaged.rpc.channels import Channels, call, stream

_LONG_SECONDS = 60.0
_PROBE_SECONDS = 0.5
_VERIFY_SECONDS = 6 * 3600.0
# Whoever waits ends it when nothing moves any more; giving the order again joins it.
_UPLOAD_SECONDS = 6 * 3600.0
_PROBE_TARGET_SECONDS = 300.0
# A copy slower than this is given up, and tried again from elsewhere.
_SLOWEST_PULL_BYTES_PER_SECOND = 5_000_000
# A bucket may be far away, and there is no elsewhere.
_SLOWEST_RECALL_BYTES_PER_SECOND = 200_000


class NodeClient:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def list_fragments(self, node: Node, after: str) -> tuple[list[Fragment], str]:
        request = pb.ListFragmentsRequest(page_size=MAX_PAGE_SIZE, page_token=after)
        response = await call(self._stub(node).list_fragments, request, f"node {node.id}", _LONG_SECONDS)
        fragments = [
            Fragment(BlobId(f.blob_id), f.fragment_index, SaveId(f.save_id), f.created_unix_ms)
            for f in response.fragments
        ]
        return fragments, response.next_page_token

    async def drop_fragments(self, node: Node, fragments: Sequence[FragmentName], order: Order) -> set[FragmentName]:
        request = pb.DropFragmentsRequest(
            request_id=random_id(),
            authority=convert.authority_to(order.authority),
            fragments=_names_to(fragments),
        )
        request.signature = signature(order.secret, request)
        response = await call(self._stub(node).drop_fragments, request, f"node {node.id}", _LONG_SECONDS)
        return {(BlobId(name.blob_id), name.fragment_index) for name in response.dropped}

    async def lookup_fragments(self, node: Node, names: Sequence[FragmentName]) -> list[HeldFragment]:
        request = pb.LookupFragmentsRequest(fragments=_names_to(names))
        response = await call(self._stub(node).lookup_fragments, request, f"node {node.id}")
        return [_held_from(held) for held in response.held]

    async def made_bytes(self, node: Node, name: FragmentName) -> int:
        request = pb.LookupFragmentsRequest(fragments=_names_to([name]))
        response = await call(self._stub(node).lookup_fragments, request, f"node {node.id}")
        return sum(one.made_bytes for one in response.under_way)

    async def pull_fragment(
        self, node: Node, pull: Pull, sources: Sequence[tuple[Node, Holder]], order: Order
    ) -> HeldFragment:
        save, blob, limit = pull.save, pull.blob, pull.max_bytes_per_second
        request = pb.PullFragmentRequest(
            request_id=random_id(),
            authority=convert.authority_to(order.authority),
            intent=pb.WriteIntent(
                save_id=save.save_id,
                blob_id=blob.id,
                ordinal=blob.ordinal,
                size_bytes=blob.size_bytes,
                job=save.job,
                step=save.step,
                attempt=save.attempt,
                rank=pull.shard.rank,
                world_size=save.world_size,
                kind=convert.kind_to(pull.shard.kind),
                blob_count=pull.shard.blob_count,
                pool=pull.pool,
                save_pool=save.pool if pull.pool != save.pool else "",
                fragment_index=pull.fragment_index,
                code=blob.code,
                packing=blob.packing,
            ),
            hash=blob.hash,
            source_blob_id=pull.source.id,
            source_code=pull.source.code,
            sources=_sources_to(sources),
            max_bytes_per_second=limit,
            called_off=pull.is_called_off,
        )
        slowest = _SLOWEST_PULL_BYTES_PER_SECOND
        if pull.backup:
            request.backup.CopyFrom(_backup_source_to(pull.backup))
            slowest = _SLOWEST_RECALL_BYTES_PER_SECOND
        request.signature = signature(order.secret, request)
        timeout_seconds = _LONG_SECONDS + blob.size_bytes / slowest
        if limit:
            timeout_seconds += 2 * fragment_bytes(blob, pull.fragment_index) / limit
        response = await call(self._stub(node).pull_fragment, request, f"node {node.id}", timeout_seconds)
        return _held_from(response.held)

    async def verify_fragment(
        self,
        node: Node,
        blob_id: BlobId,
        index: int,
        expected_hash: str,
        *,
        code: str = MIRROR,
        sources: Sequence[tuple[Node, Holder]] = (),
        max_bytes_per_second: int = 0,
    ) -> AsyncIterator[FragmentCheck]:
        request = pb.VerifyFragmentRequest(
            blob_id=blob_id,
            fragment_index=index,
            expected_hash=expected_hash,
            code=code,
            sources=_sources_to(sources),
            max_bytes_per_second=max_bytes_per_second,
        )
        async for response in stream(self._stub(node).verify_fragment, request, f"node {node.id}", _VERIFY_SECONDS):
            yield FragmentCheck(response.checked_bytes, convert.verdict_from(response.verdict), response.detail)

    async def describe_blob(
        self, node: Node, blob: Blob, sources: Sequence[tuple[Node, Holder]], order: Order, *, wants_blake3: bool
    ) -> tuple[bytes, str]:
        request = pb.DescribeBlobRequest(
            request_id=random_id(),
            authority=convert.authority_to(order.authority),
            blob_id=blob.id,
            size_bytes=blob.size_bytes,
            hash=blob.hash,
            code=blob.code,
            sources=_sources_to(sources),
            wants_blake3=wants_blake3,
        )
        request.signature = signature(order.secret, request)
        timeout_seconds = _LONG_SECONDS
        if wants_blake3:
            timeout_seconds += _LONG_SECONDS + blob.size_bytes / _SLOWEST_PULL_BYTES_PER_SECOND
        response = await call(self._stub(node).describe_blob, request, f"node {node.id}", timeout_seconds)
        return response.table, response.blake3 or blob.blake3

    async def upload_blob(
        self, node: Node, upload: Upload, sources: Sequence[tuple[Node, Holder]], order: Order
    ) -> AsyncGenerator[UploadProgress, None]:
        blob, place = upload.blob, upload.place
        request = pb.UploadBlobRequest(
            request_id=random_id(),
            authority=convert.authority_to(order.authority),
            blob_id=blob.id,
            size_bytes=blob.size_bytes,
            hash=blob.hash,
            code=blob.code,
            sources=_sources_to(sources),
            target=target_to(upload.target),
            object=pb.BackupObject(key=place.key, size_bytes=place.size_bytes, data_key_id=place.data_key_id),
            blake3=upload.blake3,
            max_bytes_per_second=upload.max_bytes_per_second,
            called_off=upload.is_called_off,
        )
        request.signature = signature(order.secret, request)
        async for response in stream(self._stub(node).upload_blob, request, f"node {node.id}", _UPLOAD_SECONDS):
            yield UploadProgress(response.done_bytes, response.sent_bytes, response.is_done)

    async def probe_target(self, node: Node, target: Target, order: Order) -> AsyncGenerator[ProbeStep, None]:
        request = pb.ProbeTargetRequest(target=target_to(target), authority=convert.authority_to(order.authority))
        request.signature = signature(order.secret, request)
        async for response in stream(self._stub(node).probe_target, request, f"node {node.id}", _PROBE_TARGET_SECONDS):
            yield ProbeStep(response.step, response.ok, response.detail)

    async def is_refused(self, node: Node) -> bool:
        host, port = split_address(node.endpoints.grpc)
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    def _stub(self, node: Node) -> Stub:
        return self._channels.stub(node.endpoints.grpc, STORAGE)


def _names_to(names: Sequence[FragmentName]) -> list[pb.FragmentName]:
    return [pb.FragmentName(blob_id=blob_id, fragment_index=index) for blob_id, index in names]


def _sources_to(sources: Sequence[tuple[Node, Holder]]) -> list[pb.FragmentSource]:
    return [
        pb.FragmentSource(node=convert.node_to(node), fragment_index=holder.fragment_index, hash=holder.fragment_hash)
        for node, holder in sources
    ]


def _backup_source_to(backup: InBucket) -> pb.BackupSource:
    place = backup.place
    return pb.BackupSource(
        target=target_to(backup.target),
        object=pb.BackupObject(key=place.key, size_bytes=place.size_bytes, data_key_id=place.data_key_id),
        table=backup.table,
    )


def _held_from(message: pb.HeldFragment) -> HeldFragment:
    return HeldFragment(
        blob_id=BlobId(message.blob_id),
        fragment_index=message.fragment_index,
        save_id=SaveId(message.save_id),
        size_bytes=message.size_bytes,
        hash=message.hash,
        disk_id=DiskId(message.disk_id),
        code=message.code,
        source_size_bytes=message.source_size_bytes,
        source_hash=message.source_hash,
    )
