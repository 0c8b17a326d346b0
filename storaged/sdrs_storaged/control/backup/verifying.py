"""Backups are looked at again: whether what each is made of is there, and is what it was.

Of each backup the commit record and all manifests are read and every object is looked up; of a sample, or of all if
that was asked for, every byte is read and compared (I5). Content that is damaged is condemned: the next backup uploads
it anew under another name, if the cluster still has it (P25).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from blake3 import blake3 as new_blake3

from sdrs_core import checksums
from sdrs_core.backup.manifests import BackedUpBlob, CommitRecord, ObjectPlace, ShardManifest
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import CorruptDataError, NotFoundError, RefusedError
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.records import Copy, CopyState, ObjectState
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.meta.store import Op
from sdrs_storaged.control.records import Stored
from sdrs_storaged.logs import get_log
from sdrs_storaged.seeing_through import all_of

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket
    from sdrs_storaged.bucket.downloading import ObjectReader

log = get_log("backup")

# Of the content, besides the first of each backup.
_SAMPLE = 0.05
_HEADS_AT_ONCE = 8
# Between two looks at whether it is to go on.
_BLOCKS_AT_ONCE = 32
_MAX_READ = 200_000  # I10


class Verifying:
    def __init__(self, copies: Copies, buckets: Buckets, events: Events, clock: Clock, cluster_id: str) -> None:
        self._copies = copies
        self._buckets = buckets
        self._events = events
        self._clock = clock
        self._cluster_id = cluster_id

    async def carry_out(self, run: RunProgress) -> None:
        record, target = run.record, run.target
        if target.source_cluster_id:
            raise RefusedError(
                f"backup target {target.name} is another cluster's: importing from it verifies what comes"
            )
        chosen = [stored async for stored in self._chosen(run) if stored.key > record.done_key]
        record.total_checkpoints = record.done_checkpoints + len(chosen)
        record.total_bytes = record.done_bytes + sum(stored.value.size_bytes for stored in chosen)
        # Objects that several backups have are read once; the same content under another name is another object.
        read: set[str] = set()
        for stored in chosen:
            copy = stored.value
            record.current = copy.title
            # What was found damaged, perhaps a moment ago with another backup, is not cleared by a sample.
            known = await self._copies.get(copy.target, copy.save_id)
            await self._verify(run, copy, read, is_full=record.selection.full or bool(known and known.value.damage))
            record.done_checkpoints += 1
            record.done_key = stored.key
            await run.keep()
        record.current = ""

    async def _chosen(self, run: RunProgress) -> AsyncIterator[Stored[Copy]]:
        selection = run.record.selection
        async for stored in self._copies.of_target(run.target.name):
            copy = stored.value
            if copy.state is CopyState.LISTED and selection.takes(copy.pool, copy.job, copy.step):
                yield stored

    async def verify_whole(self, run: RunProgress, copy: Copy) -> None:
        """Every byte of it; CorruptDataError if something is wrong, which is on record then."""
        damage = await self._verify(run, copy, set(), is_full=True)
        if damage:
            raise CorruptDataError(f"the backup of {copy.title} in {copy.target} is damaged: {damage}")

    async def _verify(self, run: RunProgress, copy: Copy, read: set[str], *, is_full: bool) -> str:
        before = run.record.done_bytes
        first, count = "", 0
        async for problem in self._problems(run, copy, read, is_full=is_full):
            first, count = first or problem, count + 1
        damage = f"{first} (and {count - 1} more)" if count > 1 else first
        run.record.done_bytes = before + copy.size_bytes
        now = self._clock.unix_ms()
        event: tuple[Op, ...] = ()
        if damage:
            run.record.failed_checkpoints += 1
            run.record.tell(f"the backup of {copy.title} is damaged: {damage}")
            log.error("backup_damaged", target=copy.target, job=copy.job, step=copy.step, damage=damage)
            text = f"the backup of {copy.title} in {copy.target} is damaged: {damage}"
            event = (self._events.entry("backup_damaged", text),) if not copy.damage else ()
        await self._copies.change(
            copy.target, copy.save_id, lambda known: replace(known, verified_unix_ms=now, damage=damage), event
        )
        return damage

    async def _problems(self, run: RunProgress, copy: Copy, read: set[str], *, is_full: bool) -> AsyncIterator[str]:
        """All of them: what is not found now would be relied on by the backup that mends the others."""
        try:
            commit = await self._commit(run.target, copy)
        except (NotFoundError, CorruptDataError) as error:
            yield error.message
            return
        for rank in range(copy.world_size):
            try:
                manifest = await self._manifest(run.target, commit, rank)
            except (NotFoundError, CorruptDataError) as error:
                yield error.message
                continue
            damaged = await self._look_up(run.target, manifest)
            damaged |= await self._read(run, manifest, read, set(damaged), is_full=is_full)
            await self._condemn(run.target.name, damaged)
            for problem in damaged.values():
                yield problem

    async def _commit(self, target: Target, copy: Copy) -> CommitRecord:
        record = await self._buckets.call(
            target,
            lambda bucket: manifests(bucket, self._cluster_id).get_commit(copy.job, copy.step, copy.save_id),
        )
        if (record.world_size, record.size_bytes, len(record.shards)) != (
            copy.world_size,
            copy.size_bytes,
            copy.world_size,
        ):
            raise CorruptDataError("its commit record is of another checkpoint")
        return record

    async def _manifest(self, target: Target, commit: CommitRecord, rank: int) -> ShardManifest:
        return await self._buckets.call(
            target, lambda bucket: manifests(bucket, self._cluster_id).get_shard(commit, rank)
        )

    async def _look_up(self, target: Target, manifest: ShardManifest) -> dict[BackedUpBlob, str]:
        """Of those that are missing or have another size, what is wrong."""
        found: dict[BackedUpBlob, str] = {}
        for start in range(0, len(manifest.blobs), _HEADS_AT_ONCE):
            some = manifest.blobs[start : start + _HEADS_AT_ONCE]
            problems = await all_of(self._look_up_one(target, blob) for blob in some)
            found |= {blob: problem for blob, problem in zip(some, problems, strict=True) if problem}
        return found

    async def _look_up_one(self, target: Target, blob: BackedUpBlob) -> str:
        return await self._buckets.call(target, missing, blob.place)

    async def _read(
        self, run: RunProgress, manifest: ShardManifest, read: set[str], but: set[BackedUpBlob], *, is_full: bool
    ) -> dict[BackedUpBlob, str]:
        found: dict[BackedUpBlob, str] = {}
        for number, blob in enumerate(manifest.blobs):
            is_drawn = (manifest.rank, number) == (0, 0) or random.random() < _SAMPLE
            if blob.place.key in read or blob in but or not (is_full or is_drawn):
                continue
            try:
                await self._read_one(run, blob)
            except (NotFoundError, CorruptDataError) as error:
                found[blob] = error.message
                continue
            if len(read) < _MAX_READ:
                read.add(blob.place.key)
        return found

    async def _read_one(self, run: RunProgress, blob: BackedUpBlob) -> None:
        reading = _Reading(blob)
        limit = run.target.max_bytes_per_second
        try:
            while not reading.is_done:
                await run.keep()
                size_bytes = await self._buckets.call(run.target, reading.go_on)
                run.record.done_bytes += size_bytes
                run.record.moved_bytes += size_bytes
                if limit:
                    await asyncio.sleep(size_bytes / limit)
        finally:
            reading.close()

    async def _condemn(self, target: TargetName, damaged: dict[BackedUpBlob, str]) -> None:
        """Every backup that uses it is damaged with it, also one that is not finished: its ranks are looked up anew."""
        problems: dict[str, str] = {}
        for blob, problem in damaged.items():
            stored = await self._copies.object(target, blob.blake3)
            if stored and blob.place.key in stored.value.former:
                continue  # its users were told when it was condemned, and others have the content under its new name
            problems[blob.blake3] = problem
            if stored and stored.value.place.key == blob.place.key and stored.value.state is ObjectState.STORED:
                condemned = replace(stored.value, state=ObjectState.CONDEMNED)
                await self._copies.put_object(target, blob.blake3, stored, condemned)
        users: dict[SaveId, str] = {}
        if problems:
            async for uses in self._copies.uses(target):
                for identity in problems.keys() & set(uses.value.identities):
                    users[SaveId(uses.key.split("/")[-2])] = problems[identity]
        for save_id, problem in users.items():
            copy = await self._copies.get(target, save_id)
            if copy and copy.value.state is not CopyState.CONDEMNED and not copy.value.damage:
                await self._copies.change(target, save_id, lambda known, why=problem: replace(known, damage=why))  # type: ignore[misc]


class _Reading:
    """One object, a few blocks at a time, each compared; in a thread, one call after the other."""

    def __init__(self, blob: BackedUpBlob) -> None:
        self._blob = blob
        self._reader: ObjectReader | None = None
        self._hasher = new_blake3()
        self._next_block = 0
        self._room = bytearray(min(BLOCK_BYTES, blob.size_bytes))
        self.is_done = False

    def go_on(self, bucket: Bucket) -> int:
        """How many bytes it read."""
        from sdrs_storaged.bucket.downloading import open_object

        blob = self._blob
        if self._reader is None:
            self._reader = open_object(bucket, blob.place)
        read_bytes, count = 0, checksums.block_count(blob.size_bytes)
        for _ in range(min(_BLOCKS_AT_ONCE, count - self._next_block)):
            start = self._next_block * BLOCK_BYTES
            block = memoryview(self._room)[: min(BLOCK_BYTES, blob.size_bytes - start)]
            self._reader.receive(block)
            if checksums.digest(block) != checksums.table_entry(blob.table, self._next_block):
                raise CorruptDataError(f"block {self._next_block} of object {blob.place.key} is not what it was")
            self._hasher.update(block)
            self._next_block += 1
            read_bytes += len(block)
        if self._next_block == count:
            if self._hasher.hexdigest() != blob.blake3:
                raise CorruptDataError(f"object {blob.place.key} does not have the BLAKE3 that its backup says")
            self.is_done = True
        return read_bytes

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def missing(bucket: Bucket, place: ObjectPlace) -> str:
    """What a look at its name and size finds wrong with an object; empty: nothing."""
    from sdrs_storaged.bucket.encryption import sealed_bytes

    try:
        found_bytes = bucket.store.head(place.key).size_bytes
    except NotFoundError:
        return f"object {place.key} is missing"
    # It is larger than its content where it is encrypted.
    wanted_bytes = sealed_bytes(place.size_bytes) if place.data_key_id else place.size_bytes
    return (
        ""
        if found_bytes == wanted_bytes
        else (f"object {place.key} has {found_bytes} bytes, it should have {wanted_bytes}")
    )
