"""Receipts: a primary's word that a rank's blobs are durable (P5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdrs_core.checkpoints import Blob, SaveState, Shard
from sdrs_core.cluster import Group, Pool
from sdrs_core.codes import MIRROR, parse_code
from sdrs_core.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    UnavailableError,
)
from sdrs_core.ids import GroupId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_core.redundancy import Standing, present_form, standing
from sdrs_storaged.control import keys
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare, Put
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, batched, put
from sdrs_storaged.control.referrals import Referrals
from sdrs_storaged.control.tables import Layout
from sdrs_storaged.fault_points import reach


@dataclass(frozen=True, slots=True)
class Receipt:
    capability: str
    job: JobName
    step: int
    attempt: int
    group_id: GroupId
    epoch: int
    shard: Shard


class Receipts:
    def __init__(self, records: Records, members: Members, commits: Commits, referrals: Referrals) -> None:
        self._records = records
        self._members = members
        self._commits = commits
        self._referrals = referrals

    async def register(self, node_id: NodeId, receipts: Sequence[Receipt]) -> list[SaveState | SdrsError]:
        """Take a primary's receipts; the state of each save after it, or why that receipt was refused."""
        outcomes: dict[int, SaveState | SdrsError] = {}
        for _ in range(MAX_TRIES):
            # P7: taken before the checks, so that a receipt counts only under the layout that it was checked against.
            layouts = self._members.layouts()
            accepted = await self._check_all(node_id, receipts, outcomes)
            for save_id, ranks in accepted.items():
                writes = ((i, put(keys.shard(save_id, rank), receipts[i].shard)) for rank, i in ranks.items())
                for batch in batched(writes):
                    shards = [receipts[index].shard for index, _ in batch]
                    result = await self._store_shards(save_id, shards, [write for _, write in batch], layouts)
                    if result is not None:
                        outcomes |= {index: result for index, _ in batch}
            if len(outcomes) == len(receipts):
                break
        busy = UnavailableError("the save's records change all the time: send the receipt again")
        return [outcomes.get(index, busy) for index in range(len(receipts))]

    async def _check_all(
        self, node_id: NodeId, receipts: Sequence[Receipt], outcomes: dict[int, SaveState | SdrsError]
    ) -> dict[SaveId, dict[int, int]]:
        """For each save its ranks to be stored, with the index of their receipt; the outcome of all others.

        A rank that comes twice (its client did not wait for the answer) is stored once, and looked at again after that.
        """
        accepted: dict[SaveId, dict[int, int]] = {}
        for index, receipt in enumerate(receipts):
            if index in outcomes:
                continue
            try:
                done = await self._check(node_id, receipt)
            except SdrsError as error:
                outcomes[index] = error
                continue
            if done is not None:
                outcomes[index] = done
            else:
                accepted.setdefault(receipt.shard.save_id, {}).setdefault(receipt.shard.rank, index)
        return accepted

    async def _check(self, node_id: NodeId, receipt: Receipt) -> SaveState | None:
        """None: to be stored. A state: it already was. Raises if the receipt must not count."""
        shard = receipt.shard
        self._members.check_capability(shard.save_id, receipt.capability)
        if any(not blob.holders for blob in shard.blobs) or not shard.blobs:
            raise InvalidArgumentError("a receipt names blobs, and at least one holder for each")
        try:
            group = self._members.group(receipt.group_id)
        except NotFoundError as error:
            raise StaleEpochError(
                f"group {receipt.group_id} is no more, its node left the pool: begin the save again",
                group=receipt.group_id,
            ) from error
        # I3: only the primary of the current epoch. The layout, which moves with the group, is compared when the
        # receipt is stored, so this look and the transaction are one.
        if group.epoch != receipt.epoch or group.primary != node_id:
            raise StaleEpochError(
                f"group {group.id} is at epoch {group.epoch} with primary {group.primary}: begin the save again",
                group=group.id,
                epoch=group.epoch,
                primary=group.primary,
            )
        pool = self._members.pool(group.pool)
        self._check_members(group, pool)
        for blob in shard.blobs:
            _check_holders(blob, group, pool, self._members.domains())
        registered = await self._records.get(keys.shard(shard.save_id, shard.rank), Shard)
        if registered and registered.value.content_hash == shard.content_hash:
            unfinished = self._commits.get(shard.save_id)
            if unfinished:
                # Stored before, but perhaps never counted: the store's answer to that may have been lost.
                await self._commits.count(unfinished, registered.value)
                await self._commits.commit_if_complete(unfinished)
            return (await self._commits.find(shard.save_id, receipt.job, receipt.step)).state
        if registered:
            raise AlreadyExistsError(f"rank {shard.rank} of save {shard.save_id} is already in with other content")
        pending = self._commits.get(shard.save_id)
        if pending is None:
            await self._explain_ended(shard.save_id, receipt)
            return None
        save = pending.stored.value
        if not 0 <= shard.rank < save.world_size:
            raise InvalidArgumentError(f"rank {shard.rank} does not exist with world_size {save.world_size}")
        if group.pool != save.pool:
            raise InvalidArgumentError(f'{save.title} goes to pool "{save.pool}", not to that of group {group.id}')
        if shard.references:
            await self._referrals.check(save, shard)
        return None

    def _check_members(self, group: Group, pool: Pool) -> None:
        """I4: a group below its minimum refuses rather than acknowledging less, unless the pool says otherwise."""
        if len(group.members) < pool.member_count and not pool.can_shrink:
            raise RefusedError(
                f"group {group.id} has {len(group.members)} of {pool.member_count} members: start another node, or let "
                f"saves go on with fewer copies: sdrs pool set {pool.name} --allow-degraded"
            )

    async def _explain_ended(self, save_id: SaveId, receipt: Receipt) -> None:
        save = await self._commits.find(save_id, receipt.job, receipt.step)
        await self._commits.check_not_superseded(save)
        raise SaveFailedError(
            f"{save.title}: the save is {save.state} ({save.note or 'nobody renewed it'}): save again"
        )

    async def _store_shards(
        self, save_id: SaveId, shards: list[Shard], writes: list[Put], layouts: dict[PoolName, Stored[Layout]]
    ) -> SaveState | SdrsError | None:
        """The state of the save after it, or why not; None: look at the receipts again."""
        pending = self._commits.get(save_id)
        if pending is None:
            return None
        self._commits.renew(pending)
        save = pending.stored.value
        try:
            # P13: before the shards that need it, and on the save's own record, which they compare.
            await self._referrals.write(pending, shards)
            layout = layouts.get(save.pool)
            if layout is None:
                raise InternalError(f'{save.title}: pool "{save.pool}" is gone')
            # P1: of a superseded attempt, only what was sealed by all ranks before may still be finished.
            job = await self._commits.check_not_superseded(save)
            # P3: a batch of receipts is one transaction; it holds only while the save is still pending (P13).
            compare = [pending.stored.unchanged(), job.unchanged(), layout.unchanged()]
            await self._records.commit([*compare, *(Compare.absent(write.key) for write in writes)], writes)
            reach("receipt.stored")
            for shard in shards:
                await self._commits.count(pending, shard)
            return await self._commits.commit_if_complete(pending)
        except ConflictError:
            await self._commits.look_again(pending)
            return None
        except SdrsError as error:
            return error


