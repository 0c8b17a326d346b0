"""One blob out of a backup: made anew under an id of its own, whole, and then on record all at once (P2, P4).

What is being made is on no record: a claim keeps the collector off it, and if this controller dies it is an orphan like
any other. The bucket is read once: the other copies, or the fragments of a code, are made of what the first node has.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from sdrs_core.backup.targets import TargetName
from sdrs_core.checkpoints import Blob, Holder, Save, Shard
from sdrs_core.cluster import Pool
from sdrs_core.codes import MIRROR
from sdrs_core.errors import FullError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId, NodeId, random_id
from sdrs_core.pools import in_mib
from sdrs_core.redundancy import Form, form_of
from sdrs_core.reshaping import plan_make
from sdrs_core.stocks import Targets
from sdrs_storaged.control.claims import Claims
from sdrs_storaged.control.copier import Copier, InBucket, Leash, Pull
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.stocks import Stocks, View
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("recall")

# At a node at once. Somebody waits for what is recalled, so it does not queue behind repair.
_ORDERS_PER_NODE = 2
_WHOLE = Form(MIRROR, 1, 1)


@dataclass(slots=True)
class _Making:
    """``blob``: the new one. ``made``: what there is of it; ``aside``: of a whole copy that is not kept."""

    save: Save
    shard: Shard
    blob: Blob
    form: Form
    backup: InBucket
    pool: Pool
    view: View
    claims: ExitStack
    made: list[Holder] = field(default_factory=list)
    whole: Blob | None = None
    aside: list[Holder] = field(default_factory=list)
    # Who cannot take any of it, and why the last one could not; who cannot take all of it.
    refused: set[NodeId] = field(default_factory=set)
    refusal: SdrsError | None = None
    not_whole: set[NodeId] = field(default_factory=set)


class RecalledBlobs:
    def __init__(
        self, members: Members, stocks: Stocks, holders: HolderRecords, copier: Copier, claims: Claims
    ) -> None:
        self._members = members
        self._stocks = stocks
        self._holders = holders
        self._copier = copier
        self._claims = claims
        self._lanes: dict[NodeId, asyncio.Semaphore] = {}
        self._fetches: Counter[TargetName] = Counter()

    async def bring(self, save: Save, shard_key: str, shard: Shard, old: Blob, backup: InBucket) -> bool:
        """Once all of it is durable and on record; False if nobody wants it any more. FullError, UnavailableError or
        CorruptDataError, and nothing of it on record, if it cannot be had or not be stored.
        """
        pool = self._members.pool(save.pool)
        form = form_of(pool, old.size_bytes)
        new = replace(old, id=BlobId(random_id()), code=form.code, holders=())
        with ExitStack() as claims:
            making = _Making(save, shard, new, form, backup, pool, self._stocks.view(), claims)
            try:
                await self._make(making)
                whole = replace(new, holders=tuple(making.made))
                reach("recall.made")
                recorded = await self._holders.bring_back(shard_key, old.id, whole)
            except SdrsError:
                await self._copier.undo(new.id, making.made)
                raise
            finally:
                if making.whole:
                    await self._copier.undo(making.whole.id, making.aside)
            if not recorded:
                await self._copier.undo(new.id, making.made)
        if recorded:
            for holder in whole.holders:
                self._stocks.held.add(whole, holder)
        log.info("blob_recalled", blob=new.id, of=old.id, code=new.code, target=backup.target.name, recorded=recorded)
        return recorded

    async def _make(self, making: _Making) -> None:
        while targets := self._plan(making):
            is_coded = making.form.code != MIRROR
            if is_coded and not making.aside and await self._fetch_aside(making):
                continue
            # Of copies the first alone: the others are made of it.
            now = targets if is_coded or making.made else targets[:1]
            pulls = (self._pull(making, making.blob, index, target, making.made) for index, target in now)
            # All are seen to their end: what was made is undone if one cannot be.
            for outcome in await asyncio.gather(*pulls, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
            reach("recall.pulled")

    def _plan(self, making: _Making) -> list[tuple[int, NodeId]]:
        """What is still to be made where. With fewer nodes than the pool asks for as much as there is place for, which
        repair completes; but where only room is lacking, nothing is half stored.
        """
        eligible = making.view.eligible(making.pool) - making.refused
        is_full = isinstance(making.refusal, FullError)
        for is_lenient in (False, True):
            plan = plan_make(
                making.blob,
                making.form,
                making.blob,
                (),
                making.view.nodes,
                eligible,
                made=making.made,
                is_mirror=is_lenient,
            )
            if plan:
                return list(plan.targets)
            if is_full or self._lacks_room(making):
                break
        raise self._no_place(making)

    def _lacks_room(self, making: _Making) -> bool:
        """Whether it would have found its places if its nodes had endless room."""
        endless = {
            node_id: replace(stock, room_bytes=stock.room_bytes + (1 << 60), takes_writes=True)
            for node_id, stock in making.view.nodes.items()
        }
        eligible = making.view.eligible(making.pool) - making.refused
        return plan_make(making.blob, making.form, making.blob, (), endless, eligible, made=making.made) is not None

    def _no_place(self, making: _Making) -> SdrsError:
        save, pool = making.save, making.pool
        if isinstance(making.refusal, FullError) or self._lacks_room(making):
            why = f" ({making.refusal.message})" if making.refusal else ""
            return FullError(
                f'pool "{pool.name}" has no room to bring {save.title} back from backup {making.backup.target.name}: a '
                f"blob of it has {in_mib(making.blob.size_bytes)}{why}. Delete checkpoints (sdrs ckpt delete), add a "
                "node or a disk; see: sdrs node list",
                pool=pool.name,
            )
        return making.refusal or UnavailableError(
            f'pool "{pool.name}" has too few nodes that take data to bring {save.title} back: see "sdrs node list"',
            pool=pool.name,
        )

    async def _fetch_aside(self, making: _Making) -> bool:
        """The whole blob at one node, of which the fragments are then cut. False if no node has room for it: each is
        then cut straight from the bucket.
        """
        making.whole = whole = making.whole or replace(making.blob, id=BlobId(random_id()), code=MIRROR)
        eligible = making.view.eligible(making.pool) - making.refused - making.not_whole
        node_id = Targets(whole, _WHOLE, making.view.nodes, eligible, (), set()).choose(0)
        if node_id is None:
            return False
        await self._pull(making, whole, 0, node_id, making.aside)
        return True

    async def _pull(self, making: _Making, blob: Blob, index: int, target: NodeId, made: list[Holder]) -> None:
        """One more in ``made``; or one more that cannot take it."""
        making.claims.enter_context(self._claims.take(target, [(blob.id, index)]))
        sources: tuple[Holder, ...] = ()
        pull = Pull(making.save, making.shard, blob, index, blob, making.pool.name)
        if making.aside and making.whole:
            pull, sources = replace(pull, source=making.whole), tuple(making.aside)
        elif making.made and blob.code == MIRROR:
            sources = tuple(making.made)
        else:
            pull = replace(pull, backup=making.backup)
        lane = self._lanes.setdefault(target, asyncio.Semaphore(_ORDERS_PER_NODE))
        try:
            async with lane:
                with self._fetching(pull) as limit:
                    made.append(await self._copier.pull(target, pull, sources, Leash(limit)))
        except SdrsError as error:
            if not self._copier.is_refusal(error, target):
                raise
            if blob is making.whole:
                making.not_whole.add(target)
                return
            making.refused.add(target)
            making.refusal = error

    @contextmanager
    def _fetching(self, pull: Pull) -> Iterator[Callable[[], int]]:
        """What fetches from one target shares what that may take, in bytes a second; 0: as fast as it goes."""
        if pull.backup is None:
            yield lambda: 0
            return
        target = pull.backup.target
        self._fetches[target.name] += 1
        try:
            yield lambda: target.max_bytes_per_second // max(1, self._fetches[target.name])
        finally:
            self._fetches[target.name] -= 1
