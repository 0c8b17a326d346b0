"""A node's side of the service ``Membership``: it finds the controller, registers, beats, and sends receipts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import Disk, Node, Staging
from sdrs_core.errors import FullError, NotFoundError, SdrsError, UnavailableError
from sdrs_core.ids import ClusterId, DiskId, GroupId, random_id
from sdrs_proto import convert
from sdrs_proto.limits import CALL_SECONDS
from sdrs_proto.services import CONTROL, MEMBERSHIP
from sdrs_proto.status import from_rpc_error, from_status
from sdrs_proto.v1 import control_pb2, membership_pb2
from sdrs_storaged.logs import get_log
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.receipts import ReceiptMessage
from sdrs_storaged.node.reports import MemberTrouble
from sdrs_storaged.rpc.channels import Channels, call

log = get_log("link")

# All controllers are tried once within a round. While one of them may be taking over, rounds are short.
_FIRST_ROUND_SECONDS = 0.2
_LATER_ROUND_SECONDS = 2.0
_TAKEOVER_SECONDS = 10.0
# One that answers nothing for so long is frozen or cut off, and another one may lead by now.
_SILENCE_SECONDS = 5.0
_REGISTER_SECONDS = 5.0
_MAX_DETAIL_CHARS = 1000


class ControllerClient:
    def __init__(self, channels: Channels, controllers: Sequence[str], identity: Identity, groups: Groups) -> None:
        self._channels = channels
        self._controllers = list(controllers)
        self._identity = identity
        self._groups = groups
        # Set as soon as the link moves on to another controller.
        self._moved_on = asyncio.Event()

    @property
    def _address(self) -> str:
        return self._controllers[0]

    async def _try_next(self, lost_seconds: float) -> None:
        """Turn to the next controller, after a pause: a little later after ``lost_seconds`` without one."""
        self._controllers.append(self._controllers.pop(0))
        self._moved_on.set()
        self._moved_on = asyncio.Event()
        round_seconds = _FIRST_ROUND_SECONDS if lost_seconds < _TAKEOVER_SECONDS else _LATER_ROUND_SECONDS
        # Cut by chance: thousands of nodes must not come in the same instant.
        await asyncio.sleep(random.uniform(0.5, 1.0) * round_seconds / len(self._controllers))

    async def find_cluster(self) -> ClusterId:
        """The id of the cluster that the controllers serve; waits until one answers."""
        started = time.monotonic()
        while True:
            try:
                stub = self._channels.stub(self._address, CONTROL)
                response = await call(stub.get_cluster, control_pb2.GetClusterRequest(), f"controller {self._address}")
                return ClusterId(response.cluster_id)
            except SdrsError as error:
                log.warning("controller_not_found", controller=self._address, why=error.message)
                await self._try_next(time.monotonic() - started)

    async def run(
        self,
        node: Node,
        disks: Callable[[], Sequence[Disk]],
        linked: asyncio.Event,
        staging: Callable[[], Staging | None] = lambda: None,
    ) -> None:
        """Stay linked for good: register, then beat until the stream breaks, and again."""
        last_linked = time.monotonic()
        while True:
            is_linked = False
            try:
                interval_seconds = await self._register(node)
                log.info("linked", controller=self._address)
                linked.set()
                is_linked = True
                await self._beat(disks, staging, interval_seconds)
            except SdrsError as error:
                log.warning("link_lost", controller=self._address, why=error.message)
            if is_linked:
                last_linked = time.monotonic()
            await self._try_next(time.monotonic() - last_linked)

    async def _register(self, node: Node) -> float:
        seen = self._identity.authority
        request = membership_pb2.RegisterNodeRequest(
            request_id=random_id(),
            cluster_id=self._identity.cluster_id,
            node=convert.node_to(node),
            node_key=self._identity.key,
            incarnation=seen.incarnation,
            term=seen.term,
            revision=seen.revision,
            term_id=seen.term_id,
        )
        stub = self._channels.stub(self._address, MEMBERSHIP)
        response = await call(stub.register_node, request, f"controller {self._address}", _REGISTER_SECONDS)
        await self._obey(response.authority)
        return float(response.heartbeat_interval_ms) / 1000

    async def _beat(
        self, disks: Callable[[], Sequence[Disk]], staging: Callable[[], Staging | None], interval_seconds: float
    ) -> None:
        async def beats() -> AsyncIterator[membership_pb2.HeartbeatRequest]:
            while True:
                found = await asyncio.to_thread(disks)
                epochs = self._groups.epochs()
                yield membership_pb2.HeartbeatRequest(
                    node_id=self._identity.node_id,
                    node_key=self._identity.key,
                    disks=[convert.disk_to(disk) for disk in found],
                    epochs=[membership_pb2.HeldEpoch(group_id=group, epoch=epoch) for group, epoch in epochs.items()],
                    staging=convert.staging_to(staging()),
                )
                # What was newly persisted is told at once: somebody may wait for it.
                await self._groups.wait_until(partial(self._has_risen, epochs), interval_seconds)

        unadopted: membership_pb2.Assignments | None = None
        stream = self._channels.stub(self._address, MEMBERSHIP).heartbeat(beats())
        try:
            while True:
                async with asyncio.timeout(max(_SILENCE_SECONDS, 3 * interval_seconds)):
                    response = await stream.read()
                if response is grpc.aio.EOF:
                    raise UnavailableError(f"controller {self._address} ended the heartbeat stream")
                if response.HasField("assignments"):
                    unadopted = response.assignments
                if await self._obey(response.authority) and unadopted is not None and await self._adopt(unadopted):
                    unadopted = None
        except TimeoutError:
            raise UnavailableError(f"controller {self._address} is silent") from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"controller {self._address}") from None
        finally:
            stream.cancel()

    async def _obey(self, authority: membership_pb2.Authority) -> bool:
        """False: it could not be persisted, hence nothing that it says is acted on (P14)."""
        seen = convert.authority_from(authority)
        if seen != self._identity.authority:
            try:
                await asyncio.to_thread(self._identity.obey, seen)
            except FullError as error:
                # What was not persisted is heard again with the next beat; reads must not end because of it.
                log.warning("authority_not_persisted", why=error.message)
                return False
        return True

    def _has_risen(self, epochs: Mapping[GroupId, int]) -> bool:
        return self._groups.epochs() != epochs

    async def _adopt(self, assignments: membership_pb2.Assignments) -> bool:
        try:
            await self._groups.adopt(
                [convert.group_from(group) for group in assignments.groups],
                [convert.node_from(node) for node in assignments.nodes],
                [convert.pool_from(pool) for pool in assignments.pools],
                [DiskId(disk_id) for disk_id in assignments.draining_disk_ids],
            )
        except FullError as error:
            # I3: not persisted, hence not acted on. They are not sent again: tried with the next beat.
            log.warning("assignments_not_persisted", why=error.message)
            return False
        return True

    async def report_member(self, trouble: MemberTrouble) -> None:
        kind = membership_pb2.MEMBER_TROUBLE_SLOW if trouble.is_slow else membership_pb2.MEMBER_TROUBLE_FAILED
        request = membership_pb2.ReportMemberRequest(
            request_id=random_id(),
            node_id=self._identity.node_id,
            node_key=self._identity.key,
            group_id=trouble.group_id,
            epoch=trouble.epoch,
            member_id=trouble.member_id,
            trouble=kind,
            detail=trouble.detail[:_MAX_DETAIL_CHARS],
        )
        stub = self._channels.stub(self._address, MEMBERSHIP)
        await call(stub.report_member, request, f"controller {self._address}")

    async def ask(self, method: str, request: Message, wait_ms: int = 0) -> Any:
        """As a client would, for what this node carries out in a client's place."""
        return await self._ask_linked(method, request, CONTROL, CALL_SECONDS + wait_ms / 1000)

    async def _ask_linked(
        self,
        method: str,
        request: Message,
        service: ServiceDescriptor = MEMBERSHIP,
        timeout_seconds: float = CALL_SECONDS,
    ) -> Any:
        """Ask the controller that this node is linked to. Once the link has moved on, the answer of one that is frozen
        is not waited for: the request is safe to repeat, and another one leads by then.
        """
        address, moved_on = self._address, asyncio.ensure_future(self._moved_on.wait())
        stub = self._channels.stub(address, service)
        asking = asyncio.ensure_future(call(getattr(stub, method), request, f"controller {address}", timeout_seconds))
        try:
            await asyncio.wait([asking, moved_on], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise UnavailableError(f"controller {address} did not answer before this node turned to another: try again")
        finally:
            moved_on.cancel()
            asking.cancel()
            await asyncio.gather(asking, moved_on, return_exceptions=True)

    async def send_receipts(self, receipts: Sequence[ReceiptMessage]) -> list[SaveState | SdrsError]:
        request = membership_pb2.RegisterReceiptsRequest(
            request_id=random_id(), node_id=self._identity.node_id, node_key=self._identity.key, receipts=receipts
        )
        try:
            response = await self._ask_linked("register_receipts", request)
        except NotFoundError as error:
            # The controller does not know this node yet: the link registers it in a moment.
            raise UnavailableError(error.message) from error
        return [
            from_status(Status.FromString(outcome.status)) if outcome.status else convert.save_state_from(outcome.state)
            for outcome in response.outcomes
        ]
