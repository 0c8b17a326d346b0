"""The buckets as this controller sees them.

All calls block, so they run in threads; each target has its own few. One that hangs is waited for until a deadline, and
holds up nothing but itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import PermissionDeniedError, UnavailableError
from sdrs_storaged.bucket.transfer_memory import TransferMemory
from sdrs_storaged.lone_threads import in_lone_thread

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket
    from sdrs_storaged.bucket.manifest_store import ManifestStore

T = TypeVar("T")
P = ParamSpec("P")

_THREADS = 8
_CALL_SECONDS = 120.0
_PAGE = 500


class Buckets:
    def __init__(self) -> None:
        self._slots: dict[TargetName, asyncio.Semaphore] = {}
        self._open: dict[TargetName, Bucket] = {}
        self._memory = TransferMemory()

    async def call(
        self, target: Target, work: Callable[Concatenate[Bucket, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """``work`` with the bucket, in a thread; UnavailableError if the store keeps it waiting for too long."""
        return await self.in_thread(target, partial(self._work, target, work, *args, **named))

    async def in_thread(self, target: Target, work: Callable[[], T]) -> T:
        """So many at once: those that hang count until they are through, whoever gave up on them (I10)."""
        slots = self._slots.setdefault(target.name, asyncio.Semaphore(_THREADS))
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await slots.acquire()
                return await in_lone_thread(f"backup-{target.name}", work, slots.release)
        except TimeoutError:
            raise UnavailableError(
                f"backup target {target.name} did not answer within {_CALL_SECONDS:.0f} s", target=target.name
            ) from None

    def _work(self, target: Target, work: Callable[Concatenate[Bucket, P], T], *args: P.args, **named: P.kwargs) -> T:
        bucket = self._open.get(target.name)
        if bucket is None or bucket.target != target:
            # Only where there is a target: what speaks with buckets takes long to load.
            from sdrs_storaged.bucket.opening import open_bucket

            bucket = self._open[target.name] = open_bucket(target, memory=self._memory)
        try:
            return work(bucket, *args, **named)
        except PermissionDeniedError:
            # Credentials and keys are looked for again: perhaps somebody has put the right ones there.
            self._open.pop(target.name, None)
            raise

    async def each(self, target: Target, listing: Callable[[Bucket], Iterator[T]]) -> AsyncGenerator[T, None]:
        """What ``listing`` gives, a page at a time. One that ends without an error was complete (I7)."""
        found = await self.call(target, listing)
        while page := await self.call(target, lambda bucket: list(islice(found, _PAGE))):
            for one in page:
                yield one

    def forget(self, target: TargetName) -> None:
        self._open.pop(target, None)
        self._slots.pop(target, None)


def manifests(bucket: Bucket, cluster_id: str) -> ManifestStore:
    """What the bucket says of itself, of one cluster's backups."""
    from sdrs_storaged.bucket.manifest_store import ManifestStore

    return ManifestStore(bucket, cluster_id)
