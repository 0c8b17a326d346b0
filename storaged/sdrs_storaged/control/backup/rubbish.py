"""What is in the bucket and on no record: left by what was interrupted, or by a history that is gone.

I7: only what two complete listings have shown, and what is older than a day. Any error ends it with nothing deleted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

from sdrs_core.backup import layout
from sdrs_core.backup.targets import TargetName
from sdrs_core.errors import CorruptDataError, SdrsError
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.ranges import in_ranges
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.logs import get_log

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket
    from sdrs_storaged.bucket.store import Upload

log = get_log("backup")

_MAX_SEEN = 100_000  # I10; the others wait for the next look
_BATCH = 500


class Rubbish:
    def __init__(
        self, copies: Copies, buckets: Buckets, clock: Clock, cluster_id: str, *, grace_seconds: float
    ) -> None:
        self._copies = copies
        self._buckets = buckets
        self._clock = clock
        self._cluster_id = cluster_id
        self._grace_ms = int(grace_seconds * 1000)
        # What the last complete look has shown.
        self._seen: dict[TargetName, set[str]] = {}

    async def carry_out(self, run: RunProgress) -> None:
        target = run.target
        await self._check_whole(target.name)
        before = self._seen.get(target.name, set())
        found: set[str] = set()
        async for key in self._unknown(run):
            if len(found) < _MAX_SEEN or key in before:
                found.add(key)
        self._seen[target.name] = found
        going = sorted(found & before)
        for start in range(0, len(going), _BATCH):
            await run.keep()
            batch = going[start : start + _BATCH]
            refused = await self._buckets.call(target, _delete, self._cluster_id, batch)
            run.record.deleted_objects += len(batch) - len(refused)
        if going:
            log.info("backup_rubbish_deleted", target=target.name, objects=len(going))
        await self._abort_uploads(run)

    async def _check_whole(self, target: TargetName) -> None:
        """I7: a catalog that does not know where some content is may not know of something else, either."""

        async def used(prefix: str) -> AsyncGenerator[str, None]:
            async for uses in self._copies.uses(target):
                for identity in uses.value.identities:
                    if identity.startswith(prefix):
                        yield identity

        async for prefix, identities in in_ranges(used):
            async for stored in self._copies.objects(target, prefix):
                identities.discard(stored.key.rpartition("/")[2])
            if identities:
                raise CorruptDataError(
                    f"the catalog has lost where content is that backups in {target} use (BLAKE3 {min(identities)}): "
                    "nothing is deleted"
                )

    async def _unknown(self, run: RunProgress) -> AsyncIterator[str]:
        target, old_ms = run.target, self._clock.unix_ms() - self._grace_ms

        async def old_objects(prefix: str) -> AsyncGenerator[str, None]:
            async for stored in self._buckets.each(
                target, lambda bucket: manifests(bucket, self._cluster_id).objects(prefix)
            ):
                if stored.modified_unix_ms < old_ms:
                    yield stored.key

        async for _, listed in in_ranges(old_objects):
            for key in await self._without_known(target.name, listed):
                yield key
        save_id, is_known = SaveId(""), True
        prefix = layout.all_shards(self._cluster_id)
        async for stored in self._buckets.each(target, lambda bucket: manifests(bucket, self._cluster_id).shards()):
            of = SaveId(stored.key.removeprefix(prefix).partition("/")[0])
            if of != save_id:
                save_id, is_known = of, await self._copies.get(target.name, of) is not None
            if not is_known and stored.modified_unix_ms < old_ms:
                yield stored.key

    async def _without_known(self, target: TargetName, listed: set[str]) -> set[str]:
        """Listed before the records are read: whatever is uploaded has its record first."""
        if listed:
            async for stored in self._copies.objects(target):
                record = stored.value
                listed.difference_update((record.place.key, *record.also, *record.former))
        return listed

    async def _abort_uploads(self, run: RunProgress) -> None:
        """Those that were begun long ago for what is on no record."""
        target, old_ms = run.target, self._clock.unix_ms() - self._grace_ms
        left: list[Upload] = []
        async for upload in self._buckets.each(target, lambda bucket: manifests(bucket, self._cluster_id).uploads()):
            if upload.begun_unix_ms < old_ms and len(left) < _MAX_SEEN:
                left.append(upload)
        unknown = await self._without_known(target.name, {upload.key for upload in left})
        for upload in left:
            if upload.key in unknown:
                await self._buckets.call(target, _abort, self._cluster_id, upload)


def _delete(bucket: Bucket, cluster_id: str, going: list[str]) -> dict[str, SdrsError]:
    return manifests(bucket, cluster_id).delete(going)


def _abort(bucket: Bucket, cluster_id: str, upload: Upload) -> None:
    manifests(bucket, cluster_id).abort(upload)
