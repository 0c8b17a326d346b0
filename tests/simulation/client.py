"""Training jobs as the SDK makes them behave: ranks that save step after step, and restores that compare every byte.

The SDK itself runs in threads; its order of calls is kept here: begin → send → seal → wait, again at the new primary
after a StaleEpochError, elsewhere after a failure, and a commit whose answer was lost is found by its save id (P6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Blob, ContentKind, Holder, Reference, Save, SaveState, Shard, content_hash
from sdrs_core.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DeadlineExceededError,
    FullError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    StaleAttemptError,
    StaleEpochError,
    StaleTermError,
    UnavailableError,
)
from sdrs_core.ids import BlobId, JobName, SaveId, random_id
from sdrs_core.mirroring import twin_of
from sdrs_core.references import NewBlob, blake3_hasher, decide_references
from sdrs_proto import convert
from sdrs_proto.framing import Frame
from sdrs_proto.v1 import control_pb2 as control
from sdrs_proto.v1 import storage_pb2 as storage
from tests.simulation.frames import checked_blocks, frames_of, hash_of, summary_of
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.reading import BlobReading

# A job of such a name saves some of the same bytes step after step, and refers to them.
FROZEN = "frozen-"
CALL_SECONDS = 3.0
_WRITE_SECONDS = 5.0
_SEAL_SECONDS = 8.0
_PATIENCE_SECONDS = 12.0
_WAIT_MS = 2000
_REFUSED_SECONDS = 5.0
# Who reads while blobs are stored anew in another form (P2) asks again where they are.
_READ_TRIES = 3


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a rank was told: this checkpoint is committed."""

    job: JobName
    step: int
    rank: int
    save: Save
    contents: tuple[bytes, ...]


class Control:
    """Calls to whichever controller leads, with patience."""

    def __init__(self, network: Network, process: Process, controllers: Sequence[str], random: Random) -> None:
        self.network = network
        self.process = process
        self._controllers = list(controllers)
        self._random = random

    async def call(
        self, method: str, request: Any, *, patience_seconds: float = 10.0, timeout_seconds: float = CALL_SECONDS
    ) -> Any:
        loop = asyncio.get_running_loop()
        gives_up = loop.time() + patience_seconds
        while True:
            try:
                return await self.network.call(self.process, self._controllers[0], method, request, timeout_seconds)
            except (UnavailableError, DeadlineExceededError, StaleTermError):
                self._controllers.append(self._controllers.pop(0))
                if loop.time() > gives_up:
                    raise
            await asyncio.sleep(self._random.uniform(0.05, 0.25))


