"""Which groups this node is a member of, as the controller told it last, and who may therefore ask what of it (I3).

The controller pushes the complete list, and beside it where the members are, and how their pools store. Epochs are
persisted before the list is acted on, and never go down: a restart does not make the node forget who was deposed. Until
the first list is there the node takes part in nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sdrs_core.cluster import Group, Node, Pool
from sdrs_core.errors import StaleEpochError, UnavailableError
from sdrs_core.ids import DiskId, GroupId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_storaged.logs import get_log
from sdrs_storaged.node.identity import Identity

log = get_log("groups")

# A client or a primary may have heard of an epoch first: the push to this node is on its way.
PUSH_SECONDS = 3.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Map:
    """What is known at one moment. ``floors``: the highest epoch known of each group, also of those that were left."""

    is_told: bool
    groups: Mapping[GroupId, Group]
    nodes: Mapping[NodeId, Node]
    floors: Mapping[GroupId, int]
    pools: Mapping[PoolName, Pool]
    domains: Mapping[NodeId, str]
    draining_disks: frozenset[DiskId]


class Groups:
    """Adopted and waited for on the event loop; looked at from any thread."""

    def __init__(self, identity: Identity, push_seconds: float = PUSH_SECONDS) -> None:
        self._identity = identity
        self._push_seconds = push_seconds
        self._map = _Map(False, {}, {}, identity.epochs, {}, {}, frozenset())
        self._changed = asyncio.Event()
        self._watchers: dict[object, Callable[[], None]] = {}
        self._watchers_lock = threading.Lock()

    async def adopt(
        self,
        groups: Iterable[Group],
        nodes: Iterable[Node],
        pools: Iterable[Pool] = (),
        draining_disks: Iterable[DiskId] = (),
    ) -> None:
        """Take over the complete list of this node's groups."""
        known = self._map
        adopted = {}
        for group in groups:
            floor = known.floors.get(group.id, 0)
            if group.epoch >= floor:
                adopted[group.id] = group
            else:
                log.warning("older_epoch_ignored", group=group.id, epoch=group.epoch, known=floor)
                if group.id in known.groups:
                    adopted[group.id] = known.groups[group.id]
        # I3: known for good before anything is done or refused because of it.
        await asyncio.to_thread(self._identity.raise_epochs, {group.id: group.epoch for group in adopted.values()})
        told = {node.id: node for node in nodes}
        self._map = _Map(
            True,
            adopted,
            told,
            self._identity.epochs,
            {pool.name: pool for pool in pools},
            {node.id: node.domain for node in told.values()},
            frozenset(draining_disks),
        )
        self._tell(known)

    def _tell(self, before: _Map) -> None:
        for group_id in sorted(before.groups.keys() | self._map.groups.keys()):
            now = self._map.groups.get(group_id)
            if now != before.groups.get(group_id):
                log.info(
                    "group_changed",
                    group=group_id,
                    epoch=now.epoch if now else self.epoch(group_id),
                    primary=now.primary if now else "",
                    members=list(now.members) if now else [],
                )
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        with self._watchers_lock:
            watchers = list(self._watchers.values())
        for watcher in watchers:
            watcher()

    # What is known

    def all(self) -> list[Group]:
        return list(self._map.groups.values())

    def epochs(self) -> Mapping[GroupId, int]:
        """What is persisted and acted on."""
        return self._map.floors

    def epoch(self, group_id: GroupId) -> int:
        return self._map.floors.get(group_id, 0)

    def is_member(self, group_id: GroupId, node_id: NodeId | None = None) -> bool:
        """Whether ``node_id`` (this node, unless given) is in the group as it is now."""
        group = self._map.groups.get(group_id)
        return group is not None and (node_id or self._identity.node_id) in group.members

    def is_current(self, group: Group) -> bool:
        """Whether the group is still at this epoch, as far as is known, and this node in it."""
        now = self._map.groups.get(group.id)
        return now is not None and now.epoch == group.epoch

    def node(self, node_id: NodeId) -> Node:
        node = self._map.nodes.get(node_id)
        if node is None:
            raise UnavailableError(f"the controller has not told where node {node_id} can be reached: try again")
        return node

    def pool_of(self, group: Group) -> Pool:
        """How the group stores; every member a copy, if its pool was not told."""
        return self._map.pools.get(group.pool) or Pool(group.pool, Level.L2, mirrors=len(group.members))

    @property
    def domains(self) -> Mapping[NodeId, str]:
        """Of the members of this node's groups."""
        return self._map.domains

    @property
    def draining_disks(self) -> frozenset[DiskId]:
        """Of this node: those that take nothing new, because an operator drains them."""
        return self._map.draining_disks

    def check(self, group_id: GroupId, epoch: int, *, as_primary: bool) -> Group:
        """The group, if it is at this very epoch and this node is a member of it, or its primary."""
        known = self._map
        group = known.groups.get(group_id)
        floor = known.floors.get(group_id, 0)
        if epoch < floor:
            raise self._stale(group_id, f"group {group_id} is at epoch {floor}, not {epoch}")
        if not known.is_told:
            raise UnavailableError(
                f"node {self._identity.node_id} is not linked yet: its controller has not told it its groups; try again"
            )
        if epoch > floor:
            # Somebody's word, and it binds nobody: whoever made up a high one would close the group for all others.
            raise UnavailableError(
                f"node {self._identity.node_id} has not been told of epoch {epoch} of group {group_id}: try again"
            )
        if group is None or self._identity.node_id not in group.members:
            raise self._stale(group_id, f"node {self._identity.node_id} is no member of group {group_id}")
        if as_primary and group.primary != self._identity.node_id:
            raise self._stale(group_id, f"node {self._identity.node_id} is not the primary of group {group_id}")
        return group

    def _stale(self, group_id: GroupId, what: str) -> StaleEpochError:
        group = self._map.groups.get(group_id)
        return StaleEpochError(
            f"{what}: ask for the map and go on at its primary",
            group=group_id,
            epoch=self.epoch(group_id),
            primary=group.primary if group else "",
        )

    # Waiting for a change

    async def admit(self, group_id: GroupId, epoch: int, *, as_primary: bool) -> Group:
        """As ``check``; an epoch that was not heard of yet is waited for, for a while."""
        await self.await_epoch(group_id, epoch)
        return self.check(group_id, epoch, as_primary=as_primary)

    async def await_epoch(self, group_id: GroupId, epoch: int) -> bool:
        """Wait until this epoch, or a later one, is known here; False if it was not told in time."""
        return await self.wait_until(lambda: self._map.is_told and epoch <= self.epoch(group_id), self._push_seconds)

    async def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Looks at ``condition`` now and after each change; False if it did not come true in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def block_until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """As ``wait_until``, for threads."""
        came_true = threading.Event()

        def look() -> None:
            if condition():
                came_true.set()

        with self.watching(look):
            return came_true.wait(timeout_seconds)

    async def run_while(self, work: Coroutine[Any, Any, T], holds: Callable[[], bool], group_id: GroupId) -> T:
        """The result of ``work``; cancelled, and StaleEpochError, as soon as a change makes ``holds`` untrue."""
        running = asyncio.ensure_future(work)
        try:
            while holds():
                change = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait([running, change], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
                if running.done():
                    return running.result()
            raise self._stale(group_id, f"group {group_id} was re-formed meanwhile")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    @contextmanager
    def watching(self, watcher: Callable[[], None]) -> Iterator[None]:
        """``watcher`` is called now, and after each change; it must not wait for anything."""
        key = object()
        with self._watchers_lock:
            self._watchers[key] = watcher
        try:
            watcher()
            yield
        finally:
            with self._watchers_lock:
                del self._watchers[key]
