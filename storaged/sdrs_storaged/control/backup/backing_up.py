"""Checkpoints into a bucket: committed ones only, the newest first, and of each only what the bucket does not have.

The order is what makes it safe to be interrupted anywhere: what a shard is made of is noted (so that pruning keeps it)
before any of it is relied on; each content is in the bucket before a manifest names it; and the commit record comes
last, so what was torn is never visible (I2).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from sdrs_core.backup.manifests import BackedUpBlob, CommitRecord, ObjectPlace, ShardManifest
from sdrs_core.backup.pruning import Kept, decide_pruning
from sdrs_core.backup.runs import Selection
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.checkpoints import Blob, Save, Shard, newest_by_step
from sdrs_core.errors import NotFoundError, UnavailableError
from sdrs_core.ids import SaveId
from sdrs_core.mirroring import twin_of
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.orders import Upload
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.records import Copy, CopyState, ObjectRecord, ObjectState, Uses
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.backup.uploads import UnreadableError, Uploads
from sdrs_storaged.control.backup.verifying import missing
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.records import PAGE_ENTRIES, Records
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log
from sdrs_storaged.seeing_through import all_of

log = get_log("backup")

# How long nodes are waited for that have what nobody else has.
_AWAY_SECONDS = 20.0
_LOOK_AGAIN_SECONDS = 0.5
# Blobs of one rank whose tables are asked for at once.
_DESCRIBED_AT_ONCE = 8


@dataclass(slots=True)
class _Work:
    """One checkpoint on its way."""

    run: RunProgress
    save: Save
    data_key_id: str
    gate: asyncio.Semaphore
    # What is known of its ranks is not trusted: a verification found something wrong with it.
    is_anew: bool
    uploaded_bytes: int = 0
    # Content that several of its blobs have is uploaded once.
    under_way: dict[str, asyncio.Future[ObjectPlace]] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        return self.run.target


class BackingUp:
    def __init__(
        self,
        records: Records,
        catalog: Catalog,
        copies: Copies,
        policies: Policies,
        buckets: Buckets,
        uploads: Uploads,
        clock: Clock,
        cluster_id: str,
    ) -> None:
        self._records = records
        self._catalog = catalog
        self._copies = copies
        self._policies = policies
        self._buckets = buckets
        self._uploads = uploads
        self._clock = clock
        self._cluster_id = cluster_id
        self._uploading: Counter[TargetName] = Counter()

    async def carry_out(self, run: RunProgress) -> None:
        record = run.record
        chosen = await self._choose(run)
        record.total_checkpoints = record.done_checkpoints + len(chosen)
        record.total_bytes = record.done_bytes + sum(save.size_bytes for save in chosen)
        record.failed_checkpoints = 0
        await run.keep(at_once=True)
        until = self._clock.monotonic_seconds() + _AWAY_SECONDS
        while chosen:
            # Those whose nodes are away keep nobody waiting: a controller that has just begun does not know all nodes.
            away = [save for save in chosen if not await self._try(run, save, is_last=_is_over(self._clock, until))]
            chosen = away
            if away:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        record.current = ""

    async def _try(self, run: RunProgress, save: Save, *, is_last: bool) -> bool:
        """Whether it is settled, for better or worse."""
        record = run.record
        record.current = save.title
        before = record.done_bytes
        try:
            await self._back_up(run, save)
            record.done_checkpoints += 1
            # What is compressed is less than that.
            record.done_bytes = before + save.size_bytes
        except (UnreadableError, NotFoundError) as error:
            record.done_bytes = before
            if isinstance(error, UnreadableError) and error.is_away and not is_last:
                return False
            if await self._is_wanted(save):
                record.failed_checkpoints += 1
                record.tell(f"{save.title} could not be backed up: {error.message}")
            else:
                record.skipped_checkpoints += 1
                record.tell(f"{save.title} was deleted before it was backed up")
        except BaseException:
            record.done_bytes = before
            raise
        await run.keep()
        return True

    # What to back up

    async def _choose(self, run: RunProgress) -> list[Save]:
        target, selection = run.target.name, run.record.selection
        backed_up: dict[SaveId, Copy] = {}
        async for stored in self._copies.of_target(target):
            if stored.value.state is CopyState.CONDEMNED or stored.value.is_good:
                backed_up[stored.value.save_id] = stored.value
        waiting: list[Save] = []
        async for of_step in self._by_step(selection):
            waiting += [save for save in of_step if save.save_id not in backed_up]
        if run.record.policy_key:
            waiting = self._worth_it(run, waiting, list(backed_up.values()))
        return sorted(waiting, key=lambda save: (save.committed_unix_ms, save.step), reverse=True)

    async def _by_step(self, selection: Selection) -> AsyncIterator[list[Save]]:
        """What a reader sees of each step, if it is sound and here."""
        of_step: list[Save] = []
        async for stored in self._records.all(keys.saves_of_job(selection.job) if selection.job else keys.SAVES, Save):
            save = stored.value
            if of_step and (of_step[0].job, of_step[0].step) != (save.job, save.step):
                yield [one for one in newest_by_step(of_step) if _is_sound(one, selection)]
                of_step = []
            of_step.append(save)
        yield [one for one in newest_by_step(of_step) if _is_sound(one, selection)]

    def _worth_it(self, run: RunProgress, waiting: list[Save], there: list[Copy]) -> list[Save]:
        """Without those that its rules would prune at once."""
        jobs: dict[tuple[str, str], list[Kept]] = {}
        for copy in there:
            if copy.is_good:
                jobs.setdefault((copy.pool, copy.job), []).append(kept(copy))
        for save in waiting:
            one = Kept(save.save_id, save.step, save.attempt, save.committed_unix_ms, is_held=save.held)
            jobs.setdefault((save.pool, save.job), []).append(one)
        pruned: set[SaveId] = set()
        for (pool, job), backups in jobs.items():
            pruned |= decide_pruning(backups, self._policies.keep(run.target.name, pool, job))
        return [save for save in waiting if save.save_id not in pruned]

    async def _is_wanted(self, save: Save) -> bool:
        try:
            found = await self._catalog.get(save.job, save.step)
        except NotFoundError:
            return False
        return found.value.save_id == save.save_id

    # One checkpoint

    async def _back_up(self, run: RunProgress, save: Save) -> None:
        target = run.target
        stored = await self._copies.get(target.name, save.save_id)
        if stored is None:
            await self._copies.add(_copy_of(target, self._cluster_id, save))
            reach("backup.begun")
        data_key_id = await self._buckets.call(target, lambda bucket: bucket.new_data_key_id(self._cluster_id))
        gate = asyncio.Semaphore(target.concurrency)
        work = _Work(run, save, data_key_id, gate, is_anew=bool(stored and stored.value.damage))
        shards = await self._put_shards(work)
        record = CommitRecord(
            cluster_id=self._cluster_id,
            save_id=save.save_id,
            job=save.job,
            step=save.step,
            attempt=save.attempt,
            world_size=save.world_size,
            pool=save.pool,
            kind=save.kind,
            size_bytes=save.size_bytes,
            created_unix_ms=save.created_unix_ms,
            committed_unix_ms=save.committed_unix_ms,
            backed_up_unix_ms=self._clock.unix_ms(),
            shards=tuple(shards),
            data_key_id=data_key_id,
        )
        reach("backup.committing")
        # A deposed controller must not publish what its successor may have given up.
        await self._records.check_leading()
        # I2: last of all.
        await self._buckets.call(target, lambda bucket: manifests(bucket, self._cluster_id).put_commit(record))
        reach("backup.committed")
        await self._copies.change(
            target.name,
            save.save_id,
            lambda copy: replace(
                copy,
                state=CopyState.LISTED,
                backed_up_unix_ms=record.backed_up_unix_ms,
                uploaded_bytes=copy.uploaded_bytes + work.uploaded_bytes,
                damage="",
                verified_unix_ms=0,
            ),
        )
        reach("backup.listed")
        log.info(
            "checkpoint_backed_up", target=target.name, job=save.job, step=save.step, new_bytes=work.uploaded_bytes
        )

    async def _put_shards(self, work: _Work) -> list[str]:
        """The BLAKE3 of each rank's manifest. A few ranks at once, in order."""
        manifests: dict[int, str] = {}
        after, more = "", True
        while more:
            page, more = await self._catalog.shards(work.save.save_id, after=after, limit=PAGE_ENTRIES)
            homes = await self._catalog.homes.of_page([stored.value for stored in page])
            at_once = work.target.concurrency
            for start in range(0, len(page), at_once):
                shards = [await self._catalog.homes.resolved(one.value, homes) for one in page[start : start + at_once]]
                found = await all_of(self._put_shard(work, shard) for shard in shards)
                manifests |= {shard.rank: manifest for shard, manifest in zip(shards, found, strict=True)}
                await work.run.keep()
            after = page[-1].key if page else after
        if sorted(manifests) != list(range(work.save.world_size)):
            raise NotFoundError(f"{work.save.title} has not all its ranks on record any more")
        return [manifests[rank] for rank in range(work.save.world_size)]

    async def _put_shard(self, work: _Work, shard: Shard) -> str:
        target, save_id = work.target, work.save.save_id
        known = await self._copies.uses_of_rank(target.name, save_id, shard.rank)
        if known and known.manifest and not work.is_anew:
            work.run.record.done_bytes += shard.size_bytes
            return known.manifest
        blobs = sorted(shard.blobs, key=lambda blob: blob.ordinal)
        forms = [_forms(shard, blob) for blob in blobs]
        described: list[tuple[bytes, str]] = []
        for start in range(0, len(forms), _DESCRIBED_AT_ONCE):
            some = forms[start : start + _DESCRIBED_AT_ONCE]
            described += await all_of(self._uploads.describe(of_blob) for of_blob in some)
        identities = tuple(identity for _, identity in described)
        # Before anything of it is relied on: from here on pruning keeps it.
        await self._copies.put_uses(target.name, save_id, shard.rank, Uses(identities))
        reach("backup.uses")
        places = await all_of(
            self._stored(work, of_blob, identity) for of_blob, identity in zip(forms, identities, strict=True)
        )
        manifest = ShardManifest(
            save_id,
            shard.rank,
            shard.kind,
            shard.size_bytes,
            shard.content_hash,
            tuple(
                BackedUpBlob(blob.ordinal, blob.size_bytes, blob.hash, identity, table, place, blob.packing)
                for blob, (table, identity), place in zip(blobs, described, places, strict=True)
            ),
        )
        name = await self._buckets.call(
            target, lambda bucket: manifests(bucket, self._cluster_id).put_shard(manifest, work.data_key_id)
        )
        reach("backup.manifest")
        await self._copies.put_uses(target.name, save_id, shard.rank, Uses(identities, name))
        return name

    async def _stored(self, work: _Work, forms: Sequence[Blob], identity: str) -> ObjectPlace:
        """Where the content is, once the bucket has it."""
        known = work.under_way.get(identity)
        if known is not None:
            place = await asyncio.shield(known)
            work.run.record.done_bytes += place.size_bytes
            return place
        mine = work.under_way[identity] = asyncio.get_running_loop().create_future()
        try:
            async with work.gate:
                place = await self._store(work, forms, identity)
        except BaseException as error:
            del work.under_way[identity]
            why = error if isinstance(error, Exception) else UnavailableError("the upload was given up")
            mine.set_exception(why)
            mine.exception()  # heard, also if nobody else waits for it
            raise
        mine.set_result(place)
        return place

    async def _store(self, work: _Work, forms: Sequence[Blob], identity: str) -> ObjectPlace:
        target, size_bytes = work.target, forms[0].size_bytes
        stored = await self._copies.object(target.name, identity)
        if stored and stored.value.state is ObjectState.STORED and work.is_anew:
            # Where something was damaged, more may be: where a manifest is lost, nobody has looked at its content.
            problem = await self._buckets.call(target, missing, stored.value.place)
            if problem:
                condemned = replace(stored.value, state=ObjectState.CONDEMNED)
                stored = await self._copies.put_object(target.name, identity, stored, condemned)
        if stored and stored.value.state is ObjectState.STORED:
            work.run.record.done_bytes += size_bytes
            return stored.value.place
        if stored is None or stored.value.state is ObjectState.CONDEMNED:
            # P25: a name that was never used; what is condemned goes its way under its own.
            run_id = work.run.record.id
            place = await self._buckets.call(
                target, lambda bucket: bucket.new_place(self._cluster_id, identity, run_id, size_bytes)
            )
            former = (stored.value.place.key, *stored.value.former) if stored else ()
            fresh = ObjectRecord(place, ObjectState.UPLOADING, former, stored.value.also if stored else ())
            stored = await self._copies.put_object(target.name, identity, stored, fresh)
        reach("backup.object")
        self._uploading[target.name] += 1
        try:
            order = Upload(forms[0], target, stored.value.place, identity)
            await self._uploads.upload(work.run, forms, order, lambda: self._share(target))
        finally:
            self._uploading[target.name] -= 1
        reach("backup.uploaded")
        done = replace(stored.value, state=ObjectState.STORED)
        await self._copies.put_object(target.name, identity, stored, done)
        work.uploaded_bytes += size_bytes
        return done.place

    def _share(self, target: Target) -> int:
        """Of the target's allowance, for one of those that upload now; 0: as fast as it goes."""
        limit = target.max_bytes_per_second
        return max(1, limit // max(1, self._uploading[target.name])) if limit else 0


def _is_over(clock: Clock, until_seconds: float) -> bool:
    return clock.monotonic_seconds() >= until_seconds


def kept(copy: Copy, *, is_needed: bool = False) -> Kept:
    return Kept(
        copy.save_id,
        copy.step,
        copy.attempt,
        copy.committed_unix_ms,
        is_held=copy.held,
        is_needed=is_needed,
        is_good=copy.is_good,
    )


def _is_sound(save: Save, selection: Selection) -> bool:
    return not save.damage and not save.evicted and selection.takes(save.pool, save.job, save.step)


def _forms(shard: Shard, blob: Blob) -> list[Blob]:
    twin = twin_of(shard, blob)
    return [blob, twin] if twin else [blob]


def _copy_of(target: Target, cluster_id: str, save: Save) -> Copy:
    return Copy(
        target=target.name,
        cluster_id=cluster_id,
        save_id=save.save_id,
        job=save.job,
        step=save.step,
        attempt=save.attempt,
        world_size=save.world_size,
        pool=save.pool,
        kind=save.kind,
        size_bytes=save.size_bytes,
        created_unix_ms=save.created_unix_ms,
        committed_unix_ms=save.committed_unix_ms,
    )
