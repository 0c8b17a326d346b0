"""Receipts: a primary's word that a rank's blobs are durable (P5)."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import SaveState, Shard
from sdrs_core.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    SaveFailedError,
    SdrsError,
    StaleAttemptError,
    StaleEpochError,
)
from sdrs_core.fault_points import reach
from sdrs_core.ids import GroupId, JobName, NodeId, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare
from sdrs_storaged.control.records import ConflictError, Records, put

_MAX_SHARDS_PER_TXN = 100  # P3


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
    def __init__(self, records: Records, members: Members, commits: Commits) -> None:
        self._records = records
        self._members = members
        self._commits = commits

    async def register(self, node_id: NodeId, receipts: Sequence[Receipt]) -> list[SaveState | SdrsError]:
        """Take a primary's receipts; the state of each save after it, or why that receipt was refused."""
        outcomes: list[SaveState | SdrsError | None] = [None] * len(receipts)
        accepted: dict[SaveId, list[int]] = {}
        for index, receipt in enumerate(receipts):
            try:
                done = await self._check(node_id, receipt)
                if done is not None:
                    outcomes[index] = done
                else:
                    accepted.setdefault(receipt.shard.save_id, []).append(index)
            except SdrsError as error:
                outcomes[index] = error
        for save_id, indexes in accepted.items():
            for start in range(0, len(indexes), _MAX_SHARDS_PER_TXN):
                chunk = indexes[start : start + _MAX_SHARDS_PER_TXN]
                result = await self._store_shards(save_id, [receipts[i].shard for i in chunk])
                for index in chunk:
                    outcomes[index] = result
        return [outcome or InternalError("a receipt was left without an answer") for outcome in outcomes]

    async def _check(self, node_id: NodeId, receipt: Receipt) -> SaveState | None:
        """None: to be stored. A state: it already was. Raises if the receipt must not count."""
        shard = receipt.shard
        if not hmac.compare_digest(receipt.capability, self._members.capability(shard.save_id)):
            raise PermissionDeniedError(f"the capability does not belong to save {shard.save_id}: begin the save again")
        if any(holder.node_id != node_id for blob in shard.blobs for holder in blob.holders):
            raise PermissionDeniedError(f"node {node_id} can vouch for its own fragments only (P5)")
        if any(not blob.holders for blob in shard.blobs) or not shard.blobs:
            raise InvalidArgumentError("a receipt names blobs, and at least one holder for each")
        group = self._members.group(receipt.group_id)
        if group.epoch != receipt.epoch or group.primary != node_id:
            raise StaleEpochError(
                f"group {group.id} is at epoch {group.epoch} with primary {group.primary}: begin the save again",
                epoch=group.epoch,
            )
        registered = await self._records.get(keys.shard(shard.save_id, shard.rank), Shard)
        if registered and registered.value.content_hash == shard.content_hash:
            unfinished = self._commits.get(shard.save_id)
            if unfinished:
                # Stored before, but perhaps never counted: the store's answer to that may have been lost.
                unfinished.count(registered.value)
                await self._commits.commit_if_complete(unfinished)
            return (await self._commits.find(shard.save_id, receipt.job, receipt.step)).state
        if registered:
            raise AlreadyExistsError(f"rank {shard.rank} of save {shard.save_id} is already in with other content")
        pending = self._commits.get(shard.save_id)
        if pending is None:
            await self._explain_ended(shard.save_id, receipt)
        elif not 0 <= shard.rank < pending.stored.value.world_size:
            raise InvalidArgumentError(
                f"rank {shard.rank} does not exist with world_size {pending.stored.value.world_size}"
            )
        return None

    async def _explain_ended(self, save_id: SaveId, receipt: Receipt) -> None:
        save = await self._commits.find(save_id, receipt.job, receipt.step)
        job = await self._records.get(keys.job(save.job), Job)
        if job and job.value.attempt > save.attempt:
            raise StaleAttemptError(
                f'attempt {save.attempt} of job "{save.job}" was superseded by attempt {job.value.attempt} (started by '
                f"{job.value.owner}) before step {save.step} was complete",
                job=save.job,
                attempt=job.value.attempt,
                owner=job.value.owner,
            )
        raise SaveFailedError(
            f"{save.title}: the save is {save.state} ({save.note or 'nobody renewed it'}): save again"
        )

    async def _store_shards(self, save_id: SaveId, shards: list[Shard]) -> SaveState | SdrsError:
        pending = self._commits.get(save_id)
        if pending is None:
            return SaveFailedError(f"save {save_id} ended while its receipts came in: save again")
        self._commits.renew(pending)
        shard_keys = [keys.shard(save_id, shard.rank) for shard in shards]
        compare = [pending.stored.unchanged(), *(Compare.absent(key) for key in shard_keys)]
        try:
            # P3: a batch of receipts is one transaction; it holds only while the save is still pending (P13).
            await self._records.commit(
                compare, [put(key, shard) for key, shard in zip(shard_keys, shards, strict=True)]
            )
            reach("receipt.stored")
            for shard in shards:
                pending.count(shard)
            committed = await self._commits.commit_if_complete(pending)
        except ConflictError:
            return SaveFailedError(
                f"{pending.stored.value.title}: the save changed while its receipts came in: save again"
            )
        except SdrsError as error:
            return error
        return SaveState.COMMITTED if committed else SaveState.PENDING
