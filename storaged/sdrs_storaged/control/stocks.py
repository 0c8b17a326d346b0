"""The nodes as repair sees them: who is up, with which disks, how full."""

from __future__ import annotations

from collections.abc import Callable

from sdrs_core.checkpoints import Save
from sdrs_core.cluster import DiskState, Node
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.repair import Stock
from sdrs_storaged.control.members import Members


class Stocks:
    def __init__(
        self,
        members: Members,
        *,
        liveness: Callable[[NodeId], Liveness],
        down_for_seconds: Callable[[NodeId], float | None],
    ) -> None:
        self._members = members
        self._liveness = liveness
        self._down_for_seconds = down_for_seconds

    def now(self) -> dict[NodeId, Stock]:
        return {node.id: self._stock(node) for node in self._members.nodes()}

    def of_pool(self, pool: PoolName) -> frozenset[NodeId]:
        """Whoever may hold something of this pool."""
        return frozenset(
            node_id for group in self._members.groups(pool=pool) for node_id in (*group.members, *group.home)
        )

    def wanted_copies(self, save: Save) -> int:
        """As its pool asks for now. What was promised at a higher level before is not thinned out (I6)."""
        promised = 2 if save.level >= Level.L2 else 1
        return max(self._members.pool(save.pool).copies, promised)

    def _stock(self, node: Node) -> Stock:
        writable = [disk for disk in node.disks if disk.state.takes_writes]
        capacity_bytes = sum(disk.capacity_bytes for disk in writable)
        return Stock(
            id=node.id,
            domain=node.domain,
            liveness=self._liveness(node.id),
            disks=frozenset(disk.id for disk in node.disks),
            failed_disks=frozenset(disk.id for disk in node.disks if disk.state is DiskState.FAILED),
            takes_writes=node.takes_writes,
            cordoned=node.cordoned,
            flapping=node.flapping,
            # A fragment lies on one disk.
            room_bytes=max((disk.capacity_bytes - disk.used_bytes for disk in writable), default=0),
            used_fraction=sum(disk.used_bytes for disk in writable) / max(1, capacity_bytes),
            down_for_seconds=self._down_for_seconds(node.id) or 0.0,
        )
