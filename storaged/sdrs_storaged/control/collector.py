"""Letting go of data, never on doubt (I7).

Five steps, each safe to interrupt: abandoned saves are aborted; the pools' retention deletes into the trash; what was
deleted and kept for others that refer to it goes there once none does (``retired``); what lies in the trash beyond its
grace period is condemned by transaction, its holders are marked as dropping (P14), dropped, and forgotten once their
nodes confirmed; and fragments that no record names are dropped after two complete scans of their node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from sdrs_core.checkpoints import Blob, Save, SaveState, Shard
from sdrs_core.cluster import Node, NodeState, Order
from sdrs_core.errors import NotFoundError, SdrsError, StaleTermError
from sdrs_core.ids import BlobId, JobName, NodeId, SaveId
from sdrs_core.retention import decide_retention
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.claims import Claims, FragmentName
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Delete, Put
from sdrs_storaged.control.records import MAX_TXN_RECORDS, ConflictError, Records, Stored, batched, put
from sdrs_storaged.control.references import References
from sdrs_storaged.control.retired import Retired
from sdrs_storaged.control.rounds import Rounds
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("collector")

_MAX_SUSPECTS_PER_NODE = 100_000  # I10; the rest waits for the next scan
_DROP_BATCH = 500
_MAX_LAG_SECONDS = 1.0

StillFree = Callable[[Sequence[FragmentName]], Awaitable[list[FragmentName]]]


@dataclass(frozen=True, slots=True)
class Fragment:
    blob_id: BlobId
    index: int
    save_id: SaveId
    created_unix_ms: int


class NodeCommands(Protocol):
    """What the collector asks of a node; the other side is ``rpc.node_client``."""

    async def list_fragments(self, node: Node, after: str) -> tuple[list[Fragment], str]: ...

    async def drop_fragments(
        self, node: Node, fragments: Sequence[FragmentName], order: Order
    ) -> set[FragmentName]: ...


class Collector:
    def __init__(
        self,
        records: Records,
        members: Members,
        commits: Commits,
        catalog: Catalog,
        rounds: Rounds,
        nodes: NodeCommands,
        claims: Claims,
        references: References,
        clock: Clock,
        *,
        grace_seconds: float,
        interval_seconds: float,
        scan_interval_seconds: float,
    ) -> None:
        self._records = records
        self._members = members
        self._commits = commits
        self._catalog = catalog
        self._rounds = rounds
        self._nodes = nodes
        self._claims = claims
        self._references = references
        self._clock = clock
        self._grace_ms = grace_seconds * 1000
        self._retired = Retired(records, catalog, clock, grace_seconds=grace_seconds)
        self._interval_seconds = interval_seconds
        self._scan_interval_seconds = scan_interval_seconds
        self._scanned_seconds = -scan_interval_seconds
        self._suspects: dict[NodeId, dict[FragmentName, SaveId]] = {}
        # Within one collection: a node that failed an order is not waited for again and again.
        self._unreachable: set[NodeId] = set()
        self.dropped_total = 0

    async def run(self) -> None:
        while True:
            slept_from = self._clock.monotonic_seconds()
            await asyncio.sleep(self._interval_seconds)
            if self._clock.monotonic_seconds() - slept_from > self._interval_seconds + _MAX_LAG_SECONDS:
                # P20: this process stood still. Those who wait could not renew either, and do it now.
                self._commits.renew_all()
            try:
                await self.collect()
            except StaleTermError:
                raise
            except SdrsError as error:
                # The next round tries again; nothing was decided on the way.
                log.warning("collection_interrupted", why=error.message)
            except Exception as error:
                # A defect here must not take the control plane down with it.
                log.error("collection_failed", exc_info=error)

    async def collect(self) -> None:
        await self._records.check_leading()  # P18: nothing is collected against a past that a node knows better
        self._unreachable.clear()
        await self._catalog.settle_doubts()
        await self._commits.expire()
        await self._apply_retention()
        await self._let_retired_go()
        async for stored in self._records.all(keys.TRASH, Save):
            with _set_apart(stored.value):
                await self._empty_trash(stored)
        now = self._clock.monotonic_seconds()
        if now - self._scanned_seconds >= self._scan_interval_seconds:
            # Looking at every fragment of every node is dear, and leftovers can wait.
            self._scanned_seconds = now
            for node in self._members.nodes():
                if node.state is NodeState.UP:
                    await self._scan_for_orphans(node)

    # Retention

    async def _apply_retention(self) -> None:
        policies = {pool.name: pool for pool in self._members.pools() if not pool.retention.keeps_all}
        if not policies:
            return
        job, saves = JobName(""), list[Stored[Save]]()
        async for stored in self._records.all(keys.SAVES, Save):
            if stored.value.job != job:
                await self._retain(saves)
                job, saves = stored.value.job, []
            if stored.value.state.is_readable and stored.value.pool in policies:
                saves.append(stored)
        await self._retain(saves)

    async def _retain(self, saves: list[Stored[Save]]) -> None:
        """One job's readable generations, newest first, each judged by the policy of its pool."""
        by_id = {stored.value.save_id: stored for stored in saves}
        for name in {stored.value.pool for stored in saves}:
            pool = self._members.pool(name)
            expired = decide_retention(
                [stored.value for stored in saves if stored.value.pool == name],
                pool.retention,
                pool_level=pool.level,
                pinned=self._rounds.pinned(),
                now_unix_ms=self._clock.unix_ms(),
            )
            for expiry in expired:
                with _set_apart(expiry.save):
                    # P15: if the newest good one was deleted, damaged or set aside meanwhile, it lets no other go.
                    newest_good = by_id[expiry.newest_good].unchanged()
                    stored = by_id[expiry.save.save_id]
                    await self._catalog.discard(stored, why=f"retention: {expiry.why}", compare=[newest_good])

    # Trash

    async def _let_retired_go(self) -> None:
        if not self._catalog.has_retired:
            return
        async for stored in self._records.all(keys.SAVES, Save):
            if stored.value.state is SaveState.RETIRED:
                with _set_apart(stored.value):
                    await self._retired.look_at(stored)

    async def _empty_trash(self, stored: Stored[Save]) -> None:
        save = stored.value
        if save.state is not SaveState.CONDEMNED:
            if self._clock.unix_ms() - save.ended_unix_ms < self._grace_ms:
                return
            if await self._catalog.homes.is_referred(save):
                return  # put here by a rebuild: nobody can begin to refer to it in the trash, so once none does it goes
            condemned = replace(save, state=SaveState.CONDEMNED, homes=())
            referrals = [Delete(keys.reference(home, save.save_id)) for home in save.homes]
            try:
                # P13: final. An undelete compares the same record, so only one of the two wins. Only now, when it can
                # never be read again, does it let go of what it refers to.
                revision = await self._records.commit([stored.unchanged()], [put(stored.key, condemned), *referrals])
            except ConflictError:
                return
            stored = Stored(stored.key, condemned, revision)
        reach("collect.condemned")
        if await self._drop_shards(save.save_id):
            await self._records.commit([stored.unchanged()], [Delete(stored.key)])
            log.info("checkpoint_collected", job=save.job, step=save.step, save=save.save_id)

    async def _drop_shards(self, save_id: SaveId) -> bool:
        """True once every fragment of the save is confirmed gone, and its shards' records too."""
        all_gone = True
        after, more = "", True
        while more:
            page, more = await self._records.page(keys.shards(save_id), Shard, after=after, limit=MAX_TXN_RECORDS)
            for batch in batched((stored, put(stored.key, _dropping(stored.value))) for stored in page):
                all_gone &= await self._drop_batch([stored for stored, _ in batch], [write for _, write in batch])
            after = page[-1].key if page else after
        return all_gone

    async def _drop_batch(self, shards: list[Stored[Shard]], writes: list[Put]) -> bool:
        if any(_dropping(stored.value) != stored.value for stored in shards):
            # P14: first the records say that these holders no longer count, then the holders are told.
            revision = await self._records.commit([stored.unchanged() for stored in shards], writes)
            shards = [Stored(stored.key, _dropping(stored.value), revision) for stored in shards]
        names: dict[NodeId, list[FragmentName]] = {}
        for stored in shards:
            for node_id, name in _fragments_of(stored.value):
                names.setdefault(node_id, []).append(name)
        dropped = {(node_id, name) for node_id in names for name in await self._drop(node_id, names[node_id])}
        # What is confirmed is forgotten, so that a node which is down for long has nobody else asked again and again.
        left = [(stored, _without(stored.value, dropped)) for stored in shards]
        changed = [(stored, after) for stored, after in left if after != stored.value or not any(_fragments_of(after))]
        writes_left = [
            put(stored.key, after) if any(_fragments_of(after)) else Delete(stored.key) for stored, after in changed
        ]
        if changed:
            await self._records.commit([stored.unchanged() for stored, _ in changed], writes_left)
        return not any(any(_fragments_of(after)) for _, after in left)

    async def _drop(
        self, node_id: NodeId, fragments: Sequence[FragmentName], still: StillFree | None = None
    ) -> set[FragmentName]:
        """Those that the node confirmed; none if it cannot be asked now. ``still``: which of them may go, asked once
        nobody else can work on them.
        """
        try:
            node = self._members.node(node_id)
        except NotFoundError:
            return set(fragments)  # it was removed, with all that it had
        dropped: set[FragmentName] = set()
        if node.state is not NodeState.UP or node_id in self._unreachable:
            return dropped
        for start in range(0, len(fragments), _DROP_BATCH):
            # A node may not have heard of a newer controller yet (P14), or of why this one is frozen (P18).
            await self._records.check_leading()
            try:
                with self._claims.take(node_id, fragments[start : start + _DROP_BATCH]) as batch:
                    if still:
                        batch = await still(batch)
                    if batch:
                        order = await self._members.order(node_id)
                        dropped |= await self._nodes.drop_fragments(node, batch, order)
            except SdrsError as error:
                log.warning("drop_failed", node=node.id, why=error.message)
                self._unreachable.add(node_id)
                break
        self.dropped_total += len(dropped)
        return dropped

    # Orphans

    async def _scan_for_orphans(self, node: Node) -> None:
        """Drop what two complete scans in a row found named by nothing, and older than the grace period."""
        suspects: dict[FragmentName, SaveId] = {}
        after = ""
        try:
            while True:
                fragments, after = await self._nodes.list_fragments(node, after)
                suspects |= await self._references.unnamed_and_free(node.id, self._old_and_ended(fragments))
                if not after or len(suspects) > _MAX_SUSPECTS_PER_NODE:
                    break
        except SdrsError as error:
            # An incomplete scan proves nothing, and neither does the one before it any more.
            self._suspects.pop(node.id, None)
            log.warning("scan_incomplete", node=node.id, why=error.message)
            return
        orphans = sorted(suspects.keys() & self._suspects.get(node.id, {}).keys())
        self._suspects[node.id] = suspects

        async def still_orphans(names: Sequence[FragmentName]) -> list[FragmentName]:
            # Repair may have put one on record since: it then was no orphan, but a copy that need not be made.
            free = await self._references.unnamed_and_free(node.id, {name: suspects[name] for name in names})
            return [name for name in names if name in free]

        if orphans:
            dropped = await self._drop(node.id, orphans, still_orphans)
            log.info("orphans_dropped", node=node.id, fragment_count=len(dropped))

    def _old_and_ended(self, fragments: Sequence[Fragment]) -> dict[FragmentName, SaveId]:
        old_before_ms = self._clock.unix_ms() - self._grace_ms
        return {
            (fragment.blob_id, fragment.index): fragment.save_id
            for fragment in fragments
            # A pending save refers to all that was written for it (P13); once it has ended that can never change back.
            if fragment.created_unix_ms <= old_before_ms and self._commits.get(fragment.save_id) is None
        }


