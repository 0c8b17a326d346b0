"""A fresh and complete look through the catalog, for one node or disk: what is on it, and what would be without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from sdrs_core.checkpoints import Blob, Holder, Save, SaveState, Shard
from sdrs_core.cluster import Pool
from sdrs_core.departures import Without
from sdrs_core.errors import CorruptDataError, NotFoundError, RefusedError
from sdrs_core.failover import Liveness
from sdrs_core.ids import DiskId, NodeId
from sdrs_core.mirroring import twin_of
from sdrs_core.redundancy import Standing, present_form, standing
from sdrs_core.soundness import counted, is_readable
from sdrs_core.stocks import Stock, fragment_bytes
from sdrs_storaged.control import keys
from sdrs_storaged.control.held import Amount
from sdrs_storaged.control.homes import Homes
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, put

_MAX_NAMED = 20

# What is looked at: whether this holder is on the node or the disk in question.
Place = Callable[[Holder], bool]


class Trouble(Enum):
    # Not readable then, though it is now.
    UNREADABLE = "unreadable"
    # With less redundancy than its pool asks for.
    SHORT = "short"
    # Under way, with a shard there.
    PENDING = "pending"
    # Nobody else, be it up or down, has enough of it.
    ONLY_HERE = "only here"


@dataclass(slots=True)
class Found:
    held_blobs: int = 0
    held_bytes: int = 0
    counts: Counter[Trouble] = field(default_factory=Counter)
    # The first few of each kind (I10).
    names: dict[Trouble, list[str]] = field(default_factory=dict)
    # To be given up, or not; deleted ones are among them while they can be brought back.
    only_here: list[Stored[Save]] = field(default_factory=list)

    def note(self, stored: Stored[Save], troubles: Iterable[Trouble]) -> None:
        for trouble in troubles:
            self.counts[trouble] += 1
            names = self.names.setdefault(trouble, [])
            if len(names) < _MAX_NAMED:
                is_deleted = stored.value.state in (SaveState.DELETED, SaveState.RETIRED)
                names.append(f"{stored.value.title} (deleted)" if is_deleted else stored.value.title)
            if trouble is Trouble.ONLY_HERE:
                self.only_here.append(stored)

    def facts(self) -> Without:
        return Without(
            held_blobs=self.held_blobs,
            held_bytes=self.held_bytes,
            unreadable=tuple(self.names.get(Trouble.UNREADABLE, ())),
            unreadable_count=self.counts[Trouble.UNREADABLE],
            short=tuple(self.names.get(Trouble.SHORT, ())),
            short_count=self.counts[Trouble.SHORT],
            pending=tuple(self.names.get(Trouble.PENDING, ())),
            pending_count=self.counts[Trouble.PENDING],
            only_here=tuple(self.names.get(Trouble.ONLY_HERE, ())),
            only_here_count=self.counts[Trouble.ONLY_HERE],
        )


class FreshLook:
    def __init__(self, records: Records, members: Members, stocks: Callable[[], dict[NodeId, Stock]]) -> None:
        self._records = records
        self._members = members
        self._stocks = stocks
        self._homes = Homes(records)

    async def without(self, node_id: NodeId) -> Found:
        """RefusedError while nobody can tell, because the catalog is closed or a record cannot be read."""
        return await self._look(_on_node(node_id))

    async def without_disk(self, disk_id: DiskId) -> Found:
        return await self._look(lambda holder: holder.disk_id == disk_id)

    async def _look(self, is_there: Place) -> Found:
        await self._records.check_leading()
        try:
            return await self._without(is_there)
        except (CorruptDataError, NotFoundError) as error:
            raise RefusedError(f"cannot be told, the catalog cannot be read: {error.message}") from error

    async def _without(self, is_there: Place) -> Found:
        found = Found()
        async for stored in self._saves():
            if stored.value.evicted:
                continue  # whatever a recall left on nodes, the backup has it
            save, troubles = stored.value, set[Trouble]()
            nodes = self._stocks()
            async for shard in self._records.all(keys.shards(save.save_id), Shard):
                for blob in _touched(shard.value, is_there):
                    if save.state is SaveState.PENDING:
                        troubles.add(Trouble.PENDING)
                        continue
                    is_only_here = not _is_elsewhere(shard.value, blob, is_there, nodes)
                    if is_only_here:
                        troubles.add(Trouble.ONLY_HERE)
                    # A deleted save is given up already; who needed this blob of it is named below.
                    is_given_up = is_only_here and save.state is SaveState.RETIRED
                    if save.state.is_kept and not is_given_up:
                        found.held_blobs += 1
                        found.held_bytes += _held_bytes(blob, is_there)
                        troubles.update(self._troubles(save, shard.value, blob, nodes, is_there))
                # Held by its home; but what becomes of that becomes of this one too, also if the home is deleted.
                for home, blob in await self._homes.referred(shard.value):
                    if blob not in _touched(home.value, is_there):
                        continue
                    if not _is_elsewhere(home.value, blob, is_there, nodes):
                        troubles.add(Trouble.ONLY_HERE)
                    if save.state.is_readable:
                        troubles.update(self._troubles(save, home.value, blob, nodes, is_there))
            found.note(stored, troubles)
        return found

    async def on_disk(self, disk_id: DiskId) -> Amount:
        """How much of all readable checkpoints is on record for a disk."""
        found = Amount()
        async for stored in self._records.all(keys.SAVES, Save):
            if not stored.value.state.is_kept:
                continue
            async for shard in self._records.all(keys.shards(stored.value.save_id), Shard):
                for blob in shard.value.all_blobs:
                    for holder in blob.holders:
                        if holder.disk_id == disk_id:
                            found = found.changed(1, fragment_bytes(blob, holder.fragment_index))
        return found

    async def _saves(self) -> AsyncIterator[Stored[Save]]:
        """Whatever has shards that somebody may still want."""
        async for stored in self._records.all(keys.SAVES, Save):
            yield stored
        async for stored in self._records.all(keys.TRASH, Save):
            if stored.value.state is SaveState.DELETED:
                yield stored

    def _troubles(
        self, save: Save, shard: Shard, blob: Blob, nodes: Mapping[NodeId, Stock], is_there: Place
    ) -> Iterator[Trouble]:
        forms = [blob, *filter(None, [twin_of(shard, blob)])]
        now = [is_readable(form, _in_reach(form, nodes)) for form in forms]
        then = [is_readable(form, _elsewhere(_in_reach(form, nodes), is_there)) for form in forms]
        if any(now) and not any(then):
            yield Trouble.UNREADABLE
        pool = self._members.pool(save.pool)
        is_own = any(known.id == blob.id for known in shard.blobs)
        home = pool if is_own else self._mirror_pool(pool, save)
        if home is None or not (is_own or counted(blob)):
            return  # a mirror that nobody wants any more, and perhaps is being dropped already
        left = [h for h in _elsewhere(_in_reach(blob, nodes), is_there) if not _is_failing(h, nodes)]
        if standing(present_form(blob, home), left, self._members.domains()) is not Standing.FULL:
            yield Trouble.SHORT

    def _mirror_pool(self, pool: Pool, save: Save) -> Pool | None:
        try:
            return self._members.pool(pool.mirror_pool or save.mirror_pool)
        except NotFoundError:
            return None

    async def forget(self, node_id: NodeId) -> None:
        """Take the node off the record of every checkpoint. What only it has was given up before."""
        async for stored in self._records.all(keys.SAVES, Save):
            if stored.value.state.is_kept:
                async for shard in self._records.all(keys.shards(stored.value.save_id), Shard):
                    if any(_touched(shard.value, _on_node(node_id))):
                        await self._forget(shard, node_id, is_evicted=bool(stored.value.evicted))

    async def _forget(self, shard: Stored[Shard], node_id: NodeId, *, is_evicted: bool) -> None:
        is_there, nodes = _on_node(node_id), self._stocks()

        def strip(blob: Blob) -> Blob:
            """Never what nobody else has: it would be forgotten (I4)."""
            if not is_evicted and not _is_elsewhere(shard.value, blob, is_there, nodes):
                return blob
            return replace(blob, holders=tuple(_elsewhere(blob.holders, is_there)))

        for _ in range(MAX_TRIES):
            stripped = replace(
                shard.value,
                blobs=tuple(map(strip, shard.value.blobs)),
                mirrors=tuple(map(strip, shard.value.mirrors)),
            )
            try:
                await self._records.commit([shard.unchanged()], [put(shard.key, stripped)])
                return
            except ConflictError:
                again = await self._records.get(shard.key, Shard)
                if again is None:
                    return
                shard = again


def _on_node(node_id: NodeId) -> Place:
    return lambda holder: holder.node_id == node_id


def _touched(shard: Shard, is_there: Place) -> Iterable[Blob]:
    return (blob for blob in shard.all_blobs if any(is_there(holder) for holder in blob.holders))


def _elsewhere(holders: Iterable[Holder], is_there: Place) -> list[Holder]:
    return [holder for holder in holders if not is_there(holder)]


def _is_elsewhere(shard: Shard, blob: Blob, is_there: Place, nodes: Mapping[NodeId, Stock]) -> bool:
    """Whether others on record, be they up or down, have enough of it, in this form or the other. A disk that was given
    up is not counted on.
    """
    forms = [blob, *filter(None, [twin_of(shard, blob)])]
    for form in forms:
        others = [holder for holder in _elsewhere(counted(form), is_there) if not _is_given_up(holder, nodes)]
        if is_readable(form, others):
            return True
    return False


def _is_given_up(holder: Holder, nodes: Mapping[NodeId, Stock]) -> bool:
    return holder.node_id in nodes and holder.disk_id in nodes[holder.node_id].retired_disks


def _held_bytes(blob: Blob, is_there: Place) -> int:
    return sum(fragment_bytes(blob, holder.fragment_index) for holder in blob.holders if is_there(holder))


def _in_reach(blob: Blob, nodes: Mapping[NodeId, Stock]) -> list[Holder]:
    return [holder for holder in counted(blob) if _is_in_reach(holder, nodes)]


def _is_in_reach(holder: Holder, nodes: Mapping[NodeId, Stock]) -> bool:
    stock = nodes.get(holder.node_id)
    return (
        stock is not None
        and stock.liveness is Liveness.UP
        and holder.disk_id in stock.disks
        and holder.disk_id not in stock.retired_disks
    )


def _is_failing(holder: Holder, nodes: Mapping[NodeId, Stock]) -> bool:
    return holder.disk_id in nodes[holder.node_id].failed_disks