@dataclass
class Rank:
    """One process of a job."""

    control: Control
    job: JobName
    pool: str
    rank: int
    world_size: int
    random: Random
    acknowledged: Callable[[Acknowledged], None]
    _avoided: set[str] = field(default_factory=set)
    _tried: set[BlobId] = field(default_factory=set)

    async def save(self, attempt: Attempt, step: int) -> Save:
        """The checkpoint as it was committed; raises if it was not, or if that cannot be told."""
        contents = contents_of(self.job, attempt, step, self.rank)
        loop = asyncio.get_running_loop()
        gives_up = loop.time() + _PATIENCE_SECONDS
        ids: dict[tuple[str, str], list[BlobId]] = {}
        self._avoided.clear()
        may_refer = self.job.startswith(FROZEN)
        while True:
            begun = await self._begin(attempt, step, may_refer)
            references = _references(begun, contents)
            if begun.shard_registered:
                if begun.shard_content_hash != _shard(begun, self.rank, contents, [], {}).content_hash:
                    raise AlreadyExistsError(f"{self.job} step {step} rank {self.rank} is in with other content")
                break
            if loop.time() > gives_up:
                raise SaveFailedError(f"{self.job} step {step}: out of patience")
            try:
                mine = ids.setdefault((begun.save_id, begun.group.id), [BlobId(random_id()) for _ in contents])
                await self._send_and_seal(begun, step, contents, mine, references)
                break
            except (StaleEpochError, StaleTermError):
                pass
            except SaveFailedError:
                may_refer &= not references  # perhaps what it refers to was just let go
            except (UnavailableError, DeadlineExceededError, RefusedError, FullError):
                self._avoided.add(begun.primary.id)
            await asyncio.sleep(self.random.uniform(0.02, 0.3))
        save = await self._wait(SaveId(begun.save_id), step)
        self.acknowledged(Acknowledged(self.job, step, self.rank, save, contents))
        return save

    async def _begin(self, attempt: Attempt, step: int, may_refer: bool) -> control.BeginSaveResponse:
        request = control.BeginSaveRequest(
            request_id=random_id(),
            job=self.job,
            step=step,
            rank=self.rank,
            world_size=self.world_size,
            attempt=convert.attempt_to(attempt),
            pool=self.pool,
            kind=convert.kind_to(ContentKind.STATE),
            avoid_node_ids=sorted(self._avoided),
            size_bytes=sum(map(len, contents_of(self.job, attempt, step, self.rank))),
            may_refer=may_refer,
        )
        gives_up = asyncio.get_running_loop().time() + _REFUSED_SECONDS
        while True:
            try:
                response: control.BeginSaveResponse = await self.control.call("begin_save", request)
                return response
            except (UnavailableError, RefusedError) as error:
                # A pool that is below its minimum may get a node in a moment.
                is_lasting = "pool" not in error.facts or asyncio.get_running_loop().time() > gives_up
                if not self._avoided and is_lasting:
                    raise
            # No other node is left: one that failed may be back.
            self._avoided.clear()
            request.ClearField("avoid_node_ids")
            await asyncio.sleep(self.random.uniform(0.05, 0.3))

    async def _send_and_seal(
        self,
        begun: control.BeginSaveResponse,
        step: int,
        contents: Sequence[bytes],
        ids: Sequence[BlobId],
        references: dict[int, Reference],
    ) -> None:
        network, process, primary = self.control.network, self.control.process, begun.primary.id
        for ordinal, (blob_id, data) in enumerate(zip(ids, contents, strict=True)):
            if ordinal in references:
                continue
            intent = storage.WriteIntent(
                save_id=begun.save_id,
                blob_id=blob_id,
                ordinal=ordinal,
                size_bytes=len(data),
                job=self.job,
                step=step,
                attempt=begun.attempt,
                rank=self.rank,
                group_id=begun.group.id,
                epoch=begun.group.epoch,
                world_size=self.world_size,
                kind=convert.kind_to(ContentKind.STATE),
                blob_count=len(contents),
                pool=self.pool,
                resent=blob_id in self._tried,
            )
            self._tried.add(blob_id)
            await self._send(primary, intent, data)
        request = storage.SealShardRequest(
            request_id=random_id(),
            capability=begun.capability,
            job=self.job,
            step=step,
            attempt=begun.attempt,
            group_id=begun.group.id,
            epoch=begun.group.epoch,
            shard=convert.shard_to(_shard(begun, self.rank, contents, ids, references)),
            world_size=self.world_size,
        )
        await network.call(process, primary, "seal_shard", request, _SEAL_SECONDS)

    async def _send(self, primary: str, intent: storage.WriteIntent, data: bytes) -> None:
        """Over gRPC, or over the data channel, as it comes."""
        network, process = self.control.network, self.control.process
        if self.random.random() < 0.5:
            frames = [Frame(open=intent.SerializeToString()), *frames_of(data)]
            await network.call(process, primary, "write_blob", frames, _WRITE_SECONDS)
            return
        request = storage.OpenWriteRequest(request_id=random_id(), intent=intent)
        opened = await network.call(process, primary, "open_write", request, CALL_SECONDS)
        if not opened.already_stored:
            transfer = (opened.ticket, checked_blocks(data), summary_of(data))
            try:
                await network.call(process, primary, "receive_blocks", transfer, _WRITE_SECONDS)
            except PermissionDeniedError as error:  # as the SDK takes it: the node was started again meanwhile
                raise UnavailableError(error.message) from error

    async def _wait(self, save_id: SaveId, step: int) -> Save:
        request = control.WaitSaveRequest(save_id=save_id, job=self.job, step=step, wait_ms=_WAIT_MS)
        while True:
            response = await self.control.call("wait_save", request, timeout_seconds=CALL_SECONDS + _WAIT_MS / 1000)
            save = convert.save_from(response.checkpoint)
            if save.state is SaveState.ABORTED:
                raise SaveFailedError(f"{save.title} was aborted: {save.note}")
            if save.state is not SaveState.PENDING:
                return save

    async def restore(self, step: int | None = None) -> tuple[Save, list[bytes]] | None:
        """The newest checkpoint and this rank's bytes of it; None if there is none."""
        listing = control.ListCheckpointsRequest(job=self.job, page_size=100)
        saves = [convert.save_from(c) for c in (await self.control.call("list_checkpoints", listing)).checkpoints]
        found = next((save for save in saves if step in (None, save.step)), None)
        if found is None:
            return None
        for tries_left in reversed(range(_READ_TRIES)):
            request = control.ListShardsRequest(save_id=found.save_id, rank=self.rank, pool=self.pool)
            shards = (await self.control.call("list_shards", request)).shards
            if not shards:
                raise NotFoundError(f"{found.title} was collected meanwhile")
            shard = convert.shard_from(shards[0])
            try:
                return found, [await self._read_either(found, shard, blob) for blob in shard.blobs]
            except NotFoundError:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def _read_either(self, save: Save, shard: Shard, blob: Blob) -> bytes:
        """If too little of it is in reach, from its mirror in another pool."""
        try:
            return await self._read(save, blob)
        except (UnavailableError, DeadlineExceededError, NotFoundError, CorruptDataError):
            mirror = twin_of(shard, blob)
            if mirror is None:
                raise
            return await self._read(save, mirror)

    async def _read(self, save: Save, blob: Blob) -> bytes:
        """From as many holders that count as are needed; the next one on error."""
        failure: SdrsError = NotFoundError(f"blob {blob.id} has too few holders")
        reading = BlobReading(blob)
        holders = [holder for holder in blob.holders if not holder.dropping]
        self.random.shuffle(holders)
        for holder in holders:
            if not reading.lacks(holder):
                continue
            read = storage.ReadBlobRequest(blob_id=blob.id, fragment_index=holder.fragment_index)
            try:
                frames = await self.control.network.call(
                    self.control.process, holder.node_id, "read_blob", read, CALL_SECONDS
                )
                reading.take(holder, frames)
                data = reading.result()
                if data is not None:
                    return data
            except CorruptDataError as error:
                failure = error
                await self._report(save, blob, holder)
            except SdrsError as error:
                failure = error
        raise failure

    async def _report(self, save: Save, blob: Blob, holder: Holder) -> None:
        request = control.ReportDamageRequest(
            request_id=random_id(),
            job=save.job,
            step=save.step,
            save_id=save.save_id,
            rank=self.rank,
            blob_id=blob.id,
            node_id=holder.node_id,
        )
        with suppress(SdrsError):
            await self.control.call("report_damage", request, patience_seconds=0.0)


