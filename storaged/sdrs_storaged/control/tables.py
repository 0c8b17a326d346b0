"""Nodes, pools and groups: held in memory (P3), as the next change of them will compare them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from sdrs_core.cluster import Group, Node, Pool
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import ClusterId, DiskId, GroupId, NodeId, PoolName, random_id
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Compare
from sdrs_storaged.control.records import ConflictError, Records, Stored, put


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    id: ClusterId
    incarnation: int
    # Capabilities of saves are derived from it (P5); it never leaves the controller.
    secret: str


@dataclass(frozen=True, slots=True)
class NodeRecord:
    node: Node
    secret: str  # shared with the node alone; it signs what the node is told to do
    # An operator's word: what these disks hold moves elsewhere; and those that will not come back.
    draining_disks: tuple[DiskId, ...] = ()
    retired_disks: tuple[DiskId, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolRecord:
    pool: Pool
    # Whoever repeats the request that made it (its answer was lost) gets the pool, not an error.
    request_id: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A pool's layout number: it rises with each change of its groups (P7)."""

    number: int

    def raised(self) -> Layout:
        return Layout(self.number + 1)


@dataclass(frozen=True, slots=True)
class Automatic:
    """Whether groups are re-formed by themselves; not empty: an operator paused that, and why."""

    paused_because: str = ""


async def found_cluster(records: Records) -> ClusterRecord:
    """The cluster's own record, made on the first start."""
    known = await records.get(keys.CLUSTER, ClusterRecord)
    if known:
        return known.value
    cluster = ClusterRecord(ClusterId(random_id()), incarnation=1, secret=random_id())
    await records.commit([Compare.absent(keys.CLUSTER)], [put(keys.CLUSTER, cluster)])
    return cluster


class Tables:
    def __init__(self, records: Records) -> None:
        self._records = records
        self.nodes: dict[NodeId, Stored[NodeRecord]] = {}
        self.pools: dict[PoolName, Stored[PoolRecord]] = {}
        self.layouts: dict[PoolName, Stored[Layout]] = {}
        self.groups: dict[GroupId, Stored[Group]] = {}
        self.automatic: Stored[Automatic] = Stored(keys.AUTOMATIC, Automatic(), 0)
        self._changing = asyncio.Lock()
        self._in_doubt = False
        # Told when all was read again: groups may have moved without anybody here having moved them.
        self.on_read_again: Callable[[], None] = lambda: None

    async def read(self) -> None:
        records = self._records
        nodes = {r.value.node.id: r async for r in records.all(keys.NODES, NodeRecord)}
        pools = {r.value.pool.name: r async for r in records.all(keys.POOLS, PoolRecord)}
        groups = {r.value.id: _with_home(r) async for r in records.all(keys.GROUPS, Group)}
        layouts = {r.key.removeprefix(keys.LAYOUTS): r async for r in records.all(keys.LAYOUTS, Layout)}
        automatic = await records.get(keys.AUTOMATIC, Automatic)
        self.nodes, self.pools, self.groups = nodes, pools, groups
        self.layouts = {name: layouts[name] for name in pools}
        self.automatic = automatic or Stored(keys.AUTOMATIC, Automatic(), 0)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """One change at a time, so that what is in memory is what the next one compares."""
        async with self._changing:
            if self._in_doubt:
                await self.read()
                self._in_doubt = False
                self.on_read_again()
            try:
                yield
            except ConflictError as error:
                self._in_doubt = True
                raise UnavailableError("the records of the cluster changed in between: try again") from error
            except (UnavailableError, asyncio.CancelledError):
                # The change may have happened, and what is in memory be the past.
                self._in_doubt = True
                raise

    async def settle_doubt(self) -> None:
        """Read everything again, if the store left a change unanswered."""
        if self._in_doubt:
            async with self.change():
                pass


def _with_home(stored: Stored[Group]) -> Stored[Group]:
    """Groups of earlier versions had one member, which is their home."""
    if stored.value.home:
        return stored
    return replace(stored, value=replace(stored.value, home=stored.value.members))
