"""The part of the service ``Control`` that is about where data is: nodes and disks that leave, and repair."""

from __future__ import annotations

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import NodeId
from sdrs_proto import convert
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.disks import NodeDisk
from sdrs_storaged.control.node_questions import Question
from sdrs_storaged.control.throttle import RepairSettings

_QUESTIONS = {
    pb.NODE_QUESTION_OK_TO_STOP: Question.OK_TO_STOP,
    pb.NODE_QUESTION_SAFE_TO_DESTROY: Question.SAFE_TO_DESTROY,
}


class UpkeepService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._members = controller.members

    # Nodes

    async def get_node(self, request: pb.GetNodeRequest) -> pb.GetNodeResponse:
        node = self._members.node(NodeId(request.node_id))
        groups = self._members.with_problems(self._members.groups(node_id=node.id))
        held = self._controller.repairer.held_by(node.id)
        return pb.GetNodeResponse(
            node=convert.node_to(node),
            groups=[convert.group_to(group) for group in groups],
            held_count=held.count,
            held_bytes=held.size_bytes,
        )

    async def drain_node(self, request: pb.DrainNodeRequest) -> pb.DrainNodeResponse:
        node_id, nodes = NodeId(request.node_id), self._controller.nodes
        await (nodes.cancel_drain(node_id) if request.cancel else nodes.drain(node_id))
        return pb.DrainNodeResponse(node=convert.node_to(self._members.node(node_id)))

    async def remove_node(self, request: pb.RemoveNodeRequest) -> pb.RemoveNodeResponse:
        lost = await self._controller.nodes.remove(NodeId(request.node_id), accept_data_loss=request.accept_data_loss)
        return pb.RemoveNodeResponse(lost=[convert.save_to(save) for save in lost])

    async def check_node(self, request: pb.CheckNodeRequest) -> pb.CheckNodeResponse:
        if request.question not in _QUESTIONS:
            raise InvalidArgumentError("ask whether a node is ok to stop or safe to destroy: say which")
        question = _QUESTIONS[request.question]
        return pb.CheckNodeResponse(why=await self._controller.node_questions.ask(NodeId(request.node_id), question))

    # Disks

    async def list_disks(self, request: pb.ListDisksRequest) -> pb.ListDisksResponse:
        return pb.ListDisksResponse(disks=[_disk(disk) for disk in self._controller.disks.all(request.node_id)])

    async def drain_disk(self, request: pb.DrainDiskRequest) -> pb.DrainDiskResponse:
        disks = self._controller.disks
        found = await (disks.cancel_drain(request.disk_id) if request.cancel else disks.drain(request.disk_id))
        return pb.DrainDiskResponse(disk=_disk(found))

    async def replace_disk(self, request: pb.ReplaceDiskRequest) -> pb.ReplaceDiskResponse:
        done = await self._controller.disks.give_up(request.disk_id, accept_data_loss=request.accept_data_loss)
        return pb.ReplaceDiskResponse(
            blob_count=done.fragment_count, lost=[convert.save_to(save) for save in done.lost]
        )

    # Repair

    async def get_repair(self, request: pb.GetRepairRequest) -> pb.GetRepairResponse:
        repairer = self._controller.repairer
        return pb.GetRepairResponse(
            progress=self._repair_progress(),
            settings=_settings(repairer.settings()),
            degraded_blob_count=repairer.totals.degraded_blobs,
            unavailable_count=repairer.totals.unavailable_count,
            failures=repairer.progress().failures,
        )

    async def set_repair(self, request: pb.SetRepairRequest) -> pb.SetRepairResponse:
        changed = await self._controller.repairer.change_settings(
            bytes_per_second=request.bytes_per_second if request.HasField("bytes_per_second") else None,
            concurrency=request.concurrency if request.HasField("concurrency") else None,
        )
        rate = f"{changed.bytes_per_second} bytes a second" if changed.bytes_per_second else "no limit"
        await self._controller.events.record("repair_set", f"{rate}, {changed.concurrency} at once, by an operator")
        return pb.SetRepairResponse(settings=_settings(changed))

    def _repair_progress(self) -> pb.RepairProgress:
        progress = self._controller.repairer.progress()
        return pb.RepairProgress(
            waiting_blobs=progress.waiting_blobs,
            waiting_bytes=progress.waiting_bytes,
            done_blobs=progress.done_blobs,
            done_bytes=progress.done_bytes,
            failed_blobs=progress.failed_blobs,
            awaited_blobs=progress.awaited_blobs,
            bytes_per_second=progress.bytes_per_second,
            remaining_seconds=progress.remaining_seconds,
            moving_blobs=progress.moving_blobs,
            mirroring_blobs=progress.mirroring_blobs,
            wave_done_bytes=progress.wave_done_bytes,
        )


def _settings(settings: RepairSettings) -> pb.RepairSettings:
    return pb.RepairSettings(bytes_per_second=settings.bytes_per_second, concurrency=settings.concurrency)


def _disk(found: NodeDisk) -> pb.NodeDisk:
    return pb.NodeDisk(
        node_id=found.node_id,
        disk=convert.disk_to(found.disk),
        held_count=found.held_count,
        held_bytes=found.held_bytes,
        absent=found.is_absent,
    )
