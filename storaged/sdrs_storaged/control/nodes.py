"""Nodes that leave: drained, then removed (P7). Each step may be interrupted, and is found again as it was left.

A drain is a word on the node's record. Homes are planned without it, groups move off it, repair moves what it holds;
all of that goes on by itself. A removal then raises the layouts, looks through the catalog once more, and only then
lets the record go: no receipt and no repair can name the node in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf

from sdrs_core.checkpoints import Save
from sdrs_core.departures import hand_over, is_removable, shortage_without
from sdrs_core.errors import RefusedError
from sdrs_core.failover import decide_failover
from sdrs_core.ids import GroupId, NodeId
from sdrs_storaged.control import keys
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.fresh_look import Found, FreshLook
from sdrs_storaged.control.groups import Groups
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Delete, Op
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.control.tables import NodeRecord, PoolRecord, Tables
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("nodes")

GiveUp = Callable[[Sequence[Stored[Save]], str], Awaitable[list[Save]]]


class Nodes:
    def __init__(
        self,
        records: Records,
        tables: Tables,
        members: Members,
        groups: Groups,
        events: Events,
        look: FreshLook,
        *,
        give_up: GiveUp,
        wake: Callable[[], None],
    ) -> None:
        self._records = records
        self._tables = tables
        self._members = members
        self._groups = groups
        self._events = events
        self._look = look
        self._give_up = give_up
        self._wake = wake
        # Removals that the store did not answer: whoever repeats one of them may find the node gone.
        self._unanswered: dict[NodeId, NodeRecord] = {}

    # Draining

    async def drain(self, node_id: NodeId) -> None:
        """Repeating it is safe, and does what an interrupted one left undone."""
        async with self._members.shrinking:
            self._check_shortage(node_id)
            await self._mark(node_id, draining=True)
            await self._move_off(node_id)
        self._wake()

    async def cancel_drain(self, node_id: NodeId) -> None:
        async with self._members.shrinking:
            await self._mark(node_id, draining=False)
        self._wake()

    def _check_shortage(self, node_id: NodeId) -> None:
        self._members.record(node_id)
        shortage = shortage_without(self._members.view(), {node_id})
        if shortage:
            raise RefusedError(shortage, node=node_id)

    async def _mark(self, node_id: NodeId, *, draining: bool) -> None:
        """The word on its record, and the homes of all groups by it."""
        async with self._tables.change():
            record = self._members.record(node_id)
            self._members.plan_again()  # whatever comes of it: the next node that registers sees to it
            if record.node.draining != draining:
                kind, what = ("draining", "what it holds moves to others") if draining else ("drain_ended", "it stays")
                event = self._events.entry(kind, f"node {node_id}: {what}, by an operator", node_id=node_id)
                extra: list[Op] = [event] if draining else [event, Delete(keys.removing(node_id))]
                await self._members.store_node(replace(record, node=replace(record.node, draining=draining)), extra)
                log.info(kind, node=node_id)
            reach("drain.marked")
            await self._groups.plan(back_home=None if draining else node_id)
        self._members.raise_map()

    async def _move_off(self, node_id: NodeId) -> None:
        """Groups leave it now, also while failover is paused: an operator asked for it. Those that cannot yet follow by
        themselves.
        """
        view = replace(self._members.view(), paused=False)
        reforms = [
            reform
            for reform in decide_failover(view, settle_seconds=inf)
            if node_id in reform.before.members and node_id not in reform.members
        ]
        if reforms:
            await self._groups.reform(reforms, lambda _: 0.0)

    # Removing

    async def remove(self, node_id: NodeId, *, accept_data_loss: bool) -> list[Save]:
        """The checkpoints that were given up. A refusal leaves the node as it was, or drained."""
        async with self._members.shrinking:
            await self._members.settle_doubt()
            unanswered = self._unanswered.pop(node_id, None)
            if unanswered and node_id not in self._tables.nodes:
                self._members.forget(unanswered)
                return []
            was_draining = self._members.record(node_id).node.draining
            # Before anything is changed: most refusals come from here.
            self._check(node_id, await self._look.without(node_id), accept_data_loss=accept_data_loss)
            self._check_shortage(node_id)
            self._check_pools(node_id)
            await self._mark(node_id, draining=True)
            await self._move_off(node_id)
            await self._groups.reform(hand_over(self._members.view(), node_id), lambda _: 0.0)
            try:
                self._check_groups(node_id)
            except RefusedError:
                if not was_draining:
                    await self._mark(node_id, draining=False)
                raise
            try:
                lost = await self._remove(node_id, accept_data_loss=accept_data_loss)
            except BaseException:
                # It goes on as a node that is drained, with groups of its own that others lead.
                self._members.plan_again()
                raise
        self._wake()
        return lost

    async def _remove(self, node_id: NodeId, *, accept_data_loss: bool) -> list[Save]:
        await self._leave(node_id)
        reach("remove.left")
        found = await self._look.without(node_id)
        try:
            self._check(node_id, found, accept_data_loss=accept_data_loss)
            lost = await self._settle(node_id, found)
            # The record goes only after nothing names it.
            again = await self._look.without(node_id)
            self._check(node_id, again, accept_data_loss=accept_data_loss)
            if again.held_blobs:
                raise RefusedError(f"something came (back) onto node {node_id} meanwhile: try again", node=node_id)
        except RefusedError:
            await self._stay(node_id)
            raise
        reach("remove.looked")
        await self._forget(node_id, lost)
        return lost

    def _check(self, node_id: NodeId, found: Found, *, accept_data_loss: bool) -> None:
        answer = is_removable(node_id, self._members.view(), found.facts(), accept_data_loss=accept_data_loss)
        if not answer.is_safe:
            raise RefusedError(answer.why, node=node_id)

    def _check_pools(self, node_id: NodeId) -> None:
        alone = sorted(pool.name for pool in self._members.pools() if pool.node_ids == (node_id,))
        if alone:
            raise RefusedError(
                f'pool "{alone[0]}" has no other node: delete it, or "sdrs pool expand {alone[0]} NODE" first'
            )

    def _check_groups(self, node_id: NodeId) -> None:
        """A group that names a node which is not there could not work."""
        stuck = [g.id for g in self._members.groups(node_id=node_id) if g.id != f"{g.pool}:{node_id}"]
        if stuck:
            raise RefusedError(
                f"group {stuck[0]} has no other node to take the place of {node_id}: add or start one first",
                node=node_id,
            )

    async def _leave(self, node_id: NodeId) -> None:
        """P7: its groups end and all layouts rise, so no receipt that names it counts any more; and from here on
        nothing that is made on it goes on record.
        """
        async with self._tables.change():
            await self._leave_groups(node_id)
            await self._records.commit(
                [self._tables.nodes[node_id].unchanged()], [put(keys.removing(node_id), "by an operator")]
            )
        self._members.raise_map()

    async def _leave_groups(self, node_id: NodeId) -> None:
        for name, stored in list(self._tables.pools.items()):
            pool = stored.value.pool
            if node_id in pool.node_ids:
                left = tuple(other for other in pool.node_ids if other != node_id)
                record = PoolRecord(replace(pool, node_ids=left), stored.value.request_id)
                revision = await self._groups.leave(name, [node_id], [put(stored.key, record)])
                self._tables.pools[name] = Stored(stored.key, record, revision)
            else:
                await self._groups.leave(name, [node_id])

    async def _settle(self, node_id: NodeId, found: Found) -> list[Save]:
        """What only it has is given up, and all else on record there is taken off it: others have it."""
        readable = [stored for stored in found.only_here if stored.value.state.is_readable]
        lost: list[Save] = []
        if readable:
            lost = await self._give_up(readable, f"data loss accepted with the removal of node {node_id}")
        if found.held_blobs:
            await self._look.forget(node_id)
        return lost

    async def _stay(self, node_id: NodeId) -> None:
        async with self._tables.change():
            await self._records.commit([], [Delete(keys.removing(node_id))])
            await self._groups.plan()
        self._members.raise_map()

    async def _forget(self, node_id: NodeId, lost: Sequence[Save]) -> None:
        async with self._tables.change():
            own = [GroupId(f"{name}:{node_id}") for name in self._tables.pools]
            if any(group_id in self._tables.groups for group_id in own):
                await self._leave_groups(node_id)  # it registered meanwhile, and got its groups again
            self._check_groups(node_id)
            known = self._tables.nodes[node_id]
            given_up = f", {len(lost)} checkpoints were given up" if lost else ""
            text = f"node {node_id} is removed, by an operator{given_up}"
            event = self._events.entry("node_removed", text, node_id=node_id)
            writes: list[Op] = [Delete(known.key), Delete(keys.removing(node_id)), event]
            self._unanswered[node_id] = known.value
            await self._records.commit([known.unchanged()], writes)
            del self._unanswered[node_id]
            self._members.forget(known.value)
        log.info("node_removed", node=node_id, lost=len(lost))
