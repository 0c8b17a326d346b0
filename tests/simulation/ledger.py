"""What the store and the disks hold, kept beside them: read from every change, asked by the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter

from sdrs_core.checkpoints import Blob, Holder, Save, SaveState, Shard
from sdrs_core.cluster import Group, Pool
from sdrs_core.ids import BlobId, DiskId, JobName, NodeId, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Event, EventKind
from sdrs_storaged.control.tables import PoolRecord
from tests.simulation.client import Acknowledged
from tests.simulation.disk import Platter

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Group, Save, Shard, PoolRecord)}
SHARDS = "shard/"


@dataclass
class Ledger:
    platters: Mapping[NodeId, Platter]
    groups: dict[str, Group] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    # By key: generations and trash, as the store has them now.
    saves: dict[str, Save] = field(default_factory=dict)
    trash: dict[SaveId, Save] = field(default_factory=dict)
    shards: dict[SaveId, dict[int, Shard]] = field(default_factory=dict)
    acknowledged: dict[SaveId, Acknowledged] = field(default_factory=dict)
    # (job, step) that an operator asked to delete, at whatever moment that takes effect.
    may_go: set[tuple[JobName, int]] = field(default_factory=set)
    destroyed: set[DiskId] = field(default_factory=set)
    # What each rank of each acknowledged save contains.
    contents: dict[tuple[SaveId, int], tuple[bytes, ...]] = field(default_factory=dict)
    commit_count: int = 0

    def note(self, event: Event) -> None:
        """Pools, saves and trash; groups and shards are kept by whoever checks them."""
        key, is_there = event.entry.key, event.kind is EventKind.PUT
        if key.startswith(keys.POOLS) and is_there:
            self.pools[key[len(keys.POOLS) :]] = parsed(PoolRecord, event).pool
        elif key.startswith(keys.SAVES):
            self.saves.pop(key, None)
            if is_there:
                self.saves[key] = parsed(Save, event)
        elif key.startswith(keys.TRASH):
            self.trash.pop(trash_id(key), None)
            if is_there:
                self.trash[trash_id(key)] = parsed(Save, event)

    def counts(self, save_id: SaveId) -> bool:
        """Whether anybody may still want the save's bytes: it is pending, readable, or could be undeleted."""
        if any(save.save_id == save_id for save in self.saves.values()):
            return True
        trashed = self.trash.get(save_id)
        return trashed is not None and trashed.state is SaveState.DELETED

    def had(self, blob_id: BlobId, holder: Holder) -> bool:
        if holder.disk_id in self.destroyed:
            return True  # it had it: what is lost with a disk is repaired, not denied
        platter = self.platters.get(holder.node_id)
        return platter is not None and platter.has(blob_id, holder.fragment_index, holder.disk_id, holder.fragment_hash)

    # At rest

    def holders_of(self, blob: Blob) -> list[Holder]:
        """Those on record that count, and that really have it."""
        return [
            holder
            for holder in blob.holders
            if not holder.dropping
            and self.platters[holder.node_id].has(blob.id, holder.fragment_index, holder.disk_id, holder.fragment_hash)
        ]

    def holders_by_name(self, save: Save) -> set[NodeId]:
        """All who are on record for any of the save's blobs."""
        shards = self.shards[save.save_id].values()
        return {holder.node_id for shard in shards for blob in shard.blobs for holder in blob.holders}

    def wanted_blobs(self) -> Iterator[tuple[Save, Blob]]:
        """Of all saves that count, pending ones too."""
        for save in [*self.saves.values(), *self.trash.values()]:
            if self.counts(save.save_id):
                for shard in self.shards.get(save.save_id, {}).values():
                    for blob in shard.blobs:
                        yield save, blob

    def may_lose(self, disk_id: DiskId) -> bool:
        """Whether every blob has a copy on another disk: the level promises nothing beyond that."""
        return all(any(h.disk_id != disk_id for h in self.holders_of(blob)) for _, blob in self.wanted_blobs())

    def why_degraded(self) -> str:
        """What repair has still to do; empty once every readable blob has all its copies."""
        for save, blob in self.wanted_blobs():
            if save.state.is_readable:
                count, wanted = len(self.holders_of(blob)), self.pools[save.pool].copies
                if count < wanted:
                    return f"{save.title} has {count} of {wanted} copies of blob {blob.id}"
                if save.level < self.pools[save.pool].level:
                    return f"{save.title} has all its copies, and is still at {save.level}"
        return ""

    def kept_steps(self, job: JobName) -> list[int]:
        """Those that were acknowledged and that nobody asked to delete."""
        return sorted(
            {
                told.step
                for told in self.acknowledged.values()
                if told.job == job and (job, told.step) not in self.may_go and told.save.state is SaveState.COMMITTED
            }
        )

    def expected_newest(self, job: JobName) -> int | None:
        return max(self.kept_steps(job), default=None)


def trash_id(key: str) -> SaveId:
    return SaveId(key[len(keys.TRASH) :])


def parsed(kind: type[T], event: Event) -> T:
    value: T = _ADAPTERS[kind].validate_json(event.entry.value)
    return value
