"""The role ``controller``: it stands by or leads, and its port is served in either case."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sdrs_proto.services import CONTROL, MEMBERSHIP, handler
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control.archives import Archives
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.leadership import Leadership
from sdrs_storaged.control.loops import run_until_one_fails
from sdrs_storaged.control.meta.etcd import EtcdMetaStore
from sdrs_storaged.control.meta.sqlite import SqliteMetaStore
from sdrs_storaged.control.meta.store import MetaStore, Term
from sdrs_storaged.controller_metrics import ControllerMetrics
from sdrs_storaged.logs import get_log
from sdrs_storaged.rpc.control_service import ControlService
from sdrs_storaged.rpc.edge import serve
from sdrs_storaged.rpc.membership_service import MembershipService
from sdrs_storaged.rpc.node_client import NodeClient
from sdrs_storaged.rpc.standby import Switchboard
from sdrs_storaged.rpc.witness_client import WitnessClient
from sdrs_storaged.surroundings import Surroundings, advertised

log = get_log("storaged")


async def start_controller(around: Surroundings) -> None:
    config = around.config.controller
    folder = around.config.data_dir / "controller"
    folder.mkdir(exist_ok=True)
    store = await _open_store(config, folder)
    around.cleanup.push_async_callback(store.close)
    nodes = NodeClient(around.channels)
    switchboard = Switchboard(lambda: leadership.active_address)
    fronts = [handler(service, switchboard.front(service), serve) for service in (CONTROL, MEMBERSHIP)]
    address = await around.serve(config.listen, fronts)

    async def lead(term: Term) -> None:
        controller = await Controller.start(store, term, Clock(), nodes, config)
        archives = Archives(controller, WitnessClient(around.channels), Clock(), folder)
        services: dict[str, object] = {
            CONTROL.name: ControlService(controller, archives, lambda: around.metrics_endpoint),
            MEMBERSHIP.name: MembershipService(controller),
        }
        metrics = ControllerMetrics(controller)
        around.registry.register(metrics)
        try:
            with switchboard.switched_to(services):
                leadership.settled.set()
                await controller.events.record(
                    "controller_active", f"the controller at {advertised(address)} leads, as term {term.number}"
                )
                await run_until_one_fails(controller.run(), archives.run())
        finally:
            around.registry.unregister(metrics)

    leadership = Leadership(store, f"{advertised(address)} {os.getpid()}", lead)
    around.cleanup.push_async_callback(_end, around.tasks.create_task(leadership.run()))
    await leadership.settled.wait()
    around.facts["controller"] = address
    log.info("controller_ready", address=address)


async def _open_store(config: ControllerConfig, folder: Path) -> MetaStore:
    if config.store == "etcd":
        return await EtcdMetaStore.open(config.etcd)
    return await SqliteMetaStore.open(folder / "meta.db")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
