"""What operators do by hand: switchover, failover, pause, cordon. Each refuses what is unsafe or undecidable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import replace

from sdrs_core.checkpoints import Save
from sdrs_core.cluster import Group, Pool
from sdrs_core.departures import is_good
from sdrs_core.errors import InvalidArgumentError, RefusedError
from sdrs_core.failover import Liveness, View, decide_failover
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.groups import Groups
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.control.tables import Automatic, Tables
from sdrs_storaged.logs import get_log

log = get_log("moves")

_MAX_REASON_CHARS = 500

# (pool, nodes) -> its readable saves that have a blob without a live holder, which should be on one of these nodes;
# RefusedError if that cannot be told now.
FindLost = Callable[[PoolName, Set[NodeId]], Awaitable[list[Stored[Save]]]]
GiveUp = Callable[[Sequence[Stored[Save]], str], Awaitable[list[Save]]]


class Moves:
    def __init__(
        self,
        records: Records,
        tables: Tables,
        members: Members,
        groups: Groups,
        commits: Commits,
        events: Events,
        *,
        find_lost: FindLost,
        give_up: GiveUp,
        wake: Callable[[], None],
    ) -> None:
        self._records = records
        self._tables = tables
        self._members = members
        self._groups = groups
        self._commits = commits
        self._events = events
        self._find_lost = find_lost
        self._give_up = give_up
        self._wake = wake

    # Switchover: drain, then move

    async def switchover(self, group_id: GroupId, to: str, drain_seconds: float) -> Group:
        group = self._members.group(group_id)
        pool = self._members.pool(group.pool)
        if pool.member_count == 1:
            raise RefusedError(
                f"group {group_id} has one member, whose data would stay behind: an L1 group is not moved. To keep new "
                f"saves away from node {group.primary}: sdrs node cordon {group.primary}"
            )
        target = self._target(group, to)
        if target == group.primary:
            return group
        if group_id in self._groups.moving:
            raise RefusedError(f"group {group_id} is already being moved: wait for that")
        self._groups.moving.add(group_id)
        try:
            await self._drain(group_id, drain_seconds)
            async with self._tables.change():
                group = self._members.group(group_id)
                self._check_target(group, target)
                return await self._groups.move(
                    self._led_by(group, target), "switchover", f"{target} leads, by an operator"
                )
        finally:
            self._groups.moving.discard(group_id)
            self._wake()

    async def _drain(self, group_id: GroupId, seconds: float) -> None:
        """New saves go elsewhere; those under way may end. What is left then goes on at the new primary."""
        try:
            async with asyncio.timeout(seconds):
                await self._commits.drained(group_id)
        except TimeoutError:
            log.warning("switchover_not_drained", group=group_id, saves=self._commits.sending_to(group_id))

    def _target(self, group: Group, to: str) -> NodeId:
        if to:
            target = self._members.node(NodeId(to)).id
        else:
            view = self._members.view()
            # An L1 group has no other member: any node will do.
            others = (*group.home, *group.members) if len(group.home) > 1 else sorted(view.nodes)
            pool = view.pools[group.pool]
            good = [n for n in others if n != group.primary and is_good(view, n) and pool.has_node(n)]
            if not good:
                raise RefusedError(
                    f"no other member of group {group.id} ({', '.join(group.members)}) can take over now: "
                    "start one of them, or name another node with --to"
                )
            target = good[0]
        self._check_target(group, target)
        return target

    def _check_target(self, group: Group, target: NodeId) -> None:
        view = self._members.view()
        facts = view.nodes[target]
        if facts.liveness is not Liveness.UP:
            raise RefusedError(f"node {target} is {facts.liveness}: it cannot take over group {group.id}")
        if not view.pools[group.pool].has_node(target):
            raise RefusedError(
                f'node {target} is not in pool "{group.pool}": it cannot take over group {group.id} '
                f"(sdrs pool expand {group.pool} {target})"
            )
        if facts.draining:
            raise RefusedError(
                f"node {target} is being drained: it cannot take over group {group.id} "
                f"(sdrs node drain {target} --cancel)"
            )
        if facts.cordoned:
            raise RefusedError(
                f"node {target} is cordoned: it cannot take over group {group.id} (sdrs node uncordon {target})"
            )
        if not facts.takes_writes:
            raise RefusedError(f"no disk of node {target} takes writes: it cannot take over group {group.id}")

    def _led_by(self, group: Group, target: NodeId) -> Group:
        self._groups.forgive(target)  # an operator's word counts for more than a peer's
        return _led_by(group, target, self._members.view())

    # Failover: now

    async def failover(self, group_id: GroupId, to: str, *, accept_data_loss: bool) -> tuple[Group, list[Save]]:
        group = self._members.group(group_id)
        pool = self._members.pool(group.pool)
        if pool.member_count == 1:
            self._check_lost(group)
        # Before anything is given up: who has nobody to take over gives up nothing.
        target = self._target(group, to)
        lost: list[Save] = []
        if pool.member_count == 1 or accept_data_loss:
            lost = await self._settle_losses(group, pool, accept_data_loss=accept_data_loss)
        async with self._tables.change():
            group = self._members.group(group_id)
            if target != group.primary:
                self._check_target(group, target)
                given_up = f"; {len(lost)} checkpoints were given up" if lost else ""
                why = f"{target} leads, by an operator and at once{given_up}"
                group = await self._groups.move(self._led_by(group, target), "failover", why)
        self._wake()
        return group, lost

    def _check_lost(self, group: Group) -> None:
        if self._members.view().nodes[group.primary].liveness is not Liveness.DOWN:
            raise RefusedError(
                f"node {group.primary}, the only member of group {group.id}, is not known to be lost: what it holds is "
                f"not given up. To keep new saves away from it: sdrs node cordon {group.primary}"
            )

    async def _settle_losses(self, group: Group, pool: Pool, *, accept_data_loss: bool) -> list[Save]:
        # Not of the whole pool: what lies on nodes of other groups is accepted, or not, with those.
        found = await self._find_lost(pool.name, _nodes_of(group))
        if found and not accept_data_loss:
            named = ", ".join(stored.value.title for stored in found[:5])
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise RefusedError(
                f"{len(found)} checkpoints on nodes of group {group.id} have no live copy left ({named}{more}). They "
                f"come back with their nodes; to give them up: sdrs failover {group.id} --accept-data-loss"
            )
        return await self._give_up(found, f"data loss accepted with the failover of group {group.id}") if found else []

    # Pause, cordon

    async def set_automatic(self, paused_because: str) -> None:
        async with self._tables.change():
            known = self._tables.automatic
            if known.value.paused_because == paused_because:
                return
            kind, text = ("paused", f"automatic failover is paused: {paused_because}")
            if not paused_because:
                kind, text = ("resumed", "automatic failover goes on")
            value = Automatic(paused_because)
            revision = await self._records.commit(
                [known.unchanged()], [put(known.key, value), self._events.entry(kind, text)]
            )
            self._tables.automatic = Stored(known.key, value, revision)
        log.info(kind, why=paused_because)
        self._wake()

    async def set_cordon(self, node_id: NodeId, *, cordoned: bool, because: str = "") -> None:
        """A node that is cordoned already takes another reason, if one is given."""
        if len(because) > _MAX_REASON_CHARS or not because.isprintable():
            raise InvalidArgumentError(f"a reason is one line of up to {_MAX_REASON_CHARS} characters")
        async with self._members.shrinking:
            node = self._members.node(node_id)
            if node.cordoned == cordoned and (not cordoned or because in ("", node.cordoned_because)):
                return
            if cordoned and not node.cordoned:
                self._check_cordon(node_id)
            await self._members.set_cordon(node_id, cordoned=cordoned, because=because)
        kind, what = ("cordoned", "takes no new saves") if cordoned else ("uncordoned", "takes saves again")
        why = f": {because}" if cordoned and because else ""
        await self._events.record(kind, f"node {node_id} {what}, by an operator{why}", node_id=node_id)
        self._wake()

    def _check_cordon(self, node_id: NodeId) -> None:
        view = self._members.view()
        for pool in self._members.pools():
            left = [n for n in view.nodes if n != node_id and pool.has_node(n) and is_good(view, n)]
            if pool.has_node(node_id) and len(left) < pool.member_count:
                raise RefusedError(
                    f'pool "{pool.name}" needs {pool.member_count} nodes that take saves, and without {node_id} it has '
                    f"{len(left)}: start or uncordon another node first"
                )


def _nodes_of(group: Group) -> set[NodeId]:
    """Those in it, and the one after which it is named: so each node has a group with which it can be given up."""
    return {*group.members, *group.home, NodeId(group.id.removeprefix(f"{group.pool}:"))}


def _led_by(group: Group, target: NodeId, view: View) -> Group:
    """``group`` with ``target`` as its primary, also in its home: automatic failover does not move it back.

    Members that are lost are replaced where there are spares, also while that is paused: an operator asked for it.
    """
    pool = view.pools[group.pool]
    staying = _beside(target, group.members, view)[: pool.member_count]
    moved = replace(
        group,
        epoch=group.epoch + 1,
        # In order of seniority: who is new comes last.
        members=tuple(node for node in dict.fromkeys((*group.members, target)) if node in staying),
        primary=target,
        home=_beside(target, (*group.home, *group.members), view)[: pool.member_count],
    )
    others = tuple(known for known in view.groups if known.id != group.id)
    undecided = replace(view, groups=(moved, *others), paused=False, moving=frozenset())
    reforms = decide_failover(undecided, settle_seconds=float("inf"))
    reform = next((reform for reform in reforms if reform.before.id == group.id), None)
    return replace(moved, members=reform.members) if reform else moved


def _beside(target: NodeId, others: Sequence[NodeId], view: View) -> tuple[NodeId, ...]:
    """``target``, and the others in the order in which they should stay with it."""

    def order(node_id: NodeId) -> tuple[bool, bool]:
        facts = view.nodes.get(node_id)
        is_lost = facts is None or facts.liveness is Liveness.DOWN
        return is_lost, facts is not None and facts.domain == view.nodes[target].domain

    return (target, *sorted((node for node in dict.fromkeys(others) if node != target), key=order))
