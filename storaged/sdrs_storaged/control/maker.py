"""Whole blobs made anew in another form, and whole mirrors let go.

What is being made is on no record until all of it is there, and then all at once: a claim keeps the collector off it
meanwhile, and if this controller dies it is an orphan like any other. What it takes the place of is on no record from
then on, so the scan for orphans finds it, on nodes that are down now too; until then whoever reads it reads on. No
second list of it is needed, that could be lost or forgotten itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Holder, Save, Shard
from sdrs_core.cluster import Pool
from sdrs_core.errors import SdrsError, UnavailableError
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, NodeId, random_id
from sdrs_core.mirroring import twin_of
from sdrs_core.remedies import Decision
from sdrs_core.reshaping import Make, is_good_enough, plan_make
from sdrs_core.soundness import counted
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.control.claims import Claims
from sdrs_storaged.control.copier import Copier, Leash, Pull
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.mirrors import Drop
from sdrs_storaged.control.records import Stored
from sdrs_storaged.control.stocks import View
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("maker")

# Waits until nobody else makes something at this node, and keeps it.
Reserve = Callable[[NodeId, Leash], AbstractAsyncContextManager[None]]


class Maker:
    def __init__(self, holders: HolderRecords, copier: Copier, claims: Claims) -> None:
        self._holders = holders
        self._copier = copier
        self._claims = claims

    async def make(
        self,
        save: Save,
        stored: Stored[Shard],
        action: Make,
        pool: Pool,
        view: View,
        reserve: Reserve,
        leash: Leash,
    ) -> Blob | None:
        """The new blob, once all of it is durable and on record; None if nobody wants it any more."""
        old = action.blob
        new = replace(old, id=BlobId(random_id()), code=action.form.code, holders=())
        made: list[Holder] = []
        with ExitStack() as claims:
            try:
                targets, refused = list(action.targets), set[NodeId]()
                while targets:
                    index, target = targets.pop(0)
                    claims.enter_context(self._claims.take(target, [(new.id, index)]))
                    pull = Pull(save, stored.value, new, index, action.source, pool.name)
                    try:
                        async with reserve(target, leash):
                            made.append(await self._copier.pull(target, pull, action.sources, leash))
                            if leash.measured:
                                leash.measured.whole_bytes += fragment_bytes(new, index)
                                leash.measured.reach(leash.measured.whole_bytes)
                    except SdrsError as error:
                        if not self._copier.is_refusal(error, target):
                            raise
                        refused.add(target)
                        targets = _plan_without(refused, action, view, pool, made, error)
                    reach("make.pulled")
                if not is_good_enough(action.form, made, view.nodes, is_mirror=action.is_mirror):
                    raise UnavailableError(f"too little of blob {old.id} could be made as {action.form.code}")
            except SdrsError:
                await self._copier.undo(new.id, made)
                raise
            whole = replace(new, holders=tuple(made))
            # P2, P4: on record all at once. If the answer is lost it may be there, and stays; else it is an orphan.
            if action.is_mirror:
                recorded = await self._holders.add_mirror(stored.key, old.id, whole)
            else:
                recorded = await self._holders.swap(stored.key, old.id, whole)
            if not recorded:
                await self._copier.undo(new.id, made)
        log.info("blob_made", blob=new.id, of=old.id, code=new.code, pool=pool.name, recorded=recorded)
        return whole if recorded else None

    async def drop(self, stored: Stored[Shard], action: Drop, own: Decision, view: View) -> list[Holder]:
        """Those that are gone. Raises why others are not, once these are off the record."""
        mirror, own_blob = action.blob, twin_of(stored.value, action.blob)
        names = {holder: (mirror.id, holder.fragment_index) for holder in mirror.holders}
        gone: list[Holder] = []
        failure: SdrsError | None = None
        with ExitStack() as claims:
            for holder, name in names.items():
                if not claims.enter_context(self._claims.take(holder.node_id, [name])):
                    raise UnavailableError(f"blob {mirror.id} is being worked on at node {holder.node_id}")
            if own_blob is not None:
                # I7: for what the checkpoint's own holders have, not for what they are said to have.
                await self._copier.check_held(own_blob, own.live)
            if counted(mirror):
                await self._holders.mark_dropping(stored, mirror.id, set(mirror.holders))
                reach("drop.marked")
            for holder, name in names.items():
                stock = view.nodes.get(holder.node_id)
                if stock is None or holder.disk_id in stock.retired_disks:
                    gone.append(holder)
                elif stock.liveness is Liveness.UP:  # the others are asked when they are back
                    try:
                        await self._copier.drop(holder.node_id, name)
                    except SdrsError as error:
                        failure = error
                    else:
                        gone.append(holder)
            await self._holders.remove_dropped(
                stored.key, mirror.id, {(holder.node_id, holder.fragment_index) for holder in gone}
            )
        log.info("mirror_dropped", blob=mirror.id, gone=len(gone), of=len(names))
        if failure:
            raise failure
        return gone


def _plan_without(
    refused: set[NodeId], action: Make, view: View, pool: Pool, made: Sequence[Holder], error: SdrsError
) -> list[tuple[int, NodeId]]:
    """Where the rest goes instead."""
    eligible = view.eligible(pool) - refused
    plan = plan_make(
        action.blob,
        action.form,
        action.source,
        action.sources,
        view.nodes,
        eligible,
        made=made,
        is_mirror=action.is_mirror,
    )
    if plan is None:
        raise error
    return list(plan.targets)
