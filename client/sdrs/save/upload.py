"""One shard to one node: begin → send → seal, and another node if that one fails.

Nothing here is lost by trying again. The save is found by (job, attempt, step), a blob that the node already has
durable is not sent twice (P11), and a shard whose registration was answered into the void is found registered (P6).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sdrs.rpc.control import Control, backoff
from sdrs.save.order import SaveOrder
from sdrs.save.payload import Payload, hash_payload
from sdrs.saving import Saving
from sdrs.transfer.routes import Routes
from sdrs_core.checkpoints import Blob, Shard, content_hash
from sdrs_core.cluster import Node
from sdrs_core.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DeadlineExceededError,
    DiskFailedError,
    FullError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    UnavailableError,
)
from sdrs_core.ids import BlobId, NodeId, SaveId, random_id
from sdrs_proto.convert import attempt_to, kind_to, level_to, node_from, shard_to
from sdrs_proto.v1.control_pb2 import AbortSaveRequest, BeginSaveRequest, BeginSaveResponse, WaitSaveRequest
from sdrs_proto.v1.storage_pb2 import SealShardRequest, WriteIntent

MAX_TRIES = 4
# Blobs that are sent at once: while one waits for its fsync or for the node to read, another keeps the wire busy.
STREAMS = 3
# Registering waits for the controller's transaction.
SEAL_SECONDS = 30.0

_OUT_OF_REACH = (UnavailableError, DeadlineExceededError)
_NODE_FAILED = (*_OUT_OF_REACH, FullError, DiskFailedError)
_TRY_AGAIN = (StaleEpochError, CorruptDataError)

log = logging.getLogger("sdrs")


class Upload:
    def __init__(
        self, control: Control, routes: Routes, order: SaveOrder, payload: Payload, saving: Saving, renew_seconds: float
    ) -> None:
        self._control = control
        self._routes = routes
        self._order = order
        self._payload = payload
        self._saving = saving
        self._renew_seconds = renew_seconds
        self._avoided: dict[NodeId, SdrsError] = {}
        # Ids are kept for each node, so that what a former try left there durable is recognised.
        self._blob_ids: dict[tuple[str, str], list[BlobId]] = {}
        self._begun: BeginSaveResponse | None = None

    def run(self) -> SaveId:
        """Bring the shard in; the id of its save. Raises once nothing more can be tried."""
        try:
            return self._try_nodes()
        except AlreadyExistsError:
            raise
        except BaseException as error:
            self._abort(error)
            raise

    def _try_nodes(self) -> SaveId:
        failure: SdrsError | None = None
        pauses = backoff()
        for tried in range(MAX_TRIES + 1):
            begun = self._begun = self._begin()
            if begun.shard_registered:
                self._check_same_content(begun)
                return SaveId(begun.save_id)
            if tried == MAX_TRIES:
                break
            failure = self._try_node(begun, node_from(begun.primary))
            if failure is None:
                return SaveId(begun.save_id)
            log.warning("%s: node %s failed it, trying again: %s", self._order.title, begun.primary.id, failure)
            time.sleep(next(pauses))
        if isinstance(failure, FullError):
            raise failure
        raise SaveFailedError(f"{self._order.title} could not be saved in {MAX_TRIES} tries: {failure}") from failure

    def _try_node(self, begun: BeginSaveResponse, primary: Node) -> SdrsError | None:
        """None when the shard is in; a failure after which trying again makes sense."""
        try:
            with self._renewed(begun):
                blobs = self._send(begun, primary)
                try:
                    self._seal(begun, primary, blobs)
                except SaveFailedError as error:  # it expired while it was sent: a new one is begun
                    return error
        except _NODE_FAILED as error:
            self._avoided[primary.id] = error
            return error
        except _TRY_AGAIN as error:
            return error
        return None

    def _begin(self) -> BeginSaveResponse:
        if self._avoided:
            try:
                return self._ask_begin(patience_seconds=0.0)
            except (UnavailableError, FullError) as error:
                lasting = {node: why for node, why in self._avoided.items() if not isinstance(why, _OUT_OF_REACH)}
                if len(lasting) == len(self._avoided):
                    raise next(reversed(lasting.values())) from error
                # No other node is left: one that was out of reach may be back.
                self._avoided = lasting
        return self._ask_begin()

    def _ask_begin(self, patience_seconds: float | None = None) -> BeginSaveResponse:
        order = self._order
        request = BeginSaveRequest(
            request_id=random_id(),
            job=order.job,
            step=order.step,
            rank=order.rank,
            world_size=order.world_size,
            attempt=attempt_to(order.attempt),
            pool=order.pool,
            level=level_to(order.level),
            kind=kind_to(order.kind),
            host=socket.gethostname(),
            avoid_node_ids=list(self._avoided),
        )
        response: BeginSaveResponse = self._control.call("begin_save", request, patience_seconds=patience_seconds)
        return response

    def _check_same_content(self, begun: BeginSaveResponse) -> None:
        if begun.shard_content_hash != hash_payload(self._payload):
            raise AlreadyExistsError(
                f"{self._order.title} was already saved by this attempt with other content: save it as another step, "
                f"or delete that one first (checkpoints.delete({self._order.step}))",
                job=self._order.job,
                step=self._order.step,
            )
        self._saving.restart()
        self._saving.add_sent(self._payload.total_bytes)

    def _send(self, begun: BeginSaveResponse, primary: Node) -> tuple[Blob, ...]:
        self._saving.restart()
        ids = self._blob_ids.setdefault((begun.save_id, primary.id), [BlobId(random_id()) for _ in self._payload.blobs])
        blobs: dict[int, Blob] = {}
        failures: list[BaseException] = []
        ordinals = iter(range(len(self._payload.blobs)))

        def sent(size_bytes: int) -> None:
            if failures:
                raise SaveFailedError("another blob of the shard failed")  # whose failure is the one that is told
            self._saving.add_sent(size_bytes)

        def stream() -> None:
            """Send blobs, one after the other, until none is left or one failed."""
            try:
                for ordinal in ordinals:  # shared: each stream takes the next
                    blob = self._payload.blobs[ordinal]
                    intent = self._intent(begun, ids[ordinal], ordinal, blob.size_bytes)
                    sent(0)
                    whole = self._routes.send(primary, intent, blob, sent).result()
                    blobs[ordinal] = Blob(ids[ordinal], ordinal, blob.size_bytes, whole)
            except BaseException as error:
                failures.append(error)

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
        return tuple(blobs[ordinal] for ordinal in range(len(blobs)))

    def _intent(self, begun: BeginSaveResponse, blob_id: BlobId, ordinal: int, size_bytes: int) -> WriteIntent:
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
        )

    def _seal(self, begun: BeginSaveResponse, primary: Node, blobs: tuple[Blob, ...]) -> None:
        shard = Shard(
            save_id=SaveId(begun.save_id),
            rank=self._order.rank,
            kind=self._order.kind,
            size_bytes=self._payload.total_bytes,
            content_hash=content_hash((blob.size_bytes, blob.hash) for blob in blobs),
            blobs=blobs,
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
        )
        self._routes.calls(primary).call("seal_shard", request, timeout_seconds=SEAL_SECONDS)

    @contextmanager
    def _renewed(self, begun: BeginSaveResponse) -> Iterator[None]:
        """Tell the controller, from time to time, that this save is not abandoned, however long the sending takes."""
        request = WaitSaveRequest(save_id=begun.save_id, job=self._order.job, step=self._order.step)
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self._renew_seconds):
                with suppress(SdrsError):  # if it matters, sealing will tell
                    self._control.call("wait_save", request, patience_seconds=0.0)

        threading.Thread(target=renew, name="sdrs-renew", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _abort(self, cause: BaseException) -> None:
        """Let what was sent be collected now. Other ranks' work is not thrown away: their save ends by itself."""
        if self._begun is None or self._order.world_size > 1:
            return
        request = AbortSaveRequest(
            request_id=random_id(),
            save_id=self._begun.save_id,
            job=self._order.job,
            step=self._order.step,
            capability=self._begun.capability,
            reason=f"its client gave up: {str(cause) or type(cause).__name__}",
        )
        with suppress(SdrsError):  # then it expires
            self._control.call("abort_save", request, patience_seconds=0.0)
