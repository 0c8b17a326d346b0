"""The service ``Storage``: clients, other members of this node's groups, and the controller's commands."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from sdrs_core.ids import BlobId, GroupId, check_random_id
from sdrs_proto import convert
from sdrs_proto.framing import Frame
from sdrs_proto.limits import CALL_SECONDS, MAX_LOOKUP_NAMES
from sdrs_proto.signing import signature
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.transfers import Slots, Tickets
from sdrs_storaged.rpc.blobs import BlobStore, held_to, read_intent_from, summary_of, write_intent_to
from sdrs_storaged.rpc.edge import page_size
from sdrs_storaged.rpc.pulling import Pulling
from sdrs_storaged.rpc.sealing import Sealing
from sdrs_storaged.rpc.uploading import Uploading
from sdrs_storaged.rpc.verifying import Verifying
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.rpc.writing import Writing
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentKey, StoredFragment

S = TypeVar(
    "S",
    pb.DropFragmentsRequest,
    pb.PullFragmentRequest,
    pb.DescribeBlobRequest,
    pb.UploadBlobRequest,
    pb.ProbeTargetRequest,
)

_SLOT_SECONDS = CALL_SECONDS / 2


class StorageService:
    def __init__(
        self,
        store: FragmentStore,
        blobs: BlobStore,
        identity: Identity,
        groups: Groups,
        tickets: Tickets,
        *,
        writing: Writing,
        sealing: Sealing,
        pulling: Pulling,
        uploading: Uploading,
        verifying: Verifying,
        reads: Slots,
        repair_reads: Slots,
        read_workers: Workers,
        looks: Workers,
    ) -> None:
        """``looks``: threads for what waits for no peer and is over soon."""
        self._store = store
        self._blobs = blobs
        self._identity = identity
        self._groups = groups
        self._tickets = tickets
        self._writing = writing
        self._sealing = sealing
        self._pulling = pulling
        self._uploading = uploading
        self._verifying = verifying
        self._reads = reads
        self._repair_reads = repair_reads
        self._read_workers = read_workers
        self._looks = looks
        # By how many orders under way each is being dropped.
        self._leaving: Counter[FragmentKey] = Counter()

    # Bytes

    async def open_write(self, request: pb.OpenWriteRequest) -> pb.OpenWriteResponse:
        return await self._writing.open(request)

    async def write_blob(self, frames: AsyncIterator[Frame]) -> pb.WriteBlobResponse:
        return await self._writing.write(frames)

    async def open_read(self, request: pb.OpenReadRequest) -> pb.OpenReadResponse:
        # P21: who reads for repair takes nothing from readers. These wait for no peer, unlike those who repair here.
        slots = self._repair_reads if request.for_repair else self._reads
        intent = replace(read_intent_from(request), for_repair=request.for_repair)
        await self._take_read(slots)
        return pb.OpenReadResponse(ticket=self._tickets.issue(intent, slots))

    async def read_blob(self, request: pb.ReadBlobRequest) -> AsyncIterator[Frame]:
        intent = read_intent_from(request)
        workers = self._read_workers
        await self._take_read(self._reads)
        try:
            reader = await workers.opened(self._blobs.open, intent)
            with reader:
                yield Frame(open=summary_of(reader).SerializeToString())
                end = intent.offset + intent.length if intent.length else reader.size_bytes
                pieces = reader.pieces(intent.offset, end)
                try:
                    while (piece := await workers.run_through(next, pieces, None)) is not None:
                        # A frame is made into bytes before the next one is asked for, so the piece need not be copied.
                        for start in range(0, len(piece), BLOCK_BYTES):
                            yield Frame(data=piece[start : start + BLOCK_BYTES])
                finally:
                    await workers.run(pieces.close)
                self._blobs.count_sent(end - intent.offset)
        finally:
            self._reads.give()

    async def _take_read(self, slots: Slots) -> None:
        self._tickets.expire()
        await slots.take(_SLOT_SECONDS)

    # Receipts, and what members say of what they hold

    async def seal_shard(self, request: pb.SealShardRequest) -> pb.SealShardResponse:
        return pb.SealShardResponse(state=convert.save_state_to(await self._sealing.seal(request)))

    async def lookup_fragments(self, request: pb.LookupFragmentsRequest) -> pb.LookupFragmentsResponse:
        if len(request.fragments) > MAX_LOOKUP_NAMES:
            raise InvalidArgumentError(f"at most {MAX_LOOKUP_NAMES} fragments can be looked up at once")
        if request.group_id:
            await self._groups.admit(GroupId(request.group_id), request.epoch, as_primary=False)
        keys = [key for name in request.fragments if (key := _key_of(name)) not in self._leaving]
        found = await self._looks.run(self._lookup_all, keys)
        under_way = [
            pb.FragmentUnderWay(name=name, made_bytes=made_bytes)
            for name in request.fragments
            if (made_bytes := self._pulling.made_bytes(_key_of(name))) is not None
        ]
        return pb.LookupFragmentsResponse(held=[held_to(stored) for stored in found], under_way=under_way)

    def _lookup_all(self, keys: Sequence[FragmentKey]) -> list[StoredFragment]:
        return [stored for key in keys if (stored := self._store.lookup(*key)) is not None]

    # Commands

    async def verify_fragment(self, request: pb.VerifyFragmentRequest) -> AsyncIterator[pb.VerifyFragmentResponse]:
        async with aclosing(self._verifying.verify(request)) as found:
            async for response in found:
                yield response

    async def list_fragments(self, request: pb.ListFragmentsRequest) -> pb.ListFragmentsResponse:
        limit = page_size(request.page_size)
        after = _page_token(request.page_token)
        found = await self._looks.run(self._store.list, after, limit)
        fragments = await self._looks.run(self._describe, found, request.with_origin)
        token = f"{found[-1].blob_id}.{found[-1].fragment_index}" if found else ""
        return pb.ListFragmentsResponse(fragments=fragments, next_page_token=token)

    def _describe(self, found: Sequence[StoredFragment], with_origin: bool) -> list[pb.FragmentInfo]:
        return [
            pb.FragmentInfo(
                blob_id=stored.blob_id,
                fragment_index=stored.fragment_index,
                save_id=stored.save_id,
                size_bytes=stored.size_bytes,
                created_unix_ms=int(stored.created_unix_seconds * 1000),
                hash=stored.fragment_hash,
                disk_id=stored.disk_id,
                origin=self._origin(stored) if with_origin else None,
                source_size_bytes=stored.source_size_bytes,
                source_hash=stored.source_hash,
                code=stored.code,
            )
            for stored in found
        ]

    def _origin(self, stored: StoredFragment) -> pb.WriteIntent | None:
        """What its header says; nothing, if it is gone or damaged since it was listed."""
        try:
            with self._store.open(*stored.key) as reader:
                return write_intent_to(reader.meta, reader.size_bytes)
        except (NotFoundError, CorruptDataError):
            return None

    async def drop_fragments(self, request: pb.DropFragmentsRequest) -> pb.DropFragmentsResponse:
        self._check_signed(request, "drop")
        keys = [_key_of(name) for name in request.fragments]
        # P14: carried through also if the controller gave up waiting, so from here on none of them counts as held, or
        # one that is still there would go on record and then be dropped.
        self._leaving.update(keys)
        try:
            await self._obey(request)
            for key in keys:
                await self._looks.run(self._store.delete, *key)
        finally:
            self._leaving -= Counter(keys)
        return pb.DropFragmentsResponse(dropped=request.fragments)

    async def pull_fragment(self, request: pb.PullFragmentRequest) -> pb.PullFragmentResponse:
        self._check_signed(request, "fetch")
        if FragmentKey(BlobId(request.intent.blob_id), request.intent.fragment_index) in self._leaving:
            raise UnavailableError(f"blob {request.intent.blob_id} is just being dropped here: try again in a moment")
        await self._obey(request)
        return pb.PullFragmentResponse(held=held_to(await self._pulling.pull(request)))

    # Backups

    async def describe_blob(self, request: pb.DescribeBlobRequest) -> pb.DescribeBlobResponse:
        self._check_signed(request, "describe")
        await self._obey(request)
        return await self._uploading.describe(request)

    async def upload_blob(self, request: pb.UploadBlobRequest) -> AsyncIterator[pb.UploadBlobResponse]:
        self._check_signed(request, "upload")
        await self._obey(request)
        async with aclosing(self._uploading.upload(request)) as progress:
            async for response in progress:
                yield response

    async def probe_target(self, request: pb.ProbeTargetRequest) -> AsyncIterator[pb.ProbeTargetResponse]:
        self._check_signed(request, "try a backup target, or any")
        await self._obey(request)
        async with aclosing(self._uploading.probe(request)) as steps:
            async for response in steps:
                yield response

    def _check_signed(self, request: S, verb: str) -> None:
        if not hmac.compare_digest(request.signature, signature(self._identity.secret, request)):
            raise PermissionDeniedError(f"only the controller may have node {self._identity.node_id} {verb} fragments")

    async def _obey(self, request: S) -> None:
        """P14: the order comes from the controller, and from none that was deposed."""
        await self._looks.run(self._identity.obey, convert.authority_from(request.authority))


def _key_of(name: pb.FragmentName) -> FragmentKey:
    return FragmentKey(BlobId(check_random_id(name.blob_id, "blob id")), name.fragment_index)


def _page_token(token: str) -> FragmentKey | None:
    if not token:
        return None
    blob_id, _, index = token.partition(".")
    # A token that is not ours would begin another listing, which looks complete (I7).
    if not (index.isascii() and index.isdigit() and len(index) < 10):
        raise InvalidArgumentError(f"{token[:80]!r} is not a page token of a listing of fragments")
    return FragmentKey(BlobId(check_random_id(blob_id, "blob id")), int(index))
