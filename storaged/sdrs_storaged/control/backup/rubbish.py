"""What is in the bucket and on no record: left by what was interrupted, or by a history that is gone.

I7: only what two complete listings have shown, and what is older than a day. Any error ends it with nothing deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import xxhash

from sdrs_core.backup import layout
from sdrs_core.backup.targets import TargetName
from sdrs_core.errors import SdrsError
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
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
        found = [key async for key in self._unknown(run)]
        before = self._seen.get(target.name, set())
        self._seen[target.name] = set(found[:_MAX_SEEN])
        going = [key for key in found if key in before]
        for start in range(0, len(going), _BATCH):
            await run.keep()
            batch = going[start : start + _BATCH]
            refused = await self._buckets.call(target, _delete, self._cluster_id, batch)
            run.record.deleted_objects += len(batch) - len(refused)
        if going:
            log.info("backup_rubbish_deleted", target=target.name, objects=len(going))
        await self._abort_uploads(run)

    async def _unknown(self, run: RunProgress) -> AsyncIterator[str]:
        target, old_ms = run.target, self._clock.unix_ms() - self._grace_ms
        # Listed before the records are read: whatever is uploaded has its record first.
        listed = [
            stored.key
            async for stored in self._buckets.each(target, lambda bucket: manifests(bucket, self._cluster_id).objects())
            if stored.modified_unix_ms < old_ms
        ]
        known = await self._known(target.name)
        for key in listed:
            if _digest(key) not in known:
                yield key
        save_id, is_known = SaveId(""), True
        prefix = layout.all_shards(self._cluster_id)
        async for stored in self._buckets.each(target, lambda bucket: manifests(bucket, self._cluster_id).shards()):
            of = SaveId(stored.key.removeprefix(prefix).partition("/")[0])
            if of != save_id:
                save_id, is_known = of, await self._copies.get(target.name, of) is not None
            if not is_known and stored.modified_unix_ms < old_ms:
                yield stored.key

    async def _known(self, target: TargetName) -> set[int]:
        """By digest: that two names share one only keeps something for longer."""
        found: set[int] = set()
        async for stored in self._copies.objects(target):
            record = stored.value
            found.update(map(_digest, (record.place.key, *record.also, *record.former)))
        return found

    async def _abort_uploads(self, run: RunProgress) -> None:
        """Those that were begun long ago for what is on no record."""
        target, old_ms = run.target, self._clock.unix_ms() - self._grace_ms
        left = [
            upload
            async for upload in self._buckets.each(target, lambda bucket: manifests(bucket, self._cluster_id).uploads())
            if upload.begun_unix_ms < old_ms
        ]
        known = await self._known(target.name) if left else set()
        for upload in left:
            if _digest(upload.key) not in known:
                await self._buckets.call(target, _abort, self._cluster_id, upload)


def _digest(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())


def _delete(bucket: Bucket, cluster_id: str, keys: list[str]) -> dict[str, SdrsError]:
    return manifests(bucket, cluster_id).delete(keys)


def _abort(bucket: Bucket, cluster_id: str, upload: Upload) -> None:
    manifests(bucket, cluster_id).abort(upload)
