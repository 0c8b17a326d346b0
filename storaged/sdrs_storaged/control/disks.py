"""Disks that leave a node which stays: drained while they work, given up when they are gone for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Save
from sdrs_core.cluster import Disk, DiskState, NodeState
from sdrs_core.departures import is_dispensable, shortage_without
from sdrs_core.errors import InvalidArgumentError, NotFoundError, RefusedError
from sdrs_core.ids import DiskId, NodeId
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.fresh_look import FreshLook
from sdrs_storaged.control.held import Held
from sdrs_storaged.control.losses import Losses
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.tables import NodeRecord, Tables
from sdrs_storaged.logs import get_log

log = get_log("disks")

_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class NodeDisk:
    node_id: NodeId
    disk: Disk
    # As the last survey found, and with what repair did since.
    held_count: int
    held_bytes: int
    # It is on record, but its node does not report it.
    is_absent: bool


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What a disk held that will not come back: fragments that are made anew, and checkpoints that went with it."""

    fragment_count: int
    lost: Sequence[Save] = ()


class Disks:
    def __init__(
        self,
        tables: Tables,
        members: Members,
        events: Events,
        look: FreshLook,
        losses: Losses,
        held: Callable[[], Held],
        *,
        changed: Callable[[], None],
    ) -> None:
        self._tables = tables
        self._members = members
        self._events = events
        self._look = look
        self._losses = losses
        self._held = held
        self._changed = changed

    # Seeing

    def all(self, node_id: str = "") -> list[NodeDisk]:
        node_ids = [NodeId(node_id)] if node_id else self._members.node_ids()
        return [disk for known in node_ids for disk in self._of(known)]

    def _of(self, node_id: NodeId) -> list[NodeDisk]:
        node, held, retired = self._members.node(node_id), self._held(), self._members.retired_disks(node_id)
        found = [self._described(node_id, disk, is_absent=False) for disk in node.disks]
        missing = "its node does not report it" if node.state is NodeState.UP else "its node is down"
        # Also one that is drained and holds nothing: whoever began that has to find it again to end it.
        draining = set(self._members.draining_disks(node_id))
        for disk_id in sorted((held.disks_of(node_id) | draining) - {disk.id for disk in node.disks}):
            detail = "given up: what it held is made anew" if disk_id in retired else missing
            state = DiskState.DRAINING if disk_id in draining else DiskState.FAILED
            disk = Disk(disk_id, "", state, 0, 0, 0, detail)
            found.append(self._described(node_id, disk, is_absent=True))
        return found

    def _described(self, node_id: NodeId, disk: Disk, *, is_absent: bool) -> NodeDisk:
        amount = self._held().on_disk(disk.id)
        return NodeDisk(node_id, disk, amount.count, amount.size_bytes, is_absent)

    def find(self, name: str) -> NodeDisk:
        """A disk by its id, or by the beginning of one if no other begins like that."""
        known = self.all()
        exact = [disk for disk in known if disk.disk.id == name]
        matching = exact or [disk for disk in known if name and disk.disk.id.startswith(name)]
        if len(matching) > 1:
            raise InvalidArgumentError(
                f'several disks begin with "{name}": {", ".join(disk.disk.id for disk in matching[:_MAX_NAMED])}'
            )
        if not matching:
            raise NotFoundError(f'disk "{name}" does not exist; see: sdrs disk list', disk=name)
        return matching[0]

    # Draining

    async def drain(self, name: str) -> NodeDisk:
        """Nothing new comes to the disk, and what it holds moves elsewhere; it is read from meanwhile.

        Repeating it tells how much is left, by a look through the whole catalog.
        """
        async with self._members.shrinking:
            found = self.find(name)
            disk_id, node_id = found.disk.id, found.node_id
            self._check_node_without(node_id, disk_id)

            def edit(record: NodeRecord) -> NodeRecord:
                return replace(record, draining_disks=_with(record.draining_disks, disk_id))

            await self._store(node_id, edit, "disk_draining", f"disk {disk_id}: what it holds moves elsewhere")
        left = await self._look.on_disk(disk_id)
        return replace(self.find(disk_id), held_count=left.count, held_bytes=left.size_bytes)

    async def cancel_drain(self, name: str) -> NodeDisk:
        """It is used again; also one that was given up, and is there after all."""
        async with self._members.shrinking:
            found = self.find(name)
            disk_id = found.disk.id

            def edit(record: NodeRecord) -> NodeRecord:
                return replace(
                    record,
                    draining_disks=_without(record.draining_disks, disk_id),
                    retired_disks=_without(record.retired_disks, disk_id),
                )

            await self._store(found.node_id, edit, "disk_drain_ended", f"disk {disk_id} is used again")
        return found if found.is_absent else self.find(disk_id)

    def _check_node_without(self, node_id: NodeId, disk_id: DiskId) -> None:
        """A node whose last disk is drained takes no part in saves, as one that is drained itself."""
        others = [disk for disk in self._members.node(node_id).disks if disk.id != disk_id]
        if any(disk.state.takes_writes for disk in others):
            return
        shortage = shortage_without(self._members.view(), {node_id})
        if shortage:
            raise RefusedError(f"{node_id} has no other disk that takes writes, and {shortage}", node=node_id)

    # Giving up

    async def give_up(self, name: str, *, accept_data_loss: bool = False) -> GivenUp:
        """The disk will not come back: what it held is made anew elsewhere. What nobody else brings back is given up in
        so many words (I4), or else the disk stays on record, with all that may return with it.
        """
        async with self._members.shrinking:
            found = self.find(name)
            disk_id, node_id = found.disk.id, found.node_id
            node = self._members.node(node_id)
            if node.state is not NodeState.UP:
                raise RefusedError(
                    f"cannot be told, node {node_id} is down and its disk may be fine: start the node, or remove it "
                    f"with its disks (sdrs node remove {node_id})",
                    node=node_id,
                )
            if not found.is_absent and found.disk.state is not DiskState.FAILED:
                raise RefusedError(
                    f"disk {disk_id} of node {node_id} is there and works: move what it holds with "
                    f'"sdrs disk drain {disk_id[:8]}", then take it out',
                    node=node_id,
                )

            def edit(record: NodeRecord) -> NodeRecord:
                return replace(
                    record,
                    draining_disks=_without(record.draining_disks, disk_id),
                    retired_disks=_with(record.retired_disks, disk_id),
                )

            on_disk = await self._look.on_disk(disk_id)
            found_without = await self._look.without_disk(disk_id)
            answer = is_dispensable(disk_id, found_without.facts(), accept_data_loss=accept_data_loss)
            if not answer.is_safe:
                raise RefusedError(answer.why, node=node_id)
            readable = [stored for stored in found_without.only_here if stored.value.state.is_readable]
            self._losses.check_releasable(readable)
            what = f"disk {disk_id} is given up: what it held is made anew"
            await self._store(node_id, edit, "disk_replaced", what)
            # Only now: a failed disk may be readable until it is given up. If it ends here, they are unavailable and on
            # record, and saying it again finds them.
            lost = await self._losses.give_up(readable, f"data loss accepted with the replacement of disk {disk_id}")
        return GivenUp(on_disk.count, lost)

    async def _store(self, node_id: NodeId, edit: Callable[[NodeRecord], NodeRecord], kind: str, what: str) -> None:
        async with self._tables.change():
            record = self._members.record(node_id)
            edited = edit(record)
            if edited != record:
                event = self._events.entry(kind, f"node {node_id}: {what}, by an operator", node_id=node_id)
                await self._members.store_node(edited, [event])
                log.info(kind, node=node_id)
        # The node is told which of its disks take nothing new.
        self._members.raise_map()
        self._changed()


def _with(disks: tuple[DiskId, ...], disk_id: DiskId) -> tuple[DiskId, ...]:
    return tuple(sorted({*disks, disk_id}))


def _without(disks: tuple[DiskId, ...], disk_id: DiskId) -> tuple[DiskId, ...]:
    return tuple(known for known in disks if known != disk_id)
