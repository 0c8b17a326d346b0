"""The invariants, looked at from outside after every change of anything that lasts.

Nothing is sampled: each transaction of the store, each write of a node's identity, each fragment that goes, and each
acknowledgement is checked when it happens, against the disks and the records as they are at that instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdrs_core.checkpoints import Blob, Save, SaveState, Shard
from sdrs_core.cluster import Group
from sdrs_core.codes import MIRROR
from sdrs_core.ids import GroupId, JobName, NodeId, SaveId
from sdrs_core.levels import Level
from sdrs_core.references import home_blob, needed_of
from sdrs_proto.v1 import membership_pb2
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Event, EventKind, Term
from sdrs_storaged.node.identity import _State
from tests.simulation.blob_checks import BlobChecks
from tests.simulation.client import Acknowledged
from tests.simulation.frames import hash_of
from tests.simulation.ledger import SHARDS, parsed, trash_id


@dataclass(frozen=True, slots=True)
class _Receipt:
    node_id: NodeId
    group_id: GroupId
    epoch: int


@dataclass
class Checks(BlobChecks):
    # Unless a schedule is about wrong parity.
    are_fragments_true: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
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
            elif key.startswith(keys.NODES) and event.kind is EventKind.DELETE:
                self._node_removed(NodeId(key[len(keys.NODES) :]))
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

    def _node_removed(self, node_id: NodeId) -> None:
        named = self.on_record(node_id)
        if named:
            self.fail(f"P7: node {node_id} was removed, and {named} names it")
        grouped = [group.id for group in self.groups.values() if node_id in group.members]
        if grouped:
            self.fail(f"P7: node {node_id} was removed, and is a member of {grouped[0]}")

    def _shard_changed(self, key: str, event: Event) -> None:
        save_id, _, rank_text = key[len(SHARDS) :].partition("/")
        rank, of_save = int(rank_text), self.shards.setdefault(SaveId(save_id), {})
        known = of_save.get(rank)
        if event.kind is EventKind.DELETE:
            of_save.pop(rank, None)
            if not of_save:
                for referring in self.referring.values():
                    referring.discard(SaveId(save_id))
            if known and self.counts(known.save_id):
                self.fail(f"I4: the record of rank {rank} of save {save_id} is gone, and the save is not")
            return
        shard = parsed(Shard, event)
        of_save[rank] = shard
        if known is None:
            self._receipt_taken(shard)
            self._check_homes(shard)
        else:
            self._check_trimmed(known, shard)
        self.check_blobs(known, shard)

    def _receipt_taken(self, shard: Shard) -> None:
        sent = self._receipts.get((shard.save_id, shard.rank), [])
        groups = {group.id: group for group in self.groups.values()}
        for receipt in sent:
            group = groups.get(receipt.group_id)
            is_current = group and (group.epoch, group.primary) == (receipt.epoch, receipt.node_id)
            if group and is_current and all(self._is_of(group, blob) for blob in shard.blobs):
                return
        self.fail(f"I3: rank {shard.rank} of save {shard.save_id} was taken from nobody who is primary now: {sent}")

    def _check_homes(self, shard: Shard) -> None:
        """P13, P23: what is referred to is kept by the save that stores it, and is the same."""
        for reference in shard.references:
            self.referring[reference.home.save_id].add(shard.save_id)
            home = next((save for save in self.saves.values() if save.save_id == reference.home.save_id), None)
            if home is None or not home.state.is_kept:
                self.fail(f"P13: save {shard.save_id} refers to {reference.home.save_id}, which is not kept")
            else:
                stored = home_blob(reference, self.shards[home.save_id][shard.rank])
                if stored is None or (stored.hash, stored.blake3) != (reference.hash, reference.blake3):
                    self.fail(f"P23: save {shard.save_id} refers to a blob of {home.title} with other content")

    def _check_trimmed(self, known: Shard, shard: Shard) -> None:
        """I7: only what nobody who counts refers to is taken off a record, and only of what is deleted."""
        lost = {blob.ordinal for blob in known.blobs} - {blob.ordinal for blob in shard.blobs}
        if not lost and known.references == shard.references:
            return
        needed = {ref.home.save_id for each in self.shards[shard.save_id].values() for ref in each.references}
        for home_id in {ref.home.save_id for ref in known.references} - needed:
            self.referring[home_id].discard(shard.save_id)
        if any(save.save_id == shard.save_id and save.state is not SaveState.RETIRED for save in self.saves.values()):
            self.fail(f"I4: blobs {sorted(lost)} of save {shard.save_id} were taken off its record")
        for save_id in self.referring[shard.save_id]:
            other = self.shards.get(save_id, {}).get(shard.rank)
            if self.counts(save_id) and other and needed_of(shard.save_id, other) & lost:
                self.fail(f"I7: save {save_id} refers to what was taken off the record of {shard.save_id}")

    def _is_of(self, group: Group, blob: Blob) -> bool:
        """Whether members of the group hold it: all of them, or where it is spread some of them."""
        names, pool = {holder.node_id for holder in blob.holders}, self.pools[group.pool]
        if pool.level is Level.L3 or blob.code != MIRROR:
            return names <= set(group.members)
        return names <= set(group.members) and len(names) >= min(pool.member_count, len(group.members))

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
        if before is not None and before.state.is_readable:
            self._check_level(before, after)
        if before is not None and before.state.is_readable and not after.state.is_readable:
            self.fail(f"I2: {after.title} was committed, and is {after.state} now")
        if after.state is SaveState.RETIRED and key == keys.retired(
            after.job, after.step, after.attempt, after.save_id
        ):
            return
        if after.state not in (SaveState.PENDING, SaveState.COMMITTED, SaveState.SET_ASIDE):
            self.fail(f"I2: {after.title} is {after.state} where generations are kept")

    def _check_level(self, before: Save, after: Save) -> None:
        """It rises when all that it promises is there, and falls only if an operator lowered the pool's (P4)."""
        asked = min(pool.level for pool in self.former_pools[after.pool])
        if after.level < min(before.level, max(asked, Level.L2)):
            self.fail(f"I6: {after.title} was at {before.level}, and is at {after.level} now")
        if after.level > before.level or (before.degraded and not after.degraded):
            for shard in self.shards.get(after.save_id, {}).values():
                for blob in shard.blobs:
                    self.check_claim(after, blob, [holder for holder in blob.holders if not holder.dropping])

    def _became_readable(self, save: Save, *, was_pending: bool) -> None:
        self.commit_count += was_pending
        ranks = self.shards.get(save.save_id, {})
        if sorted(ranks) != list(range(save.world_size)):
            self.fail(f"I2: {save.title} was committed with ranks {sorted(ranks)} of {save.world_size}")
        other = self._committed.setdefault((save.job, save.step, save.attempt), save.save_id)
        if other != save.save_id and (save.job, save.step) not in self.may_go:
            self.fail(f"I2: {save.title} of attempt {save.attempt} was committed twice: {other} and {save.save_id}")
        for shard in ranks.values():
            for blob in shard.blobs:
                counting = [holder for holder in blob.holders if not holder.dropping]
                if was_pending:
                    self.check_claim(save, blob, counting)
                if was_pending and any(holder.node_id not in self.nodes for holder in counting):
                    self.fail(f"P7: {save.title} was committed, and blob {blob.id} names a node that was removed")
                for holder in counting:
                    if not self.had(blob, holder):
                        self.fail(f"I1: {save.title} was committed, and blob {blob.id} is not on {holder.node_id}")

    def _save_left(self, before: Save) -> None:
        kept = (save for save in self.saves.values() if save.save_id == before.save_id)
        trashed = self.trash.get(before.save_id) or next(kept, None)
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
        hashes = {part.ordinal: part.hash for part in (*shard.blobs, *shard.references)}
        if hashes != {ordinal: hash_of(data) for ordinal, data in enumerate(told.contents)}:
            self.fail(f"I1: {save.title} was acknowledged, and rank {told.rank} is on record with other content")
        untrue = self.why_untrue([shard])
        if untrue and self.are_fragments_true:
            self.fail(f"P9: {save.title} was acknowledged, and {untrue} is not what its blob makes it")
        if self.counts(save.save_id):
            for blob in shard.blobs:
                for holder in blob.holders:
                    # It may have been committed long before its client heard of it, and have rotted since.
                    has_rotted = (blob.id, holder.node_id) in self.rotted
                    if not holder.dropping and not has_rotted and not self.had(blob, holder):
                        self.fail(f"I1: {save.title} was acknowledged, and blob {blob.id} is not on {holder.node_id}")
