"""The nodes as repair sees them: who is up, with which disks, how full; and how a blob is to be stored on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Save
from sdrs_core.cluster import DiskState, Node, Pool
from sdrs_core.codes import MIRROR
from sdrs_core.failover import Liveness
from sdrs_core.ids import DiskId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.redundancy import Form, form_of, present_form
from sdrs_core.stocks import Stock
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.held import Held
from sdrs_storaged.control.members import Members

_FULL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Wish:
    """How a blob is to be kept while it has its code, and how its pool wants it; the same, unless that is another
    code.
    """

    form: Form
    wanted: Form


class View:
    """The nodes at one moment, and which of them are whose."""

    def __init__(self, nodes: Mapping[NodeId, Stock]) -> None:
        self.nodes = nodes
        self._eligible: dict[PoolName, frozenset[NodeId]] = {}

    def eligible(self, pool: Pool) -> frozenset[NodeId]:
        """Whoever may hold something of this pool."""
        if pool.name not in self._eligible:
            self._eligible[pool.name] = frozenset(node_id for node_id in self.nodes if pool.has_node(node_id))
        return self._eligible[pool.name]


class Stocks:
    def __init__(
        self,
        members: Members,
        *,
        liveness: Callable[[NodeId], Liveness],
        down_for_seconds: Callable[[NodeId], float | None],
        clock: Clock,
    ) -> None:
        self._members = members
        self._liveness = liveness
        self._down_for_seconds = down_for_seconds
        self._clock = clock
        self._full_until: dict[NodeId, float] = {}
        # Of the disks that take writes, by the powers of two of what they have room for.
        self._room: dict[tuple[NodeId, DiskId], int] = {}
        self.held = Held()

    def had_no_room(self, node_id: NodeId) -> None:
        """Whatever it reports: it is not asked again for a while."""
        self._full_until[node_id] = self._clock.monotonic_seconds() + _FULL_SECONDS

    def note_room(self) -> bool:
        """Whether there is room where there was none, or twice as much, since this was asked last: a node or a disk
        came (back), or something was let go. Then those that had none are asked again.
        """
        before, self._room = (
            self._room,
            {
                (node.id, disk.id): max(0, disk.capacity_bytes - disk.used_bytes).bit_length()
                for node in self._members.nodes()
                for disk in node.disks
                if self._liveness(node.id) is Liveness.UP and disk.state.takes_writes
            },
        )
        grown = {place[0] for place, magnitude in self._room.items() if magnitude > before.get(place, -1)}
        for node_id in grown:
            self._full_until.pop(node_id, None)
        return bool(grown)

    def now(self) -> dict[NodeId, Stock]:
        return {node.id: self._stock(node) for node in self._members.nodes()}

    def view(self) -> View:
        return View(self.now())

    def wish(self, save: Save, blob: Blob, pool: Pool) -> Wish:
        """``pool``: the save's own, or the one that mirrors it."""
        # As the pool asks for now. What was promised at a higher level before is not thinned out (I6).
        promised = 2 if pool.name == save.pool and save.level >= Level.L2 else 1

        def at_least(form: Form) -> Form:
            return replace(form, total=max(form.total, promised)) if form.code == MIRROR else form

        return Wish(at_least(present_form(blob, pool)), at_least(form_of(pool, blob.size_bytes)))

    def _stock(self, node: Node) -> Stock:
        writable = [disk for disk in node.disks if disk.state.takes_writes]
        capacity_bytes = sum(disk.capacity_bytes for disk in writable)
        return Stock(
            id=node.id,
            domain=node.domain,
            liveness=self._liveness(node.id),
            disks=frozenset(disk.id for disk in node.disks),
            failed_disks=frozenset(disk.id for disk in node.disks if disk.state is DiskState.FAILED),
            draining_disks=frozenset(self._members.draining_disks(node.id)),
            retired_disks=self._members.retired_disks(node.id),
            takes_writes=node.takes_writes and self._full_until.get(node.id, 0.0) <= self._clock.monotonic_seconds(),
            cordoned=node.cordoned,
            draining=node.draining,
            flapping=node.flapping,
            # A fragment lies on one disk.
            room_bytes=max((disk.capacity_bytes - disk.used_bytes for disk in writable), default=0),
            used_fraction=sum(disk.used_bytes for disk in writable) / max(1, capacity_bytes),
            held_bytes=self.held.on_node(node.id).size_bytes,
            capacity_bytes=capacity_bytes,
            down_for_seconds=self._down_for_seconds(node.id) or 0.0,
        )
