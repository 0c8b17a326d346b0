"""The invariants, looked at from outside after every change of anything that lasts.

Nothing is sampled: each transaction of the store, each write of a node's identity, each fragment that goes, and each
acknowledgement is checked when it happens, against the disks and the records as they are at that instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter

from sdrs_core.checkpoints import Blob, Holder, Save, SaveState, Shard
from sdrs_core.cluster import Group, Pool
from sdrs_core.ids import DiskId, GroupId, JobName, NodeId, SaveId
from sdrs_proto.v1 import membership_pb2
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Event, EventKind, Term
from sdrs_storaged.control.tables import PoolRecord
from sdrs_storaged.node.identity import _State
from sdrs_storaged.store.fragment import StoredFragment
from tests.simulation.client import Acknowledged
from tests.simulation.disk import Platter
from tests.simulation.frames import hash_of

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Group, Save, Shard, PoolRecord)}
_SHARDS = "shard/"


@dataclass(frozen=True, slots=True)
class _Receipt:
    node_id: NodeId
    group_id: GroupId
    epoch: int


@dataclass
class Checks:
    fail: Callable[[str], None]
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

    def __post_init__(self) -> None:
        self._forms: dict[tuple[str, int], tuple[NodeId, tuple[NodeId, ...]]] = {}
        self._committed: dict[tuple[JobName, int, int], SaveId] = {}
        self._receipts: dict[tuple[str, int], list[_Receipt]] = {}

    # What is sent

    def requested(self, sender: str, address: str, method: str, request: Any) -> None:
        if method == "register_receipts":
            message: membership_pb2.RegisterReceiptsRequest = request
            for receipt in message.receipts:
                sent = _Receipt(NodeId(message.node_id), GroupId(receipt.group_id), receipt.epoch)
                self._receipts.setdefault((receipt.shard.save_id, receipt.shard.rank), []).append(sent)
                form = self._forms.get((receipt.group_id, receipt.epoch))
                if form is None or form[0] != message.node_id:
                    self.fail(f"I3: node {message.node_id} acts as primary of {receipt.group_id} at {receipt.epoch}")

    # The store

    def written(self, sender: str, leader: Term | None) -> None:
        if leader is None or leader.candidate.partition(":")[0] != sender:
            self.fail(f"I2: {sender} changed records, and it did not lead ({leader})")

    def changed(self, revision: int, events: tuple[Event, ...]) -> None:
        """One transaction. Groups first: a receipt in the same transaction is judged by what holds after it."""
        before = {event.entry.key: self.saves.get(event.entry.key) for event in events}
        trashed = {event.entry.key: self.trash.get(SaveId(event.entry.key[len(keys.TRASH) :])) for event in events}
        for event in events:
            key = event.entry.key
            if key.startswith(keys.GROUPS):
                self._group_changed(key, event)
            elif key.startswith(keys.POOLS):
                self._pool_changed(key, event)
            elif key.startswith(_SHARDS):
                self._shard_changed(key, event)
            elif key.startswith(keys.SAVES):
                if event.kind is EventKind.DELETE:
                    self.saves.pop(key, None)
                else:
                    self.saves[key] = _parsed(Save, event)
            elif key.startswith(keys.TRASH):
                save_id = SaveId(key[len(keys.TRASH) :])
                if event.kind is EventKind.DELETE:
                    self.trash.pop(save_id, None)
                else:
                    self.trash[save_id] = _parsed(Save, event)
        for event in events:
            key = event.entry.key
            if key.startswith(keys.SAVES):
                self._save_changed(key, before[key])
            elif key.startswith(keys.TRASH):
                self._trash_changed(trashed[key])

    def _pool_changed(self, key: str, event: Event) -> None:
        if event.kind is EventKind.PUT:
            self.pools[key[len(keys.POOLS) :]] = _parsed(PoolRecord, event).pool

    def _group_changed(self, key: str, event: Event) -> None:
        if event.kind is EventKind.DELETE:
            self.groups.pop(key, None)
            return
        group, known = _parsed(Group, event), self.groups.get(key)
        self.groups[key] = group
        form = (group.primary, group.members)
        if known and group.epoch < known.epoch:
            self.fail(f"I3: group {group.id} went from epoch {known.epoch} down to {group.epoch}")
        if self._forms.setdefault((group.id, group.epoch), form) != form:
            self.fail(f"I3: group {group.id} has two forms at epoch {group.epoch}: {form}, and one before")
        if group.primary not in group.members or len(set(group.members)) != len(group.members):
            self.fail(f"I3: group {group.id} has primary {group.primary} and members {group.members}")

    def _shard_changed(self, key: str, event: Event) -> None:
        save_id, _, rank_text = key[len(_SHARDS) :].partition("/")
        rank, of_save = int(rank_text), self.shards.setdefault(SaveId(save_id), {})
        known = of_save.get(rank)
        if event.kind is EventKind.DELETE:
            of_save.pop(rank, None)
            if known and self._counts(known.save_id):
                self.fail(f"I4: the record of rank {rank} of save {save_id} is gone, and the save is not")
            return
        shard = _parsed(Shard, event)
        of_save[rank] = shard
        if known is None:
            self._receipt_taken(shard)
        for blob in shard.blobs:
            before = next((b.holders for b in known.blobs if b.id == blob.id), ()) if known else ()
            for holder in blob.holders:
                if holder not in before and not holder.dropping and not self._has(blob.id, holder):
                    self.fail(f"I1: node {holder.node_id} is recorded for blob {blob.id}, and it is not durable there")
            if known and self._counts(shard.save_id) and not self.holders_of(blob):
                self.fail(f"I4: no copy of blob {blob.id} is left that counts, and its save is not condemned")

    def _receipt_taken(self, shard: Shard) -> None:
        sent = self._receipts.get((shard.save_id, shard.rank), [])
        groups = {group.id: group for group in self.groups.values()}
        for receipt in sent:
            group = groups.get(receipt.group_id)
            if group and (group.epoch, group.primary) == (receipt.epoch, receipt.node_id):
                names = {tuple(sorted(h.node_id for h in blob.holders)) for blob in shard.blobs}
                if names == {tuple(sorted(group.members))}:
                    return
        self.fail(f"I3: rank {shard.rank} of save {shard.save_id} was taken from nobody who is primary now: {sent}")

    def _save_changed(self, key: str, before: Save | None) -> None:
        after = self.saves.get(key)
        if after is None:
            if before is not None:
                self._save_left(before)
            return
        if before is not None and before.save_id != after.save_id:
            self.fail(f"I2: {after.title} changed its save id from {before.save_id} to {after.save_id}")
        if after.state.is_readable and (before is None or not before.state.is_readable):
            self._became_readable(after, was_pending=before is not None)
        if before is not None and before.state.is_readable and not after.state.is_readable:
            self.fail(f"I2: {after.title} was committed, and is {after.state} now")
        if after.state not in (SaveState.PENDING, SaveState.COMMITTED, SaveState.SET_ASIDE):
            self.fail(f"I2: {after.title} is {after.state} where generations are kept")

    def _became_readable(self, save: Save, *, was_pending: bool) -> None:
        self.commit_count += was_pending
        ranks = self.shards.get(save.save_id, {})
        if sorted(ranks) != list(range(save.world_size)):
            self.fail(f"I2: {save.title} was committed with ranks {sorted(ranks)} of {save.world_size}")
        other = self._committed.setdefault((save.job, save.step, save.attempt), save.save_id)
        if other != save.save_id and (save.job, save.step) not in self.may_go:
            self.fail(f"I2: {save.title} of attempt {save.attempt} was committed twice: {other} and {save.save_id}")
        pool = self.pools[save.pool]
        for shard in ranks.values():
            for blob in shard.blobs:
                counting = [holder for holder in blob.holders if not holder.dropping]
                if was_pending and save.level >= pool.level and len(counting) < pool.copies:
                    self.fail(f"I6: {save.title} claims {save.level} with {len(counting)} copies of blob {blob.id}")
                for holder in counting:
                    if not self._has(blob.id, holder):
                        self.fail(f"I1: {save.title} was committed, and blob {blob.id} is not on {holder.node_id}")

    def _save_left(self, before: Save) -> None:
        trashed = self.trash.get(before.save_id)
        if trashed is None:
            self.fail(f"I4: {before.title} ({before.state}) vanished without a trace")
        elif before.state.is_readable and (before.job, before.step) not in self.may_go:
            self.fail(f"I4: {before.title} was deleted, and nobody asked for it ({trashed.note})")

    def _trash_changed(self, before: Save | None) -> None:
        if before is None or before.save_id in self.trash:
            return
        is_back = any(save.save_id == before.save_id for save in self.saves.values())
        if not is_back and before.state is not SaveState.CONDEMNED:
            self.fail(f"I7: {before.title} left the trash as {before.state}, not condemned")
        if not is_back and self.shards.get(before.save_id):
            self.fail(f"I7: {before.title} is forgotten, and its shards are still on record")

    def _counts(self, save_id: SaveId) -> bool:
        """Whether anybody may still want the save's bytes: it is pending, readable, or could be undeleted."""
        if any(save.save_id == save_id for save in self.saves.values()):
            return True
        trashed = self.trash.get(save_id)
        return trashed is not None and trashed.state is SaveState.DELETED

    # Disks

    def _has(self, blob_id: Any, holder: Holder) -> bool:
        if holder.disk_id in self.destroyed:
            return True  # it had it: what is lost with a disk is repaired, not denied
        platter = self.platters.get(holder.node_id)
        return platter is not None and platter.has(blob_id, holder.fragment_index, holder.disk_id, holder.fragment_hash)

    def dropped(self, node_id: NodeId, fragment: StoredFragment) -> None:
        if not self._counts(fragment.save_id):
            return
        recorded = False
        for shard in self.shards.get(fragment.save_id, {}).values():
            for blob in shard.blobs:
                if blob.id == fragment.blob_id:
                    recorded = True
                    for holder in blob.holders:
                        if holder.node_id == node_id and not holder.dropping:
                            self.fail(f"P14: node {node_id} dropped blob {blob.id}, for which it is recorded")
        is_pending = any(
            save.save_id == fragment.save_id and save.state is SaveState.PENDING for save in self.saves.values()
        )
        if is_pending and not recorded:
            self.fail(
                f"P13: node {node_id} dropped blob {fragment.blob_id} of save {fragment.save_id}, which is pending"
            )

    def persisted(self, node_id: NodeId, before: _State | None, after: _State) -> None:
        if before is None:
            return
        ordered = [(s.authority.incarnation, s.authority.term) for s in (before, after)]
        if ordered[1] < ordered[0]:
            self.fail(f"P14: node {node_id} went from term {ordered[0]} down to {ordered[1]}")
        for group_id, epoch in before.epochs.items():
            if after.epochs.get(group_id, 0) < epoch:
                self.fail(f"I3: node {node_id} went down from epoch {epoch} of group {group_id}")

    def answered(self, node_id: NodeId, group_id: str, epoch: int, epoch_then: int) -> None:
        """A node did what was asked of it under ``epoch``; ``epoch_then`` it had persisted when it was asked."""
        if epoch < epoch_then:
            self.fail(f"I3: node {node_id} obeyed epoch {epoch} of group {group_id}, and knew of {epoch_then}")

    # Clients

    def acknowledge(self, told: Acknowledged) -> None:
        save = told.save
        self.acknowledged.setdefault(save.save_id, told)
        self.contents[save.save_id, told.rank] = told.contents
        if not save.state.is_readable and (told.job, told.step) not in self.may_go:
            self.fail(f"I2: {save.title} was acknowledged as {save.state}")
        shard = self.shards.get(save.save_id, {}).get(told.rank)
        if shard is None:
            if (told.job, told.step) not in self.may_go:
                self.fail(f"I1: {save.title} was acknowledged, and rank {told.rank} has no record")
            return
        if [blob.hash for blob in shard.blobs] != [hash_of(data) for data in told.contents]:
            self.fail(f"I1: {save.title} was acknowledged, and rank {told.rank} is on record with other content")
        if self._counts(save.save_id):
            for blob in shard.blobs:
                for holder in blob.holders:
                    if not holder.dropping and not self._has(blob.id, holder):
                        self.fail(f"I1: {save.title} was acknowledged, and blob {blob.id} is not on {holder.node_id}")

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
            if self._counts(save.save_id):
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


def _parsed(kind: type[T], event: Event) -> T:
    value: T = _ADAPTERS[kind].validate_json(event.entry.value)
    return value
