"""Where a cluster keeps its data, for operators: nodes and disks that leave, and repair.

What is unsafe, or what nobody can tell now, is a ``RefusedError`` that says why.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sdrs.process import Process
from sdrs.views import RepairProgress, repair_progress_from
from sdrs_core.checkpoints import Save as Checkpoint
from sdrs_core.cluster import Disk, Group, Node
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import NodeId, random_id
from sdrs_proto.convert import disk_from, group_from, node_from, save_from
from sdrs_proto.v1 import control_pb2 as messages

# The controller reads its whole catalog for the answer, more than once for a removal.
_LOOK_MS = 120_000
_MAX_RATE = 2**63


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """``held_count`` blobs have a fragment on record there, ``held_bytes`` in all, as the last survey found."""

    node: Node
    groups: tuple[Group, ...]
    held_count: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class NodeDisk:
    """``is_absent``: it is on record, but its node does not report it."""

    node_id: NodeId
    disk: Disk
    held_count: int
    held_bytes: int
    is_absent: bool


@dataclass(frozen=True, slots=True)
class DiskReplaced:
    """``blob_count`` blobs lost a fragment and get another one; ``lost`` is what was given up."""

    blob_count: int
    lost: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class RepairStatus:
    """``bytes_per_second`` of 0 is no limit. ``failures`` say in sentences what could not be repaired of late."""

    progress: RepairProgress
    bytes_per_second: int
    concurrency: int
    degraded_blob_count: int
    unavailable_count: int
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepairSettings:
    bytes_per_second: int
    concurrency: int


class Upkeep(ABC):
    """The part of ``Cluster`` that is about where data is."""

    @abstractmethod
    def process(self) -> Process:
        """What this process keeps for the cluster."""

    # Nodes

    def node_status(self, node_id: str) -> NodeStatus:
        """A node, the groups that it is a member of, and how much it holds."""
        found = self.process().control.call("get_node", messages.GetNodeRequest(node_id=node_id))
        groups = tuple(group_from(group) for group in found.groups)
        return NodeStatus(node_from(found.node), groups, found.held_count, found.held_bytes)

    def drain_node(self, node_id: str, cancel: bool = False) -> Node:
        """What the node holds moves to others, so that it can be removed; it goes on by itself, also after a restart.

        Groups leave it now. It is read from meanwhile. ``node_status`` tells how far it is, and ``safe_to_destroy``
        when it is done.
        """
        request = messages.DrainNodeRequest(request_id=random_id(), node_id=node_id, cancel=cancel)
        return node_from(self.process().control.call("drain_node", request).node)

    def remove_node(self, node_id: str, accept_data_loss: bool = False) -> tuple[Checkpoint, ...]:
        """Take a node off the cluster, once nothing is on it; what was given up with it.

        One that is down may go as soon as all that it had is made anew. ``accept_data_loss`` gives up, for good, the
        checkpoints that only it has.
        """
        request = messages.RemoveNodeRequest(request_id=random_id(), node_id=node_id, accept_data_loss=accept_data_loss)
        response = self.process().control.call("remove_node", request, wait_ms=_LOOK_MS)
        return tuple(save_from(save) for save in response.lost)

    def ok_to_stop(self, node_id: str) -> str:
        """Why the node may be stopped for a while: every checkpoint stays readable, and every pool takes saves."""
        return self._ask(node_id, messages.NODE_QUESTION_OK_TO_STOP)

    def safe_to_destroy(self, node_id: str) -> str:
        """Why the node may be lost for good: all that it holds has full redundancy without it."""
        return self._ask(node_id, messages.NODE_QUESTION_SAFE_TO_DESTROY)

    def _ask(self, node_id: str, question: messages.NodeQuestion) -> str:
        request = messages.CheckNodeRequest(node_id=node_id, question=question)
        return str(self.process().control.call("check_node", request, wait_ms=_LOOK_MS).why)

    # Disks

    def disks(self, node: str | None = None) -> list[NodeDisk]:
        """All disks, or those of one node; also those that are on record and not there."""
        response = self.process().control.call("list_disks", messages.ListDisksRequest(node_id=node or ""))
        return [_disk_from(disk) for disk in response.disks]

    def drain_disk(self, disk_id: str, cancel: bool = False) -> NodeDisk:
        """What the disk holds moves elsewhere, and nothing new comes to it. The beginning of its id is enough."""
        request = messages.DrainDiskRequest(request_id=random_id(), disk_id=disk_id, cancel=cancel)
        return _disk_from(self.process().control.call("drain_disk", request).disk)

    def replace_disk(self, disk_id: str, accept_data_loss: bool = False) -> DiskReplaced:
        """The disk will not come back: what it held is made anew.

        ``accept_data_loss`` gives up, for good, the checkpoints that cannot be brought back without it.
        """
        request = messages.ReplaceDiskRequest(
            request_id=random_id(), disk_id=disk_id, accept_data_loss=accept_data_loss
        )
        response = self.process().control.call("replace_disk", request, wait_ms=_LOOK_MS)
        return DiskReplaced(int(response.blob_count), tuple(save_from(save) for save in response.lost))

    # Repair

    def repair(self) -> RepairStatus:
        found = self.process().control.call("get_repair", messages.GetRepairRequest())
        return RepairStatus(
            progress=repair_progress_from(found.progress),
            bytes_per_second=found.settings.bytes_per_second,
            concurrency=found.settings.concurrency,
            degraded_blob_count=found.degraded_blob_count,
            unavailable_count=found.unavailable_count,
            failures=tuple(found.failures),
        )

    def set_repair(self, bytes_per_second: int | None = None, concurrency: int | None = None) -> RepairSettings:
        """How fast repair may be, 0 for no limit, and how many fragments it makes at once; None leaves it as it is."""
        request = messages.SetRepairRequest(request_id=random_id())
        if bytes_per_second is not None:
            if not 0 <= bytes_per_second < _MAX_RATE:
                raise InvalidArgumentError(f"bytes_per_second is {bytes_per_second!r}: give a whole number from 0 on")
            request.bytes_per_second = bytes_per_second
        if concurrency is not None:
            if concurrency < 1:
                raise InvalidArgumentError(f"concurrency is {concurrency!r}: give a whole number from 1 on")
            request.concurrency = concurrency
        changed = self.process().control.call("set_repair", request).settings
        return RepairSettings(changed.bytes_per_second, changed.concurrency)


def _disk_from(message: messages.NodeDisk) -> NodeDisk:
    return NodeDisk(
        NodeId(message.node_id), disk_from(message.disk), message.held_count, message.held_bytes, message.absent
    )
