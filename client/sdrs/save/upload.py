"""One shard to the primary of a group: begin → send → seal, and again, there or elsewhere, if that fails.

Nothing here is lost by trying again. The save is found by (job, attempt, step), a blob that the group's new primary
already has durable is not sent twice (P11), and a shard whose registration was answered into the void is found
registered (P6).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from sdrs.rpc.control import Control
from sdrs.rpc.cutoff import Cutoff
from sdrs.rpc.map import Maps
from sdrs.save.order import SaveOrder
from sdrs.save.payload import Payload, blocks, hash_payload, pack_blob
from sdrs.save.shard_sender import ShardSender
from sdrs.saving import Saving
from sdrs.transfer.routes import Routes
from sdrs_core.backoff import backoff
from sdrs_core.checkpoints import Reference
from sdrs_core.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DeadlineExceededError,
    DiskFailedError,
    FullError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    StaleTermError,
    UnavailableError,
    UnsupportedError,
    is_answered,
)
from sdrs_core.ids import BlobId, NodeId, SaveId, random_id
from sdrs_core.packing import ZSTD
from sdrs_core.trouble import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, Trouble
from sdrs_core.unchanged import Identity, Unchanged
from sdrs_core.zstd import Kept, PackedBlob, Skipped
from sdrs_proto.convert import attempt_to, group_from, kind_to, level_to, reference_from
from sdrs_proto.v1.control_pb2 import AbortSaveRequest, BeginSaveRequest, BeginSaveResponse, WaitSaveRequest

# A pool that is below its minimum may be about to take in a spare; the operator is told after this long.
REFUSED_SECONDS = 5.0

_MOVED = (StaleEpochError, StaleTermError)
_NODE_FAILED = (UnavailableError, DeadlineExceededError, FullError, DiskFailedError, RefusedError)

log = logging.getLogger("sdrs")

# Of all saves of this process.
_KEPT = Kept()


class Upload:
    def __init__(
        self,
        control: Control,
        routes: Routes,
        maps: Maps,
        order: SaveOrder,
        payload: Payload,
        saving: Saving,
        renew_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        known: Mapping[int, Identity] | None = None,
    ) -> None:
        """``known``: of blobs of ``payload`` that are stored already, what the catalog says."""
        self._control = control
        self._routes = routes
        self._maps = maps
        self._order = order
        self._payload = payload
        self._saving = saving
        self._renew_seconds = renew_seconds
        self._clock = clock
        self._sleep = sleep
        self._trouble = Trouble(clock)
        # Ids are kept for each group: whoever is its primary next recognises what a former try left durable.
        self._blob_ids: dict[tuple[str, str], list[BlobId]] = {}
        self._tried: set[BlobId] = set()
        self._durable: set[BlobId] = set()
        self._begun: BeginSaveResponse | None = None
        self._unchanged = Unchanged(
            [blob.size_bytes for blob in payload.blobs], lambda ordinal: blocks(payload.blobs[ordinal]), known
        )
        self._may_refer = self._unchanged.is_able
        self._references: dict[int, Reference] = {}
        # By ordinal, what is stored compressed; None: as it is. Over all tries, since they store under the same names.
        self._packed: dict[int, PackedBlob | None] = {}
        # What will be sent, once that is known to be less than all.
        self._stored_bytes: int | None = None

    def run(self) -> SaveId:
        """Bring the shard in; the id of its save. Raises once nothing more can be tried."""
        try:
            return self._try_groups()
        except AlreadyExistsError:
            raise
        except BaseException as error:
            self._abort(error)
            raise

    def _try_groups(self) -> SaveId:
        last_told = ("", "")
        while True:
            begun = self._begun = self._begin()
            if begun.shard_registered:
                self._check_same_content(begun)
                return SaveId(begun.save_id)
            if self._trouble.is_over:
                raise self._trouble.failure(self._order.title)
            begun = self._begun = self._refer(begun)
            failure = self._try_group(begun)
            if failure is None:
                return SaveId(begun.save_id)
            is_news = last_told != (told := (begun.primary.id, failure.reason))
            last_told = told
            log.log(
                logging.WARNING if is_news else logging.DEBUG,
                "%s is not in yet by node %s, trying again: %s",
                self._order.title,
                begun.primary.id,
                failure,
            )
            self._sleep(self._trouble.pause_seconds())

    def _refer(self, begun: BeginSaveResponse) -> BeginSaveResponse:
        """Find out what need not be sent. If that is less than the controller has counted on, it is told before any
        byte goes out: it may have to choose another group, and a pool's quota holds.
        """
        with self._renewed(begun):
            self._references = self._unchanged.refer([reference_from(offer) for offer in begun.offers])
        stored_bytes = self._payload.total_bytes - sum(ref.size_bytes for ref in self._references.values())
        if not begun.HasField("counted_bytes") or stored_bytes <= begun.counted_bytes:
            return begun
        self._stored_bytes = stored_bytes
        try:
            return self._begin()
        finally:
            self._stored_bytes = None

    def _try_group(self, begun: BeginSaveResponse) -> SdrsError | None:
        """None when the shard is in; a failure after which trying again makes sense."""
        primary, durable_before = NodeId(begun.primary.id), len(self._durable)
        failure: SdrsError
        try:
            self._send_and_seal(begun)
            return None
        except UnsupportedError:
            raise
        except (*_MOVED, *_NODE_FAILED, CorruptDataError, _ExpiredError) as error:
            failure = error
        if len(self._durable) > durable_before:
            self._trouble.note_progress()
        if isinstance(failure, _MOVED):
            self._trouble.note_move(primary, failure)
        else:
            self._trouble.note_failure(primary, failure, avoid=isinstance(failure, _NODE_FAILED))
        return failure

    def _send_and_seal(self, begun: BeginSaveResponse) -> None:
        cutoff = Cutoff()
        target = (begun.save_id, begun.group.id)
        ids = self._blob_ids.setdefault(target, [BlobId(random_id()) for _ in self._payload.blobs])
        sender = ShardSender(
            self._routes,
            self._order,
            self._payload,
            self._saving,
            begun,
            ids,
            self._tried,
            self._durable.add,
            cutoff,
            self._unchanged,
            self._references,
            self._pack,
        )

        def break_off(what: str) -> None:
            cutoff.cut(StaleEpochError(f"{what}: the transfer was broken off", group=begun.group.id))

        with self._renewed(begun), self._maps.watching(group_from(begun.group), break_off):
            try:
                blobs = sender.send()
            except AlreadyExistsError as error:
                raise self._anew(target, error) from error
            try:
                sender.seal(blobs)
            except SaveFailedError as error:
                # Perhaps what it refers to was just let go: the next try stores everything.
                self._may_refer &= not self._references
                raise self._anew(target, error) from error

    def _pack(self, ordinal: int) -> PackedBlob | None:
        """What a blob is stored as, if that is asked for, and pays."""
        if self._order.compression != ZSTD or self._begun is None or not self._begun.takes_packed:
            return None
        if ordinal not in self._packed:
            packed = pack_blob(self._payload.blobs[ordinal], _KEPT)
            if isinstance(packed, Skipped):
                log.debug("%s: blob %s is not compressed: %s", self._order.title, ordinal, packed.why)
            self._packed[ordinal] = packed if isinstance(packed, PackedBlob) else None
        return self._packed[ordinal]

    def _anew(self, target: tuple[str, str], error: SdrsError) -> _ExpiredError:
        """Under new names: a pool that was changed meanwhile stores in another way than what has the old ones (P2)."""
        del self._blob_ids[target]
        return _ExpiredError(error.message, **error.facts)

    def _begin(self) -> BeginSaveResponse:
        refused_since: float | None = None
        pauses = backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                return self._begin_elsewhere()
            except RefusedError as error:
                now = self._clock()
                refused_since = now if refused_since is None else refused_since
                # A pool below its minimum may get a node in a moment; other refusals stand until an operator acts.
                if "pool" not in error.facts or now - refused_since >= REFUSED_SECONDS:
                    raise
                self._sleep(next(pauses))

    def _begin_elsewhere(self) -> BeginSaveResponse:
        """Begin at a node that did not just fail; only if none is left, at one whose failure may have passed."""
        if self._trouble.avoided():
            try:
                return self._ask_begin(patience_seconds=0.0)
            except (UnavailableError, DeadlineExceededError, FullError, RefusedError) as error:
                # A controller that is out of reach says nothing about nodes.
                is_none_left = is_answered(error) and not self._trouble.forgive()
                lasting = self._trouble.lasting()
                if is_none_left and lasting:
                    raise lasting from error
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
            size_bytes=self._payload.total_bytes if self._stored_bytes is None else self._stored_bytes,
            may_refer=self._may_refer and self._stored_bytes is None,
            avoid_node_ids=self._trouble.avoided(),
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


class _ExpiredError(SaveFailedError):
    """The save was ended, or a blob of it lost, before it was sealed: it is begun again."""
