"""One copy made, or one let go: orders to nodes, and the record before or after them, in the order that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sdrs_core.checkpoints import Blob, Holder, Save, Shard
from sdrs_core.cluster import Node, Order
from sdrs_core.errors import CorruptDataError, UnavailableError
from sdrs_core.ids import BlobId, DiskId, NodeId, SaveId
from sdrs_core.repair import Copy, Trim
from sdrs_storaged.control.claims import Claims, FragmentName
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("copier")


@dataclass(frozen=True, slots=True)
class HeldFragment:
    """What a node says that it has, durable."""

    blob_id: BlobId
    fragment_index: int
    save_id: SaveId
    size_bytes: int
    hash: str
    disk_id: DiskId


@dataclass(frozen=True, slots=True)
class Pull:
    """A fragment to fetch, with all that its header tells, so that the catalog can be rebuilt from it (P19)."""

    save: Save
    shard: Shard
    blob: Blob
    fragment_index: int
    hash: str


class CopyCommands(Protocol):
    """What repair asks of nodes; the other side is ``rpc.node_client``."""

    async def lookup_fragments(self, node: Node, names: Sequence[FragmentName]) -> list[HeldFragment]: ...

    async def pull_fragment(self, node: Node, pull: Pull, sources: Sequence[Node], order: Order) -> HeldFragment: ...

    async def drop_fragments(
        self, node: Node, fragments: Sequence[FragmentName], order: Order
    ) -> set[FragmentName]: ...


class Copier:
    def __init__(
        self, records: Records, members: Members, holders: HolderRecords, nodes: CopyCommands, claims: Claims
    ) -> None:
        self._records = records
        self._members = members
        self._holders = holders
        self._nodes = nodes
        self._claims = claims

    async def copy(self, save: Save, stored: Stored[Shard], action: Copy) -> bool:
        """True once the copy is durable and on record; False if nobody wants it any more."""
        blob, node = action.blob, self._members.node(action.target)
        source = next(h for h in blob.holders if h.node_id == action.sources[0])
        name = (blob.id, action.fragment_index)
        # Until it is on record it looks like an orphan.
        with self._claims.take(node.id, [name]) as mine:
            if not mine:
                raise UnavailableError(f"blob {blob.id} is being worked on at node {node.id}")
            # A node may not have heard of a newer controller yet (P14), or of why this one is frozen (P18).
            await self._records.check_leading()
            pull = Pull(save, stored.value, blob, action.fragment_index, source.fragment_hash)
            sources = [self._members.node(node_id) for node_id in action.sources]
            held = await self._nodes.pull_fragment(node, pull, sources, await self._members.order(node.id))
            if (held.hash, held.size_bytes) != (source.fragment_hash, blob.size_bytes):
                raise CorruptDataError(
                    f"node {node.id} pulled blob {blob.id} and has {held.size_bytes} bytes with hash {held.hash}, "
                    f"where {blob.size_bytes} with {source.fragment_hash} are on record"
                )
            reach("repair.pulled")
            holder = Holder(node.id, held.disk_id, action.fragment_index, held.hash)
            wanted = await self._holders.add(stored.key, blob.id, holder)
        log.info("copy_made", blob=blob.id, node=node.id, job=save.job, step=save.step, recorded=wanted)
        return wanted

    async def trim(self, stored: Stored[Shard], action: Trim, kept: Sequence[Holder]) -> None:
        """``kept``: the copies that make this one dispensable; each is looked at first."""
        holder, blob = action.holder, action.blob
        name = (blob.id, holder.fragment_index)
        with self._claims.take(holder.node_id, [name]) as mine:
            if not mine:
                raise UnavailableError(f"blob {blob.id} is being worked on at node {holder.node_id}")
            # Also for a drop that was begun long ago: those others may have lost it since.
            await self._check_held(blob, kept)
            if not holder.dropping:
                await self._holders.mark_dropping(stored, blob.id, holder)
                reach("trim.marked")
            dropping = Holder(holder.node_id, holder.disk_id, holder.fragment_index, holder.fragment_hash, True)
            await self._records.check_leading()
            node = self._members.node(holder.node_id)
            order = await self._members.order(node.id)
            if name not in await self._nodes.drop_fragments(node, [name], order):
                raise UnavailableError(f"node {node.id} did not confirm that blob {blob.id} is dropped")
            reach("trim.dropped")
            await self._holders.remove(stored.key, blob.id, dropping)
        log.info("copy_trimmed", blob=blob.id, node=holder.node_id)

    async def _check_held(self, blob: Blob, holders: Sequence[Holder]) -> None:
        """A copy is let go for what others have, not for what they are said to have."""
        lacking = [holder.node_id for holder in holders if not await self._has(blob, holder)]
        if lacking:
            raise MissingCopyError(f"blob {blob.id} is on record for nodes that lack it", tuple(lacking))

    async def _has(self, blob: Blob, holder: Holder) -> bool:
        name = (blob.id, holder.fragment_index)
        found = await self._nodes.lookup_fragments(self._members.node(holder.node_id), [name])
        return any((held.blob_id, held.fragment_index, held.hash) == (*name, holder.fragment_hash) for held in found)


class MissingCopyError(UnavailableError):
    """Nodes lack what they are on record for: to be compared with the catalog. It never crosses the wire."""

    def __init__(self, message: str, node_ids: tuple[NodeId, ...]) -> None:
        super().__init__(message, nodes=", ".join(node_ids))
        self.node_ids = node_ids