def contents_of(job: str, attempt: Attempt, step: int, rank: int) -> tuple[bytes, ...]:
    """What a rank saves: told by who and what it is, so that whoever reads it back knows what to expect."""
    title = f"{job} {attempt.run}:{attempt.ordinal} step {step} rank {rank}"
    if job.startswith(FROZEN):
        still = tuple(f"{job} rank {rank} for some steps {step // steps}" for steps in (3, 7))
        return tuple(_content(text, n + rank) for n, text in enumerate((title, *still)))
    return tuple(_content(f"{title} blob {ordinal}", step + rank + ordinal) for ordinal in range(1 + (step + rank) % 2))


def _content(title: str, turn: int) -> bytes:
    """Less than a block, a few, or some stripes of any code and a bit."""
    parts = (f"{title} part {number}\n" for number in range((1, 4, 15)[turn % 3]))
    return "".join(parts).encode()


def _references(begun: control.BeginSaveResponse, contents: Sequence[bytes]) -> dict[int, Reference]:
    offers = [convert.reference_from(offer) for offer in begun.offers]
    new = [NewBlob(ordinal, len(data), _blake3(data)) for ordinal, data in enumerate(contents)]
    return decide_references(offers, new, least_bytes=1)


def _blake3(data: bytes) -> str:
    hasher = blake3_hasher()
    assert hasher is not None
    hasher.update(memoryview(data))
    return hasher.hexdigest()


def _shard(
    begun: control.BeginSaveResponse,
    rank: int,
    contents: Sequence[bytes],
    ids: Sequence[BlobId],
    references: dict[int, Reference],
) -> Shard:
    hashes = [hash_of(data) for data in contents]
    sizes = [len(data) for data in contents]
    blobs = tuple(
        Blob(blob_id, ordinal, sizes[ordinal], hashes[ordinal], blake3=_blake3(contents[ordinal]))
        for ordinal, blob_id in enumerate(ids)
        if ordinal not in references
    )
    whole = content_hash(zip(sizes, hashes, strict=True))
    shard = Shard(SaveId(begun.save_id), rank, ContentKind.STATE, sum(sizes), whole, blobs)
    return replace(shard, references=tuple(references.values()))


# What ends a save without being anybody's fault: a newer attempt took over, or nothing could be reached.
GIVEN_UP = (
    AlreadyExistsError,
    DeadlineExceededError,
    FullError,
    NotFoundError,
    RefusedError,
    SaveFailedError,
    StaleAttemptError,
    UnavailableError,
)
