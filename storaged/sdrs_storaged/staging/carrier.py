"""One staged shard to the primary of a group: begin → send → seal, and again, there or elsewhere, if that fails.

The rules are those of a client that uploads by itself: the save is found by (job, attempt, step), a blob that the group
has durable is not sent twice (P11), and a shard whose registration was answered into the void is found registered (P6).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from google.protobuf.message import Message

from sdrs_core.backoff import backoff
from sdrs_core.checkpoints import Reference, SaveState, content_hash
from sdrs_core.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DeadlineExceededError,
    DiskFailedError,
    FullError,
    RefusedError,
    SdrsError,
    StaleEpochError,
    StaleTermError,
    UnavailableError,
    UnsupportedError,
    is_answered,
)
from sdrs_core.ids import NodeId, SaveId, random_id
from sdrs_core.packing import ZSTD
from sdrs_core.trouble import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, Trouble
from sdrs_core.unchanged import Unchanged
from sdrs_core.zstd import Kept, PackedBlob, Skipped
from sdrs_proto.convert import reference_from, save_state_from
from sdrs_proto.limits import MAX_WAIT_MS
from sdrs_proto.v1.control_pb2 import (
    AbortSaveRequest,
    BeginSaveRequest,
    BeginSaveResponse,
    GetClusterRequest,
    WaitSaveRequest,
    WaitSaveResponse,
)
from sdrs_storaged.logs import get_log
from sdrs_storaged.rpc.controller_client import ControllerClient
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.staging.sending import Sending, hash_blob, pack_blob
from sdrs_storaged.staging.shard_try import ExpiredError, Pack, ShardTry
from sdrs_storaged.staging.work import DaemonStopsError, Work

log = get_log("staging")

# A pool that is below its minimum may be about to take in a spare: the process is told after this long.
REFUSED_SECONDS = 5.0
# A save is renewed so often that several renewals may fail before it is taken for abandoned.
_RENEWALS_PER_TTL = 4
_MIN_RENEW_SECONDS = 0.1
_ASK_AGAIN = (UnavailableError, DeadlineExceededError, StaleTermError)
_MOVED = (StaleEpochError, StaleTermError)
_NODE_FAILED = (UnavailableError, DeadlineExceededError, FullError, DiskFailedError, RefusedError)


class Carrier:
    def __init__(
        self,
        client: ControllerClient,
        sending: Sending,
        workers: Workers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._sending = sending
        self._workers = workers
        self._clock = clock
        self._ttl_seconds: float | None = None
        self._kept = Kept()

    async def carry(self, work: Work) -> tuple[SaveId, SaveState]:
        """Bring the shard in; its save, and what became of that. Raises once nothing more can be tried."""
        return await _Carrying(self, work).run()

    async def wait(self, work: Work, save_id: str) -> SaveState:
        """What became of the save, after a while in which it may have ended; asking keeps it alive (P13)."""
        wait_ms = min(MAX_WAIT_MS, int(1000 * await self._renew_seconds()))
        response = await self._look(work, save_id, wait_ms)
        return save_state_from(response.checkpoint.state)

    async def _renew_seconds(self) -> float:
        if self._ttl_seconds is None:
            self._ttl_seconds = (await self._client.ask("get_cluster", GetClusterRequest())).save_ttl_seconds
        return max(_MIN_RENEW_SECONDS, self._ttl_seconds / _RENEWALS_PER_TTL)

    async def _look(self, work: Work, save_id: str, wait_ms: int) -> WaitSaveResponse:
        order = work.shard.order
        request = WaitSaveRequest(save_id=save_id, job=order.job, step=order.step, wait_ms=wait_ms)
        response: WaitSaveResponse = await self._client.ask("wait_save", request, wait_ms)
        return response

    async def ask(self, work: Work, method: str, request: Message, patience_seconds: float | None = None) -> Any:
        """Ask until a controller answers, or until all were out of reach for too long."""
        since: float | None = None
        pauses = backoff()
        while True:
            started = self._clock()
            try:
                return await self._client.ask(method, request)
            except _ASK_AGAIN:
                since = started if since is None else since
                patience = work.patience_seconds if patience_seconds is None else patience_seconds
                pause_seconds = next(pauses)
                if self._clock() + pause_seconds > since + patience:
                    raise
            await asyncio.sleep(pause_seconds)
            work.check_wanted()

    @asynccontextmanager
    async def renewed(self, work: Work, save_id: str) -> AsyncIterator[None]:
        """Tell the controller, from time to time, that this save is not abandoned, however long the sending takes."""

        async def renew() -> None:
            while True:
                with suppress(SdrsError):  # if it matters, sealing will tell
                    await asyncio.sleep(await self._renew_seconds())
                    await self._look(work, save_id, 0)

        renewing = asyncio.ensure_future(renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    # Of one shard's carrying

    def sending_try(
        self,
        work: Work,
        begun: BeginSaveResponse,
        ids: list[str],
        tried: set[str],
        references: Mapping[int, Reference],
        unchanged: Unchanged,
        pack: Pack,
    ) -> ShardTry:
        async def identify(ordinal: int, whole: str) -> str:
            return await self._workers.run_through(unchanged.identify, ordinal, whole)

        return ShardTry(self._client, self._sending, work, begun, ids, tried, references, identify, pack)

    async def refer(self, unchanged: Unchanged, begun: BeginSaveResponse) -> dict[int, Reference]:
        return await self._workers.run_through(unchanged.refer, [reference_from(offer) for offer in begun.offers])

    async def pack(self, work: Work, ordinal: int) -> PackedBlob | Skipped:
        segment = work.segment
        assert segment is not None, "a shard that is to be carried has its bytes"
        blob = work.shard.blobs[ordinal]
        return await self._workers.run_through(pack_blob, segment, blob, self._kept, work.check_wanted)

    @property
    def node_id(self) -> NodeId:
        return self._sending.node_id

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    async def hash_shard(self, work: Work) -> str:
        segment = work.segment
        assert segment is not None, "a shard that is to be carried has its bytes"
        hashes = [await self._workers.run_through(hash_blob, segment, blob) for blob in work.shard.blobs]
        return content_hash((blob.size_bytes, found) for blob, found in zip(work.shard.blobs, hashes, strict=True))


class _Carrying:
    def __init__(self, carrier: Carrier, work: Work) -> None:
        self._carrier = carrier
        self._work = work
        self._trouble = Trouble(carrier.clock)
        # How often blobs had to be named anew for a (save, group).
        self._namings: dict[tuple[str, str], int] = {}
        self._tried: set[str] = set()
        self._durable: set[str] = set()
        self._begun: BeginSaveResponse | None = None
        segment, blobs = work.segment, work.shard.blobs
        assert segment is not None, "a shard that is to be carried has its bytes"
        self._unchanged = Unchanged([blob.size_bytes for blob in blobs], lambda ordinal: segment.blocks(blobs[ordinal]))
        self._may_refer = self._unchanged.is_able
        self._references: dict[int, Reference] = {}
        # By ordinal, what is stored compressed; None: as it is. Over all tries, since they store under the same names.
        self._packed: dict[int, PackedBlob | None] = {}
        # What will be sent, once that is known to be less than all.
        self._stored_bytes: int | None = None

    async def run(self) -> tuple[SaveId, SaveState]:
        try:
            return await self._try_groups()
        except (AlreadyExistsError, DaemonStopsError):
            raise
        except SdrsError as error:
            await self._abort(error)
            raise

    async def _try_groups(self) -> tuple[SaveId, SaveState]:
        last_told = ("", "")
        while True:
            begun = self._begun = await self._begin()
            self._work.begun(begun.save_id)
            if begun.shard_registered:
                await self._check_same_content(begun)
                return SaveId(begun.save_id), save_state_from(begun.state)
            if self._trouble.is_over:
                raise self._trouble.failure(self._work.title)
            begun = self._begun = await self._refer(begun)
            outcome = await self._try_group(begun)
            if isinstance(outcome, SaveState):
                return SaveId(begun.save_id), outcome
            if last_told != (told := (begun.primary.id, outcome.reason)):
                log.warning("staged_save_retried", save=self._work.title, node=begun.primary.id, why=outcome.message)
            last_told = told
            await asyncio.sleep(self._trouble.pause_seconds())
            self._work.check_wanted()

    async def _refer(self, begun: BeginSaveResponse) -> BeginSaveResponse:
        """Find out what need not be sent. If that is less than the controller has counted on, it is told before any
        byte goes out: it may have to choose another group, and a pool's quota holds.
        """
        async with self._carrier.renewed(self._work, begun.save_id):
            self._references = await self._carrier.refer(self._unchanged, begun)
        stored_bytes = self._work.total_bytes - sum(ref.size_bytes for ref in self._references.values())
        if not begun.HasField("counted_bytes") or stored_bytes <= begun.counted_bytes:
            return begun
        self._stored_bytes = stored_bytes
        try:
            return await self._begin()
        finally:
            self._stored_bytes = None

    async def _try_group(self, begun: BeginSaveResponse) -> SaveState | SdrsError:
        """The save's state once the shard is in; a failure after which trying again makes sense."""
        primary, durable_before = NodeId(begun.primary.id), len(self._durable)
        failure: SdrsError
        try:
            return await self._send_and_seal(begun)
        except UnsupportedError:
            raise
        except (*_MOVED, *_NODE_FAILED, CorruptDataError, ExpiredError) as error:
            failure = error
        if len(self._durable) > durable_before:
            self._trouble.note_progress()
        if isinstance(failure, _MOVED):
            self._trouble.note_move(primary, failure)
        else:
            self._trouble.note_failure(primary, failure, avoid=isinstance(failure, _NODE_FAILED))
        return failure

    async def _send_and_seal(self, begun: BeginSaveResponse) -> SaveState:
        target = (begun.save_id, begun.group.id)
        ids = self._blob_ids(target)
        sending = self._carrier.sending_try(
            self._work, begun, ids, self._tried, self._references, self._unchanged, self._pack
        )
        async with self._carrier.renewed(self._work, begun.save_id):
            try:
                return await sending.run(self._durable.add)
            except ExpiredError:
                # Perhaps what it refers to was just let go: the next try stores everything.
                self._may_refer &= not self._references
                # Under new names: a pool that was changed meanwhile stores in another way than what has the old ones.
                self._namings[target] = self._namings.get(target, 0) + 1
                raise

    async def _pack(self, ordinal: int) -> PackedBlob | None:
        """What a blob is stored as, if that is asked for, and pays."""
        if self._work.shard.compression != ZSTD or self._begun is None or not self._begun.takes_packed:
            return None
        if ordinal not in self._packed:
            packed = await self._carrier.pack(self._work, ordinal)
            if isinstance(packed, Skipped):
                log.debug("blob_not_compressed", save=self._work.title, ordinal=ordinal, why=packed.why)
            self._packed[ordinal] = packed if isinstance(packed, PackedBlob) else None
        return self._packed[ordinal]

    def _blob_ids(self, target: tuple[str, str]) -> list[str]:
        """The same after a restart of this daemon, so that what is durable by then is found (P11); random, because the
        shard's own id is (P2).
        """
        return derived_ids(self._work.shard.id, *target, self._namings.get(target, 0), len(self._work.shard.blobs))

    async def _begin(self) -> BeginSaveResponse:
        clock = self._carrier.clock
        refused_since: float | None = None
        pauses = backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                return await self._begin_elsewhere()
            except RefusedError as error:
                refused_since = clock() if refused_since is None else refused_since
                # A pool below its minimum may get a node in a moment; other refusals stand until an operator acts.
                is_alone = self._work.alone_seconds > 0
                patience_seconds = self._work.patience_seconds if is_alone else REFUSED_SECONDS
                if "pool" not in error.facts or clock() - refused_since >= patience_seconds:
                    raise
            await asyncio.sleep(next(pauses))
            self._work.check_wanted()

    async def _begin_elsewhere(self) -> BeginSaveResponse:
        """Begin at a node that did not just fail; only if none is left, at one whose failure may have passed."""
        if self._trouble.avoided():
            try:
                return await self._ask_begin(patience_seconds=0.0)
            except (UnavailableError, DeadlineExceededError, FullError, RefusedError) as error:
                # A controller that is out of reach says nothing about nodes.
                is_none_left = is_answered(error) and not self._trouble.forgive()
                lasting = self._trouble.lasting()
                if is_none_left and lasting:
                    raise lasting from error
        return await self._ask_begin()

    async def _ask_begin(self, patience_seconds: float | None = None) -> BeginSaveResponse:
        request = BeginSaveRequest()
        request.CopyFrom(self._work.shard.order)
        request.request_id = random_id()
        request.size_bytes = self._work.total_bytes if self._stored_bytes is None else self._stored_bytes
        request.may_refer = self._may_refer and self._stored_bytes is None
        request.prefer_node_id = self._carrier.node_id
        del request.avoid_node_ids[:]
        request.avoid_node_ids.extend(self._trouble.avoided())
        response: BeginSaveResponse = await self._carrier.ask(self._work, "begin_save", request, patience_seconds)
        return response

    async def _check_same_content(self, begun: BeginSaveResponse) -> None:
        if begun.shard_content_hash != await self._carrier.hash_shard(self._work):
            order = self._work.shard.order
            raise AlreadyExistsError(
                f"{self._work.title} was already saved by this attempt with other content: save it as another step, "
                f"or delete that one first (checkpoints.delete({order.step}))",
                job=order.job,
                step=order.step,
            )
        self._work.restart()
        self._work.passed(self._work.total_bytes)

    async def _abort(self, cause: SdrsError) -> None:
        """Let what was sent be collected now. Other ranks' work is not thrown away: their save ends by itself."""
        order = self._work.shard.order
        if self._begun is None or order.world_size > 1:
            return
        request = AbortSaveRequest(
            request_id=random_id(),
            save_id=self._begun.save_id,
            job=order.job,
            step=order.step,
            capability=self._begun.capability,
            reason=f"its daemon gave up: {cause.message}",
        )
        with suppress(SdrsError):  # then it expires
            await self._carrier.ask(self._work, "abort_save", request, patience_seconds=0.0)


def derived_ids(staged_id: str, save_id: str, group_id: str, naming: int, count: int) -> list[str]:
    names = (f"{staged_id}:{save_id}:{group_id}:{naming}:{ordinal}" for ordinal in range(count))
    return [hashlib.blake2b(name.encode(), digest_size=16).hexdigest() for name in names]
