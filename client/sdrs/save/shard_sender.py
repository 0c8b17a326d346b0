"""One try to bring a shard to the primary of its group: the blobs in a few streams at once, then the seal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from sdrs.rpc.cutoff import Cutoff
from sdrs.save.order import SaveOrder
from sdrs.save.payload import Payload, PayloadBlob
from sdrs.saving import Saving
from sdrs.transfer.routes import Routes
from sdrs_core.checkpoints import Blob, Reference, Shard, content_of
from sdrs_core.cluster import Node
from sdrs_core.errors import SaveFailedError
from sdrs_core.ids import BlobId, SaveId, random_id
from sdrs_core.unchanged import Unchanged
from sdrs_core.zstd import PackedBlob, in_proportion
from sdrs_proto.convert import kind_to, node_from, shard_to
from sdrs_proto.limits import SEAL_SECONDS, transfer_seconds
from sdrs_proto.v1.control_pb2 import BeginSaveResponse
from sdrs_proto.v1.storage_pb2 import SealShardRequest, WriteIntent

# Blobs that are sent at once: while one waits for its fsync or for the node to read, another keeps the wire busy.
STREAMS = 3


class ShardSender:
    """``durable`` is called with each blob that the node has durable; ``cutoff`` breaks everything off.

    ``tried``: blobs that were begun by an earlier try, of which the group may have something (P11); those of this one
    are added. ``pack``: what a blob is stored as, if not as it is.
    """

    def __init__(
        self,
        routes: Routes,
        order: SaveOrder,
        payload: Payload,
        saving: Saving,
        begun: BeginSaveResponse,
        blob_ids: Sequence[BlobId],
        tried: set[BlobId],
        durable: Callable[[BlobId], None],
        cutoff: Cutoff,
        unchanged: Unchanged,
        references: Mapping[int, Reference],
        pack: Callable[[int], PackedBlob | None],
    ) -> None:
        self._routes = routes
        self._order = order
        self._payload = payload
        self._saving = saving
        self._begun = begun
        self._primary: Node = node_from(begun.primary)
        self._blob_ids = blob_ids
        self._tried = tried
        self._durable = durable
        self._cutoff = cutoff
        self._unchanged = unchanged
        self._references = references
        self._pack = pack

    def send(self) -> tuple[Blob, ...]:
        self._saving.restart()
        self._saving.add_sent(sum(reference.size_bytes for reference in self._references.values()))
        blobs: dict[int, Blob] = {}
        failures: list[BaseException] = []
        ordinals = iter([n for n in range(len(self._payload.blobs)) if n not in self._references])

        def sent(size_bytes: int) -> None:
            if failures:
                raise SaveFailedError("another blob of the shard failed")  # whose failure is the one that is told
            self._saving.add_sent(size_bytes)

        def stream() -> None:
            """Send blobs, one after the other, until none is left or one failed."""
            try:
                for ordinal in ordinals:  # shared: each stream takes the next
                    sent(0)
                    packed, saved = self._pack(ordinal), self._payload.blobs[ordinal]
                    stored: PayloadBlob = packed or saved
                    packing = str(packed.packing) if packed else ""
                    intent = self._intent(ordinal, stored.size_bytes, packing)
                    told = in_proportion(sent, stored.size_bytes, saved.size_bytes) if packed else sent
                    whole = self._routes.send(self._primary, intent, stored, told, self._cutoff).result()
                    blob = Blob(self._blob_ids[ordinal], ordinal, stored.size_bytes, whole, packing=packing)
                    blobs[ordinal] = replace(blob, blake3=self._unchanged.identify(ordinal, blob.raw_hash))
                    self._durable(self._blob_ids[ordinal])
                    if packed:
                        packed.release()
            except BaseException as error:
                failures.append(error)
                self._cutoff.cut(SaveFailedError("another blob of the shard failed"))  # one may be blocked

        helpers = [threading.Thread(target=stream, name="sdrs-send") for _ in self._payload.blobs[1:STREAMS]]
        with suppress(RuntimeError):  # an interpreter that is shutting down starts no more threads: one stream will do
            for helper in helpers:
                helper.start()
        stream()
        for helper in helpers:
            if helper.ident is not None:
                helper.join()
        if failures:
            raise failures[0]
        return tuple(blobs[ordinal] for ordinal in sorted(blobs))

    def seal(self, blobs: tuple[Blob, ...]) -> None:
        begun = self._begun
        shard = Shard(
            save_id=SaveId(begun.save_id),
            rank=self._order.rank,
            kind=self._order.kind,
            size_bytes=self._payload.total_bytes,
            content_hash=content_of((*blobs, *self._references.values())),
            blobs=blobs,
            references=tuple(self._references.values()),
        )
        request = SealShardRequest(
            request_id=random_id(),
            capability=begun.capability,
            job=self._order.job,
            step=self._order.step,
            attempt=begun.attempt,
            group_id=begun.group.id,
            epoch=begun.group.epoch,
            shard=shard_to(shard),
            world_size=self._order.world_size,
        )
        calls = self._routes.calls(self._primary)
        # A member that came in meanwhile gets all of it from the primary now (P11). If that gets stuck, the group moves
        # on, and the cutoff ends this.
        timeout_seconds = transfer_seconds(self._payload.total_bytes, SEAL_SECONDS)
        calls.call("seal_shard", request, timeout_seconds=timeout_seconds, cutoff=self._cutoff)

    def _intent(self, ordinal: int, size_bytes: int, packing: str) -> WriteIntent:
        begun = self._begun
        blob_id = self._blob_ids[ordinal]
        is_resent = blob_id in self._tried
        self._tried.add(blob_id)
        return WriteIntent(
            save_id=begun.save_id,
            blob_id=blob_id,
            ordinal=ordinal,
            size_bytes=size_bytes,
            job=self._order.job,
            step=self._order.step,
            attempt=begun.attempt,
            rank=self._order.rank,
            group_id=begun.group.id,
            epoch=begun.group.epoch,
            world_size=self._order.world_size,
            kind=kind_to(self._order.kind),
            blob_count=len(self._payload.blobs),
            pool=self._order.pool,
            resent=is_resent,
            packing=packing,
        )