def _check_holders(blob: Blob, group: Group, pool: Pool, domains: Mapping[NodeId, str]) -> None:
    """I1, P5: members of the group, each with the very bytes; nobody else can have been asked."""
    names = [holder.node_id for holder in blob.holders]
    if not set(names) <= set(group.members):
        raise _unlike(blob, group, names)
    if any(holder.dropping for holder in blob.holders):
        raise InvalidArgumentError(f"blob {blob.id} names a holder that is letting go of it: send it again")
    if blob.code == MIRROR:
        if any(holder.fragment_hash != blob.hash or holder.fragment_index for holder in blob.holders):
            raise InvalidArgumentError(f"blob {blob.id} is not the same on all of its holders: send it again")
        if len(set(names)) < len(names):
            raise _unlike(blob, group, names)
        if pool.level is not Level.L3 and len(names) < min(pool.member_count, len(group.members)):
            # Nobody's forgery: the pool spread its blobs a moment ago, and the primary was not told of the change yet.
            raise UnavailableError(
                f"blob {blob.id} has {len(names)} copies, and all {len(group.members)} members of group {group.id} "
                "must hold it now: seal it again"
            )
    else:
        _check_fragments(blob)
    # What is acknowledged survives the loss of any one domain, unless the pool says that less will do.
    least = Standing.READABLE if pool.allow_degraded or pool.level is not Level.L3 else Standing.SAFE
    if standing(present_form(blob, pool), blob.holders, domains) < least:
        raise RefusedError(
            f"blob {blob.id} would not survive the loss of one failure domain ({len(names)} of its fragments are "
            f"stored): start another node, or: sdrs pool set {pool.name} --allow-degraded"
        )


def _check_fragments(blob: Blob) -> None:
    code = parse_code(blob.code)
    indexes = [holder.fragment_index for holder in blob.holders]
    if code is None or len(set(indexes)) < len(indexes) or max(indexes) >= code.total:
        raise InvalidArgumentError(f"blob {blob.id} names the fragments {indexes}, which are not those of {blob.code}")
    if any(not holder.fragment_hash for holder in blob.holders):
        raise InvalidArgumentError(f"blob {blob.id} names a fragment without its hash: send it again")


def _unlike(blob: Blob, group: Group, names: Sequence[NodeId]) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"blob {blob.id} names the holders {', '.join(names)}: the members of group {group.id} at epoch "
        f"{group.epoch} are {', '.join(group.members)}, and every one of them must hold it"
    )
