"""The invariants, looked at from outside after every change of anything that lasts.

Nothing is sampled: each transaction of the store, each write of a node's identity, each fragment that goes, and each
acknowledgement is checked when it happens, against the disks and the records as they are at that instant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sdrs_core.checkpoints import Save, SaveState, Shard
from sdrs_core.cluster import Group
from sdrs_core.ids import GroupId, JobName, NodeId, SaveId
from sdrs_proto.v1 import membership_pb2
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Event, EventKind, Term
from sdrs_storaged.node.identity import _State
from sdrs_storaged.store.fragment import StoredFragment
from tests.simulation.client import Acknowledged
from tests.simulation.frames import hash_of
from tests.simulation.ledger import SHARDS, Ledger, parsed, trash_id


@dataclass(frozen=True, slots=True)
class _Receipt:
    node_id: NodeId
    group_id: GroupId
    epoch: int


@dataclass
class Checks(Ledger):
    fail: Callable[[str], None] = field(kw_only=True)

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
        """One transaction, judged by what holds after all of it."""
        before = {event.entry.key: self.saves.get(event.entry.key) for event in events}
        trashed = {event.entry.key: self.trash.get(trash_id(event.entry.key)) for event in events}
        for event in events:
            self.note(event)
        for event in events:
            key = event.entry.key
            if key.startswith(keys.GROUPS):
                self._group_changed(key, event)
            elif key.startswith(SHARDS):
                self._shard_changed(key, event)
            elif key.startswith(keys.SAVES):
                self._save_changed(key, before[key])
            elif key.startswith(keys.TRASH):
                self._trash_changed(trashed[key])

    def _group_changed(self, key: str, event: Event) -> None:
        if event.kind is EventKind.DELETE:
            self.groups.pop(key, None)
            return
        group, known = parsed(Group, event), self.groups.get(key)
        self.groups[key] = group
        form = (group.primary, group.members)
        if known and group.epoch < known.epoch:
            self.fail(f"I3: group {group.id} went from epoch {known.epoch} down to {group.epoch}")
        if self._forms.setdefault((group.id, group.epoch), form) != form:
            self.fail(f"I3: group {group.id} has two forms at epoch {group.epoch}: {form}, and one before")
        if group.primary not in group.members or len(set(group.members)) != len(group.members):
            self.fail(f"I3: group {group.id} has primary {group.primary} and members {group.members}")

    def _shard_changed(self, key: str, event: Event) -> None:
        save_id, _, rank_text = key[len(SHARDS) :].partition("/")
        rank, of_save = int(rank_text), self.shards.setdefault(SaveId(save_id), {})
        known = of_save.get(rank)
        if event.kind is EventKind.DELETE:
            of_save.pop(rank, None)
            if known and self.counts(known.save_id):
                self.fail(f"I4: the record of rank {rank} of save {save_id} is gone, and the save is not")
            return
        shard = parsed(Shard, event)
        of_save[rank] = shard
        if known is None:
            self._receipt_taken(shard)
        for blob in shard.blobs:
            before = next((b.holders for b in known.blobs if b.id == blob.id), ()) if known else ()
            for holder in blob.holders:
                if holder not in before and not holder.dropping and not self.had(blob.id, holder):
                    self.fail(f"I1: node {holder.node_id} is recorded for blob {blob.id}, and it is not durable there")
            if known and self.counts(shard.save_id) and not self.holders_of(blob):
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
                    if not self.had(blob.id, holder):
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

    # Disks

    def dropped(self, node_id: NodeId, fragment: StoredFragment) -> None:
        if not self.counts(fragment.save_id):
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
        if self.counts(save.save_id):
            for blob in shard.blobs:
                for holder in blob.holders:
                    if not holder.dropping and not self.had(blob.id, holder):
                        self.fail(f"I1: {save.title} was acknowledged, and blob {blob.id} is not on {holder.node_id}")
