"""What the store and the disks hold, kept beside them: read from every change, asked by the checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter

from sdrs_core.checkpoints import Blob, Holder, Save, SaveState, Shard
from sdrs_core.cluster import Group, Node, Pool
from sdrs_core.codes import parse_code
from sdrs_core.ids import BlobId, DiskId, JobName, NodeId, SaveId
from sdrs_core.mirroring import twin_of
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Event, EventKind
from sdrs_storaged.control.tables import NodeRecord, PoolRecord
from tests.simulation.client import Acknowledged
from tests.simulation.platter import Held, Platter
from tests.simulation.standings import fragments_of, is_readable, why_not_full

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Group, Save, Shard, PoolRecord, NodeRecord)
}
SHARDS = keys.SHARDS
REMOVING = keys.removing("")


@dataclass
class Ledger:
    platters: Mapping[NodeId, Platter]
    groups: dict[str, Group] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    # All that they ever were: what was promised under one of these was not a lie.
    former_pools: dict[str, list[Pool]] = field(default_factory=dict)
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    # Nodes that are about to be removed: nothing on them may go on record any more.
    removing: set[NodeId] = field(default_factory=set)
    # By key: generations and trash, as the store has them now.
    saves: dict[str, Save] = field(default_factory=dict)
    trash: dict[SaveId, Save] = field(default_factory=dict)
    shards: dict[SaveId, dict[int, Shard]] = field(default_factory=dict)
    # Who refers to blobs of a save, by its shards on record.
    referring: defaultdict[SaveId, set[SaveId]] = field(default_factory=lambda: defaultdict(set))
    acknowledged: dict[SaveId, Acknowledged] = field(default_factory=dict)
    # (job, step) that an operator asked to delete, at whatever moment that takes effect.
    may_go: set[tuple[JobName, int]] = field(default_factory=set)
    # What a fault has flipped a bit of, and where.
    rotted: set[tuple[BlobId, NodeId]] = field(default_factory=set)
    destroyed: set[DiskId] = field(default_factory=set)
    # Nodes whose machines are gone for good, with all their disks, and that may still be on record.
    wrecked: set[NodeId] = field(default_factory=set)
    # What each rank of each acknowledged save contains.
    contents: dict[tuple[SaveId, int], tuple[bytes, ...]] = field(default_factory=dict)
    commit_count: int = 0

    def note(self, event: Event) -> None:
        """Nodes, pools, saves and trash; groups and shards are kept by whoever checks them."""
        key, is_there = event.entry.key, event.kind is EventKind.PUT
        if key.startswith(keys.POOLS) and is_there:
            pool = parsed(PoolRecord, event).pool
            self.pools[pool.name] = pool
            self.former_pools.setdefault(pool.name, []).append(pool)
        elif key.startswith(keys.NODES):
            self.nodes.pop(NodeId(key[len(keys.NODES) :]), None)
            if is_there:
                self.nodes[NodeId(key[len(keys.NODES) :])] = parsed(NodeRecord, event).node
        elif key.startswith(REMOVING):
            (self.removing.add if is_there else self.removing.discard)(NodeId(key[len(REMOVING) :]))
        elif key.startswith(keys.SAVES):
            self.saves.pop(key, None)
            if is_there:
                self.saves[key] = parsed(Save, event)
        elif key.startswith(keys.TRASH):
            self.trash.pop(trash_id(key), None)
            if is_there:
                self.trash[trash_id(key)] = parsed(Save, event)

    def domains(self) -> dict[NodeId, str]:
        return {node_id: node.domain for node_id, node in self.nodes.items()}

    def counts(self, save_id: SaveId) -> bool:
        """Whether anybody may still want the save's bytes: it is pending, readable, or could be undeleted; or one that
        is so refers to it.
        """
        return self._is_wanted(save_id) or any(map(self._is_wanted, self.referring.get(save_id, ())))

    def _is_wanted(self, save_id: SaveId) -> bool:
        if any(save.save_id == save_id for save in self.saves.values()):
            return True
        trashed = self.trash.get(save_id)
        # Of which parts were let go while it was retired, it cannot be undeleted.
        return trashed is not None and trashed.state is SaveState.DELETED and not trashed.trimmed

    def had(self, blob: Blob, holder: Holder, *, on_this_disk: bool = False) -> bool:
        """Whether the fragment on record is durable; it may have moved to another disk of its node since."""
        if holder.disk_id in self.destroyed:
            return True  # it had it: what is lost with a disk is repaired, not denied
        platter = self.platters.get(holder.node_id)
        return platter is not None and any(
            held.is_synced
            and held.stored.fragment_hash == holder.fragment_hash
            # P2: fragments of two codes never mix.
            and held.stored.code == blob.code
            and (not on_this_disk or held.stored.disk_id == holder.disk_id)
            for held in platter.find(blob.id, holder.fragment_index)
        )

    # At rest

    def has_sound(self, blob: Blob, holder: Holder, without: Set[DiskId] = frozenset()) -> bool:
        """Whether a reader gets what is on record; a node may have moved it from one of its disks to another."""
        platter = self.platters.get(holder.node_id)
        return platter is not None and any(
            held.is_synced
            and held.stored.fragment_hash == holder.fragment_hash
            and held.stored.disk_id not in without
            and held.is_sound
            for held in platter.find(blob.id, holder.fragment_index)
        )

    def holders_of(self, blob: Blob, without: Set[DiskId] = frozenset()) -> list[Holder]:
        """Those on record that count, and that really have it."""
        return [holder for holder in blob.holders if not holder.dropping and self.has_sound(blob, holder, without)]

    def holders_by_name(self, save: Save) -> set[NodeId]:
        """All who are on record for any of the save's blobs."""
        shards = self.shards[save.save_id].values()
        return {holder.node_id for shard in shards for blob in shard.blobs for holder in blob.holders}

    def wanted_blobs(self) -> Iterator[tuple[Save, Shard, Blob]]:
        """Of all saves that count, pending ones too."""
        for save in [*self.saves.values(), *self.trash.values()]:
            if self.counts(save.save_id):
                for shard in self.shards.get(save.save_id, {}).values():
                    for blob in shard.blobs:
                        yield save, shard, blob

    def is_kept(self, shard: Shard, blob: Blob, without: Set[DiskId] = frozenset()) -> bool:
        """I7: enough of the blob, or of its twin in another pool, is on record and really there."""
        return any(
            is_readable(form, (holder for holder in self.holders_of(form, without)))
            for form in (blob, twin_of(shard, blob))
            if form is not None
        )

    def may_lose(self, disk_ids: Set[DiskId]) -> bool:
        """Whether every blob can be read without these disks: no level promises more than that."""
        return all(self.is_kept(shard, blob, disk_ids) for _, shard, blob in self.wanted_blobs())

    def why_degraded(self) -> str:
        """What repair has still to do; empty once every readable blob is as its pool wants it."""
        for save, _, blob in self.wanted_blobs():
            if save.state.is_kept:
                pool = self.pools[save.pool]
                places = {
                    node.domain
                    for node in self.nodes.values()
                    if pool.has_node(node.id) and not node.draining and node.id not in self.wrecked
                }
                why = why_not_full(blob, pool, self.holders_of(blob), self.domains(), len(places))
                if why:
                    return f"{save.title}, blob {blob.id}: {why}"
                if save.level < pool.level:
                    return f"{save.title} has all its copies, and is still at {save.level}"
                if save.degraded and len(places) >= pool.member_count:
                    return f"{save.title} has all its copies, and is still degraded"
        return ""

    def on_record(self, node_id: NodeId) -> str:
        """A checkpoint that is kept and names the node; empty if none does."""
        for save in self.saves.values():
            if save.state.is_kept:
                for shard in self.shards.get(save.save_id, {}).values():
                    for blob in shard.all_blobs:
                        if any(holder.node_id == node_id for holder in blob.holders):
                            return f"{save.title}, blob {blob.id}"
        return ""

    def is_true(self, held: Held) -> bool | None:
        """Whether a fragment is what its blob makes it; None if nobody knows what its blob is."""
        origin = held.origin
        contents = self.contents.get((origin.save_id, origin.rank))
        if contents is None:
            return None
        code = parse_code(origin.code)
        data = contents[origin.ordinal]
        return held.data == (fragments_of(data, code)[origin.fragment_index] if code else data)

    def why_untrue(self, shards: Iterable[Shard] | None = None) -> str:
        """P2, P9: a fragment on record that is not what its blob makes it; empty if all are."""
        for shard in [shard for _, shard, _ in self.wanted_blobs()] if shards is None else shards:
            for blob in shard.all_blobs:
                for holder in self.holders_of(blob):
                    for held in self.platters[holder.node_id].find(blob.id, holder.fragment_index):
                        if self.is_true(held) is False:
                            return f"fragment {holder.fragment_index} of blob {blob.id} on {holder.node_id}"
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