@contextmanager
def _set_apart(save: Save) -> Iterator[None]:
    """What goes wrong with one save (it is pinned, a node is unknown, a record moved) must not keep the others."""
    try:
        yield
    except StaleTermError:
        raise
    except SdrsError as error:
        log.warning("not_collected", job=save.job, step=save.step, save=save.save_id, why=error.message)


def _edited(shard: Shard, edit: Callable[[Blob], Blob]) -> Shard:
    """Mirrors too: they go with what they mirror."""
    return replace(shard, blobs=tuple(map(edit, shard.blobs)), mirrors=tuple(map(edit, shard.mirrors)))


def _dropping(shard: Shard) -> Shard:
    return _edited(
        shard, lambda blob: replace(blob, holders=tuple(replace(holder, dropping=True) for holder in blob.holders))
    )


def _without(shard: Shard, dropped: Set[tuple[NodeId, FragmentName]]) -> Shard:
    def left(blob: Blob) -> Blob:
        holders = (h for h in blob.holders if (h.node_id, (blob.id, h.fragment_index)) not in dropped)
        return replace(blob, holders=tuple(holders))

    return _edited(shard, left)


def _fragments_of(shard: Shard) -> Iterator[tuple[NodeId, FragmentName]]:
    return ((h.node_id, (blob.id, h.fragment_index)) for blob in shard.all_blobs for h in blob.holders)
