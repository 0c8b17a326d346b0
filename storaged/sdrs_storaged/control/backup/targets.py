"""Where backups go: added, looked up, removed. Few, and held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, RefusedError
from sdrs_core.ids import check_name
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.records import TargetRecord
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.meta.store import Compare, Delete, Op
from sdrs_storaged.control.records import MAX_TXN_RECORDS, Records, put
from sdrs_storaged.control.tables import ClusterRecord

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket

_MAX_CONCURRENCY = 64


class Targets:
    def __init__(self, records: Records, buckets: Buckets, events: Events, cluster: ClusterRecord) -> None:
        self._records = records
        self._buckets = buckets
        self._events = events
        self._cluster_id = cluster.id
        self._incarnation = cluster.incarnation
        self._known: dict[TargetName, TargetRecord] = {}
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        found = [stored.value async for stored in self._records.all(keys.BACKUP_TARGETS, TargetRecord)]
        self._known = {record.target.name: record for record in found}

    def all(self) -> list[TargetRecord]:
        return [self._known[name] for name in sorted(self._known)]

    def record(self, name: str) -> TargetRecord:
        known = self._known.get(TargetName(name))
        if known is None:
            names = ", ".join(sorted(self._known)) or "none yet"
            raise NotFoundError(f'backup target "{name}" does not exist; known targets: {names}', target=name)
        return known

    def get(self, name: str) -> Target:
        return self.record(name).target

    def writable(self, name: str) -> Target:
        """One that this cluster writes to, and goes on with."""
        record = self.record(name)
        if record.is_leaving:
            raise RefusedError(f"backup target {name} is being removed: say it again to finish that")
        if record.target.source_cluster_id:
            raise RefusedError(
                f"backup target {name} has the backups of cluster {record.target.source_cluster_id}: they are only read"
            )
        return record.target

    async def add(self, target: Target, *, take_over: bool, request_id: str) -> Target:
        """Or change the one of this name. At a prefix that another cluster writes to, it is only read."""
        _check(target)
        async with self._lock:
            known = self._known.get(target.name)
            if known and request_id and known.request_id == request_id:
                return known.target
            if known:
                _check_same(known, target)
            else:
                self._check_apart(target)
            if not target.source_cluster_id:
                rivals = self._rivals(target)
                owner = await self._buckets.call(target, _claim, self._cluster_id, rivals, take_over=take_over)
                target = replace(target, source_cluster_id="" if owner == self._cluster_id else owner)
            key = keys.backup_target(target.name)
            if known:
                record = replace(known, target=target, request_id=request_id)
                await self._records.commit([Compare.present(key)], [put(key, record)])
                self._buckets.forget(target.name)
            else:
                record = TargetRecord(target, request_id, self._incarnation)
                text = f"backup target {target.name}: bucket {target.bucket}, prefix {target.prefix or 'none'}"
                event = self._events.entry("backup_target_added", text)
                await self._records.commit([Compare.absent(key)], [put(key, record), event])
            self._known[target.name] = record
            return target

    def _check_apart(self, target: Target) -> None:
        """Two targets at one place would each take what the other uploads for rubbish."""
        place = (target.endpoint, target.bucket, target.prefix.strip("/"))
        for record in self._known.values():
            other = record.target
            is_same = place == (other.endpoint, other.bucket, other.prefix.strip("/"))
            if is_same and target.source_cluster_id == other.source_cluster_id:
                raise AlreadyExistsError(f"bucket {target.bucket} with this prefix is target {other.name} already")

    def _rivals(self, target: Target) -> frozenset[str]:
        """Those that may be at the same place, for one store may be reached at several endpoints: it tells itself."""
        place = (target.bucket, target.prefix.strip("/"))
        others = (record.target for record in self._known.values() if record.target.name != target.name)
        return frozenset(other.name for other in others if (other.bucket, other.prefix.strip("/")) == place)

    async def change(self, name: str, edit: Callable[[TargetRecord], TargetRecord], extra: Sequence[Op] = ()) -> Target:
        """With what else changes in the same transaction."""
        before = self.record(name)
        after = edit(before)
        if after != before or extra:
            await self._records.commit([], [put(keys.backup_target(name), after), *extra])
            self._known[TargetName(name)] = after
        return after.target

    async def rotate(self, name: str, encryption_key: str) -> int:
        """New data keys go under ``encryption_key``, and those that are there are put under it."""
        async with self._lock:
            target = self.writable(name)
            if not target.encryption_key:
                raise RefusedError(f"backup target {name} is not encrypted: what is there stays readable without a key")
            if encryption_key and encryption_key != target.encryption_key:
                former = tuple(dict.fromkeys((target.encryption_key, *target.former_keys)))
                target = replace(target, encryption_key=encryption_key, former_keys=former)
                # Only where the new key is found: else nothing could be uploaded any more.
                await self._buckets.call(target, lambda bucket: None)
                # On record before anything is under it: interrupted, both keys are named, and it is said again.
                target = await self.change(name, lambda record: replace(record, target=target))
            return await self._buckets.call(target, _rotate, self._cluster_id)

    async def remove(
        self, name: str, *, accept_data_loss: bool, only_there: Callable[[TargetName], Awaitable[int]]
    ) -> None:
        """What is in the bucket stays there. Interrupted, it is said again."""
        async with self._lock:
            target = self.record(name).target
            count = await only_there(target.name)
            if count and not accept_data_loss:
                raise RefusedError(
                    f"{count} checkpoints are in backup target {name} and nowhere else: recall them first, or say "
                    "--accept-data-loss"
                )
            await self.change(name, lambda record: replace(record, is_leaving=True))
            for prefix in (
                keys.backup_policies_of(name),
                keys.backup_copies(name),
                keys.backup_uses_of(name),
                keys.backup_objects(name),
            ):
                await self._drop(prefix)
            text = f"backup target {name} is no longer one; what it has stays in bucket {target.bucket}"
            # Last of all: a target of the same name must find nothing of this one.
            await self._records.commit(
                [],
                [
                    Delete(keys.backup_run(name)),
                    Delete(keys.backup_target(name)),
                    self._events.entry("backup_target_removed", text),
                ],
            )
            del self._known[target.name]
            self._buckets.forget(target.name)

    async def _drop(self, prefix: str) -> None:
        more = True
        while more:
            page = await self._records.store.range(prefix, limit=MAX_TXN_RECORDS)
            more = page.more
            if page.entries:
                await self._records.commit([], [Delete(entry.key) for entry in page.entries])


def _check(target: Target) -> None:
    check_name(target.name, "backup target")
    if not target.bucket:
        raise InvalidArgumentError(f"backup target {target.name} has no bucket: say --bucket")
    if not 1 <= target.concurrency <= _MAX_CONCURRENCY:
        raise InvalidArgumentError(
            f"backup target {target.name}: {target.concurrency} transfers at once cannot be; 1 to {_MAX_CONCURRENCY}"
        )


def _check_same(known: TargetRecord, target: Target) -> None:
    """How a target is reached may change; what it is may not."""
    if known.is_leaving:
        raise RefusedError(f"backup target {target.name} is being removed: say it again to finish that")
    if (known.target.bucket, known.target.prefix) != (target.bucket, target.prefix):
        raise AlreadyExistsError(
            f"backup target {target.name} exists already, in bucket {known.target.bucket}, prefix "
            f"{known.target.prefix or 'none'}: remove it first, or take another name"
        )
    if known.target.encryption_key != target.encryption_key:
        raise RefusedError(
            f"backup target {target.name} has another key: sdrs backup target rotate-key changes it, and what "
            "was not encrypted from the beginning takes another prefix"
        )


def _claim(bucket: Bucket, cluster_id: str, rivals: frozenset[str], *, take_over: bool) -> str:
    """The cluster that writes there: this one, unless another does."""
    found = manifests(bucket, cluster_id)
    if take_over:
        return found.take_over(rivals).cluster_id
    owner = found.read_owner()
    return owner.cluster_id if owner and owner.cluster_id != cluster_id else found.claim(rivals).cluster_id


def _rotate(bucket: Bucket, cluster_id: str) -> int:
    return bucket.keys.rotate(cluster_id) if bucket.keys else 0
