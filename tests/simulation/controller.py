"""A controller: the production control plane, leadership and services, wired as ``app.py`` wires them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from sdrs_core.cluster import Node
from sdrs_core.errors import UnavailableError
from sdrs_proto.services import CONTROL, MEMBERSHIP
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control.archives import Archives
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.leadership import Leadership
from sdrs_storaged.control.meta.store import Term
from sdrs_storaged.rpc.control_service import ControlService
from sdrs_storaged.rpc.membership_service import MembershipService
from sdrs_storaged.rpc.node_client import NodeClient
from sdrs_storaged.rpc.standby import Switchboard
from tests.simulation.loop import Process
from tests.simulation.metastore import RemoteStore
from tests.simulation.network import Network
from tests.simulation.stubs import Channels

_PROBE_SECONDS = 0.5
# Copies of the catalog are files on disks, which is not what is simulated.
_NO_ARCHIVES = SimpleNamespace(exporter=None, importer=None, rebuilder=None)


class ControllerProcess:
    """One life of a controller's process. It remembers nothing: all that it knows is in the store."""

    def __init__(self, network: Network, process: Process, clock: Clock, config: ControllerConfig) -> None:
        self.process = process
        self.streams: list[asyncio.Task[Any]] = []
        self._network = network
        self._clock = clock
        self._config = config
        self._store = RemoteStore(network, process)
        # The one of the term that this process believes in, if any.
        self.controller: Controller | None = None
        # How often repair looked through the catalog.
        self.survey_count = 0
        self._switchboard = Switchboard(lambda: self._leadership.active_address)
        self._fronts = [self._switchboard.front(service) for service in (CONTROL, MEMBERSHIP)]
        network.listen(process.name, self)
        process.run(self._run(), network.defect)

    def find(self, method: str) -> Callable[[Any], Any]:
        for front in self._fronts:
            if hasattr(front, method):
                behavior: Callable[[Any], Any] = getattr(front, method)
                return behavior
        raise UnavailableError(f"{self.process.name} does not serve {method}")

    async def _run(self) -> None:
        self._leadership = Leadership(self._store, f"{self.process.name}:1 1", self._lead)
        await self._leadership.run()

    async def _lead(self, term: Term) -> None:
        nodes = _Nodes(self._network, self.process)
        controller = await Controller.start(self._store, term, self._clock, nodes, self._config)
        services: dict[str, object] = {
            CONTROL.name: ControlService(controller, cast(Archives, _NO_ARCHIVES), lambda: ""),
            MEMBERSHIP.name: MembershipService(controller),
        }
        controller.repairer.pass_once = self._counted(controller.repairer.pass_once)  # type: ignore[method-assign]
        self.controller = controller
        try:
            with self._switchboard.switched_to(services):
                self._leadership.settled.set()
                await controller.run()
        finally:
            self.controller = None

    def _counted(self, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def counted() -> None:
            self.survey_count += 1
            await work()

        return counted


class _Nodes(NodeClient):
    """The production client; only whether a port is closed is asked of the simulated network."""

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__(cast(Any, Channels(network, process)))
        self._network = network
        self._process = process

    async def is_refused(self, node: Node) -> bool:
        return await self._network.is_refused(self._process, node.id, _PROBE_SECONDS)
