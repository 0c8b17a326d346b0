"""One fragment made, or one let go: orders to nodes, and the record before or after them, in the order that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Blob, Holder, Save, Shard
from sdrs_core.cluster import Node, NodeState, Order
from sdrs_core.codes import MIRROR
from sdrs_core.errors import (
    CorruptDataError,
    DiskFailedError,
    FullError,
    NotFoundError,
    SdrsError,
    UnavailableError,
)
from sdrs_core.ids import BlobId, DiskId, NodeId, PoolName, SaveId
from sdrs_core.remedies import Copy, Trim
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.control.claims import Claims, FragmentName
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.progress import Measured
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("copier")

# How often a long order is looked after.
_LOOK_SECONDS = 1.0

_CALL_OFF_SECONDS = 5.0


class CalledOffError(UnavailableError):
    """Something more urgent is in need of the blob or the node. It never crosses the wire."""


@dataclass(slots=True)
class Leash:
    """How what is under way is held back. ``limit``: bytes a second that each order of it may take, as it is now; 0: as
    fast as it goes.
    """

    limit: Callable[[], int]
    is_called_off: bool = False
    # How far what is being made is; None before that has begun.
    measured: Measured | None = None

    def check(self) -> None:
        if self.is_called_off:
            raise CalledOffError("called off for something more urgent")


@dataclass(frozen=True, slots=True)
class HeldFragment:
    """What a node says that it has, durable."""

    blob_id: BlobId
    fragment_index: int
    save_id: SaveId
    size_bytes: int
    hash: str
    disk_id: DiskId
    # Of the blob that it is a fragment of; of a whole copy the same as above.
    code: str = MIRROR
    source_size_bytes: int = 0
    source_hash: str = ""


@dataclass(frozen=True, slots=True)
class InBucket:
    """Where a backup has the plain bytes of a blob. ``table``: the digests of its blocks, whose hash is on record."""

    target: Target
    place: ObjectPlace
    table: bytes


@dataclass(frozen=True, slots=True)
class Pull:
    """A fragment to make, with all that its header tells, so that the catalog can be rebuilt from it (P19).

    ``blob`` is what it will be a fragment of, with the size and the hash of the whole; ``source`` is what it is made
    of: the same blob, or one of the same content in another form (P2).
    """

    save: Save
    shard: Shard
    blob: Blob
    fragment_index: int
    source: Blob
    # Whose nodes keep it: the checkpoint's own pool, or the one that mirrors that.
    pool: PoolName
    # 0: as fast as it goes.
    max_bytes_per_second: int = 0
    # Whoever makes it stops.
    is_called_off: bool = False
    # It is fetched from there, and from no other node.
    backup: InBucket | None = None


class CopyCommands(Protocol):
    """What repair asks of nodes; the other side is ``rpc.node_client``."""

    async def lookup_fragments(self, node: Node, names: Sequence[FragmentName]) -> list[HeldFragment]: ...

    async def pull_fragment(
        self, node: Node, pull: Pull, sources: Sequence[tuple[Node, Holder]], order: Order
    ) -> HeldFragment:
        """``sources``: who holds which fragment of ``pull.source``."""
        ...

    async def made_bytes(self, node: Node, name: FragmentName) -> int:
        """How much of a fragment that it was told to make is there; 0 also if it is not known."""
        ...

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

    async def copy(
        self, save: Save, stored: Stored[Shard], action: Copy, pool: PoolName, leash: Leash
    ) -> Holder | None:
        """The holder, once the fragment is durable and on record; None if nobody wants it any more."""
        blob, name = action.blob, (action.blob.id, action.fragment_index)
        # Until it is on record it looks like an orphan.
        with self._claims.take(action.target, [name]) as mine:
            if not mine:
                raise UnavailableError(f"blob {blob.id} is being worked on at node {action.target}")
            pull = Pull(save, stored.value, blob, action.fragment_index, action.source, pool)
            holder = await self.pull(action.target, pull, action.sources, leash)
            reach("repair.pulled")
            wanted = await self._holders.add(stored.key, blob.id, holder)
        log.info("copy_made", blob=blob.id, node=holder.node_id, job=save.job, step=save.step, recorded=wanted)
        return holder if wanted else None

    async def pull(self, target: NodeId, pull: Pull, sources: Sequence[Holder], leash: Leash) -> Holder:
        """The fragment is durable there, and of this blob. Whoever asks for it has a claim on it."""
        node, blob, index = self._members.node(target), pull.blob, pull.fragment_index
        # A node may not have heard of a newer controller yet (P14), or of why this one is frozen (P18).
        await self._records.check_leading()
        of_nodes = [(self._members.node(source.node_id), source) for source in sources]
        held = await self._ordered(node, pull, of_nodes, leash)
        problem = difference(held, blob, index)
        if problem:
            raise CorruptDataError(f"node {node.id} made fragment {index} of blob {blob.id}: {problem}")
        return Holder(node.id, held.disk_id, index, held.hash)

    async def _ordered(
        self, node: Node, pull: Pull, sources: Sequence[tuple[Node, Holder]], leash: Leash
    ) -> HeldFragment:
        """It may take hours. A node that went down is not waited for. When the limit changes the order is given again:
        who makes this fragment already goes on with it, as fast as it is told then.
        """
        while True:
            leash.check()
            asked = replace(pull, max_bytes_per_second=leash.limit())
            order = await self._members.order(node.id)
            calling = asyncio.ensure_future(self._nodes.pull_fragment(node, asked, sources, order))
            try:
                while leash.limit() == asked.max_bytes_per_second:
                    await asyncio.wait([calling], timeout=_LOOK_SECONDS)
                    if calling.done():
                        return calling.result()
                    if self._members.node(node.id).state is NodeState.DOWN:
                        raise UnavailableError(f"node {node.id} went down while it made a fragment of {pull.blob.id}")
                    if leash.is_called_off:
                        await self._call_off(node, asked, order)
                        leash.check()
                    if leash.measured:
                        leash.measured.reach(leash.measured.whole_bytes + await self._made_bytes(node, pull))
            finally:
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)

    async def _made_bytes(self, node: Node, pull: Pull) -> int:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await self._nodes.made_bytes(node, (pull.blob.id, pull.fragment_index))
        except (SdrsError, TimeoutError):
            return 0  # it is told another time

    async def _call_off(self, node: Node, pull: Pull, order: Order) -> None:
        try:
            async with asyncio.timeout(_CALL_OFF_SECONDS):
                await self._nodes.pull_fragment(node, replace(pull, is_called_off=True), (), order)
        except (SdrsError, TimeoutError):
            return  # as it is answered; if it is not, the fragment is an orphan some time

    async def trim(self, stored: Stored[Shard], action: Trim, kept: Sequence[Holder]) -> None:
        """``kept``: the fragments that make this one dispensable; each is looked at first."""
        holder, blob = action.holder, action.blob
        name = (blob.id, holder.fragment_index)
        with self._claims.take(holder.node_id, [name]) as mine:
            if not mine:
                raise UnavailableError(f"blob {blob.id} is being worked on at node {holder.node_id}")
            # Also for a drop that was begun long ago: those others may have lost it since.
            await self.check_held(blob, kept, beside=holder)
            if not holder.dropping:
                await self._holders.mark_dropping(stored, blob.id, {holder})
                reach("trim.marked")
            await self.drop(holder.node_id, name)
            reach("trim.dropped")
            await self._holders.remove(stored.key, blob.id, replace(holder, dropping=True))
        log.info("copy_trimmed", blob=blob.id, node=holder.node_id, index=holder.fragment_index)

    async def drop(self, node_id: NodeId, name: FragmentName) -> None:
        """P14: once the record says that it does not count. It is gone when this returns."""
        await self._records.check_leading()
        node = self._members.node(node_id)
        order = await self._members.order(node.id)
        if name not in await self._nodes.drop_fragments(node, [name], order):
            raise UnavailableError(f"node {node.id} did not confirm that blob {name[0]} is dropped")

    async def undo(self, blob_id: BlobId, made: Sequence[Holder]) -> None:
        """Never on record, so nobody misses it. What cannot be dropped now is found as an orphan."""
        for holder in made:
            try:
                await self.drop(holder.node_id, (blob_id, holder.fragment_index))
            except SdrsError as error:
                log.warning("not_undone", blob=blob_id, node=holder.node_id, why=error.message)

    def is_refusal(self, error: SdrsError, target: NodeId) -> bool:
        """Whether why a fragment was not made is about the target: another one may do."""
        if isinstance(error, FullError | DiskFailedError):
            return True
        try:
            return self._members.node(target).state is not NodeState.UP
        except NotFoundError:
            return True

    async def check_held(self, blob: Blob, holders: Sequence[Holder], *, beside: Holder | None = None) -> None:
        """A fragment is let go for what others have, not for what they are said to have. ``beside``: the one that was
        to go, which is better looked at too if they lack something.
        """
        lacking = [holder.node_id for holder in holders if not await self._has(blob, holder)]
        if lacking and beside:
            lacking.append(beside.node_id)
        if lacking:
            raise MissingCopyError(f"blob {blob.id} is on record for nodes that lack it", tuple(lacking))

    async def _has(self, blob: Blob, holder: Holder) -> bool:
        name = (blob.id, holder.fragment_index)
        found = await self._nodes.lookup_fragments(self._members.node(holder.node_id), [name])
        return any((held.blob_id, held.fragment_index, held.hash) == (*name, holder.fragment_hash) for held in found)


def difference(held: HeldFragment, blob: Blob, index: int) -> str:
    """How it differs from what is on record of the blob, in a sentence; "": it does not."""
    size_bytes = fragment_bytes(blob, index)
    if (held.fragment_index, held.code, held.size_bytes) != (index, blob.code, size_bytes):
        return (
            f"it is fragment {held.fragment_index} of {held.code} and has {held.size_bytes} bytes, where "
            f"{size_bytes} of {blob.code} are wanted"
        )
    source = (held.source_size_bytes, held.source_hash) if blob.code != MIRROR else (held.size_bytes, held.hash)
    if source != (blob.size_bytes, blob.hash):
        return (
            f"it is of {source[0]} bytes with hash {source[1]}, where {blob.size_bytes} with {blob.hash} are on record"
        )
    # The same index of the same blob is the same bytes, whoever computed it.
    known = {holder.fragment_hash for holder in blob.holders if holder.fragment_index == index}
    return "" if not known or held.hash in known else f"it has hash {held.hash}, on record is {', '.join(known)}"


class MissingCopyError(UnavailableError):
    """Nodes lack what they are on record for: to be compared with the catalog. It never crosses the wire."""

    def __init__(self, message: str, node_ids: tuple[NodeId, ...]) -> None:
        super().__init__(message, nodes=", ".join(node_ids))
        self.node_ids = node_ids
