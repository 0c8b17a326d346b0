"""A shard is sealed: the primary registers a receipt that names who holds what, each member by its own word (I1).

What a member lacks is sent to it from the primary's disk, and then it is asked again. All members of the epoch hold
every blob, or there is no receipt: without a member that fails, the group is re-formed first, and the client goes on
at the new epoch (I4). Where a pool spreads its blobs it is not all or nothing: see ``spread_seal``.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from sdrs_core.checkpoints import Blob, Holder, SaveState, Shard
from sdrs_core.cluster import Group, Node
from sdrs_core.codes import MIRROR
from sdrs_core.errors import InvalidArgumentError, SaveFailedError, SdrsError, StaleEpochError, UnavailableError
from sdrs_core.ids import BlobId, DiskId, GroupId, JobName, NodeId, SaveId, check_random_id
from sdrs_proto import convert
from sdrs_proto.limits import MAX_BLOBS_PER_SHARD
from sdrs_proto.v1 import membership_pb2
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.receipts import ReceiptQueue
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.rpc.peers import Peers
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.rpc.spread_seal import SpreadSeal
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.seeing_through import all_of
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentOrigin

_GRACE_SECONDS = 1.0

T = TypeVar("T")


class Sealing:
    def __init__(
        self,
        store: FragmentStore,
        groups: Groups,
        replication: Replication,
        peers: Peers,
        reports: MemberReports,
        receipts: ReceiptQueue,
        spread: SpreadSeal,
        *,
        looks: Workers,
        pushes: Workers,
        slow_seconds: float,
    ) -> None:
        self._store = store
        self._groups = groups
        self._replication = replication
        self._peers = peers
        self._reports = reports
        self._receipts = receipts
        self._spread = spread
        self._looks = looks
        self._pushes = pushes
        self._slow_seconds = slow_seconds

    async def seal(self, request: pb.SealShardRequest) -> SaveState:
        shard = convert.shard_from(request.shard)
        if not shard.blobs or shard.blob_count > MAX_BLOBS_PER_SHARD:
            raise InvalidArgumentError(f"a shard has 1 to {MAX_BLOBS_PER_SHARD} blobs, not {shard.blob_count}")
        group = await self._groups.admit(GroupId(request.group_id), request.epoch, as_primary=True)
        if self._groups.pool_of(group).code is None:
            blobs = await self._confirm_copies(group, shard)
        else:
            blobs = await self._confirmed(group, self._spread.confirm(group, shard, _origin(request, group)))
        # I3: whoever was deposed meanwhile vouches for nobody. The controller compares the epoch once more.
        self._groups.check(group.id, group.epoch, as_primary=True)
        # What it refers to is not this group's to vouch for: the controller looks at the record of its home (P5).
        size_bytes = sum(blob.raw_bytes for blob in blobs) + shard.referenced_bytes
        sealed = replace(shard, size_bytes=size_bytes, blobs=blobs)
        reach("seal.confirmed")
        receipt = membership_pb2.Receipt(
            capability=request.capability,
            job=request.job,
            step=request.step,
            attempt=request.attempt,
            group_id=group.id,
            epoch=group.epoch,
            shard=convert.shard_to(sealed),
        )
        state = await self._receipts.register(receipt)
        reach("seal.registered")
        return state

    async def _confirm_copies(self, group: Group, shard: Shard) -> tuple[Blob, ...]:
        own = await self._looks.run(self._own_holders, shard, group.primary)
        others = [member for member in group.members if member != group.primary]
        held = [own]
        if others:
            asking = all_of(self._confirm(group, shard, member) for member in others)
            held += await self._confirmed(group, asking)
        return tuple(
            replace(blob, code=MIRROR, holders=tuple(holders[blob.id] for holders in held)) for blob in shard.blobs
        )

    def _own_holders(self, shard: Shard, node_id: NodeId) -> dict[BlobId, Holder]:
        """P5: the node vouches for what it finds durable on its own disks, not for what a client names."""
        holders = {}
        for blob in shard.blobs:
            check_random_id(blob.id, "blob id")
            found = self._store.lookup(blob.id, 0)
            if found is None or (found.save_id, found.size_bytes, found.fragment_hash) != (
                shard.save_id,
                blob.size_bytes,
                blob.hash,
            ):
                raise SaveFailedError(
                    f"blob {blob.id} of rank {shard.rank} is not durable on node {node_id}: send it again"
                )
            holders[blob.id] = Holder(node_id, found.disk_id, 0, found.fragment_hash)
        return holders

    async def _confirmed(self, group: Group, asking: Coroutine[Any, Any, T]) -> T:
        """What members confirm of the shard: enough of it, or an error."""
        try:
            return await self._groups.run_while(asking, lambda: self._groups.is_current(group), group.id)
        except SaveFailedError:
            raise
        except SdrsError as error:
            # A member that fails was reported, one that knows better has been told of a change: either way the group
            # is about to move.
            patience_seconds = self._slow_seconds + _GRACE_SECONDS
            await self._groups.wait_until(lambda: not self._groups.is_current(group), patience_seconds)
            self._groups.check(group.id, group.epoch, as_primary=True)
            raise UnavailableError(
                f"group {group.id} cannot vouch for the shard now: {error.message}; nothing is lost, seal it again"
            ) from error

    async def _confirm(self, group: Group, shard: Shard, member_id: NodeId) -> dict[BlobId, Holder]:
        try:
            node = self._groups.node(member_id)
            held = await self._held_by(group, shard, node)
            missing = [blob.id for blob in shard.blobs if blob.id not in held]
            for blob_id in missing:
                await self._pushes.run(self._replication.push, group, node, blob_id)
            if missing:
                held = await self._held_by(group, shard, node)
            lacking = [blob.id for blob in shard.blobs if blob.id not in held]
            if lacking:
                raise UnavailableError(f"node {member_id} took blob {lacking[0]}, but does not hold it")
            return held
        except (StaleEpochError, SaveFailedError):
            raise
        except SdrsError as error:
            self._reports.note(group, member_id, error)
            raise

    async def _held_by(self, group: Group, shard: Shard, node: Node) -> dict[BlobId, Holder]:
        """By its own word. What differs in anything is not this blob."""
        names = [pb.FragmentName(blob_id=blob.id, fragment_index=0) for blob in shard.blobs]
        wanted = {(blob.id, 0, shard.save_id, blob.size_bytes, blob.hash) for blob in shard.blobs}
        return {
            BlobId(held.blob_id): Holder(node.id, DiskId(held.disk_id), held.fragment_index, held.hash)
            for held in await self._peers.lookup(node, names, group)
            if (held.blob_id, held.fragment_index, held.save_id, held.size_bytes, held.hash) in wanted
        }


def _origin(request: pb.SealShardRequest, group: Group) -> FragmentOrigin:
    """What fragments of the shard say about themselves; the rest is that of each blob."""
    return FragmentOrigin(
        blob_id=BlobId(""),
        save_id=SaveId(request.shard.save_id),
        job=JobName(request.job),
        step=request.step,
        attempt=request.attempt,
        rank=request.shard.rank,
        ordinal=0,
        world_size=request.world_size,
        blob_count=len(request.shard.blobs) + len(request.shard.references),
        kind=convert.kind_from(request.shard.kind),
        pool=group.pool,
    )
