"""Clusters with several controllers on a real etcd, each daemon a process of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

import sdrs
from sdrs import errors
from sdrs_proto.services import CONTROL, Stub
from sdrs_proto.status import from_rpc_error
from sdrs_proto.v1 import control_pb2
from tests.support.cluster import STAGING_BYTES, DaemonProcess, free_port, staging_dir
from tests.support.waiting import wait_for


@dataclass
class Controller:
    daemon: DaemonProcess
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self) -> control_pb2.GetClusterResponse | errors.SdrsError:
        """What this very controller says of the cluster, or why it says nothing."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                answer: control_pb2.GetClusterResponse = Stub(channel, CONTROL).get_cluster(
                    control_pb2.GetClusterRequest(), timeout=5
                )
                return answer
            except grpc.RpcError as error:
                return from_rpc_error(error, self.address)

    @property
    def is_active(self) -> bool:
        return isinstance(self.ask(), control_pb2.GetClusterResponse)


@dataclass
class ReplicatedControl:
    """Controllers of one cluster, and its nodes."""

    controllers: list[Controller]
    nodes: list[DaemonProcess]

    @property
    def url(self) -> str:
        return "sdrs://" + ",".join(controller.address for controller in self.controllers)

    def connect(self, **options: Any) -> sdrs.Cluster:
        return sdrs.connect(self.url, **options)

    def active(self) -> Controller:
        def find() -> Controller | None:
            return next((found for found in self.controllers if self._runs(found) and found.is_active), None)

        found = wait_for(find, "a controller to be active", 30)
        assert found is not None
        return found

    def roles(self) -> tuple[Controller, Controller]:
        """The active one of two, and the other."""
        active = self.active()
        return active, next(controller for controller in self.controllers if controller is not active)

    def _runs(self, controller: Controller) -> bool:
        process = controller.daemon.process
        return process is not None and process.poll() is None

    def wait_until_up(self) -> None:
        with self.connect() as cluster:
            wait_for(
                lambda: [node.state for node in cluster.nodes()] == ["up"] * len(self.nodes), "all nodes to be up", 30
            )

    def daemons(self) -> list[DaemonProcess]:
        return [*self.nodes, *(controller.daemon for controller in self.controllers)]


def _section(folder: Path, name: str, controllers: list[str]) -> dict[str, Any]:
    staging = {"staging_dir": str(staging_dir(folder, name)), "staging_bytes": STAGING_BYTES}
    return {"id": name, "domain": name, "controllers": controllers, **staging}


def _settings(folder: Path, name: str, role: str, section: dict[str, Any]) -> list[str]:
    common = {"roles": [role], "data_dir": str(folder / name)}
    return [
        *(f"{key}={json.dumps(value)}" for key, value in common.items()),
        *(f"{role}.{key}={json.dumps(value)}" for key, value in section.items()),
    ]


@contextmanager
def running_controllers(
    folder: Path,
    etcd_endpoints: Sequence[str],
    *,
    controller_count: int = 2,
    node_count: int = 1,
    controller: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    **etcd: Any,
) -> Iterator[ReplicatedControl]:
    """``controller`` and ``node`` are settings of those sections, ``etcd`` of the section controller.etcd. Each daemon
    reads a file of fault points of its own.
    """
    controllers: list[Controller] = []
    for number in range(1, controller_count + 1):
        port, name = free_port(), f"controller-{number}"
        section = {
            "listen": f"127.0.0.1:{port}",
            "store": "etcd",
            "etcd.endpoints": list(etcd_endpoints),
            **{f"etcd.{key}": value for key, value in etcd.items()},
            **(controller or {}),
        }
        controllers.append(
            Controller(DaemonProcess(name, folder, _settings(folder, name, "controller", section)), port)
        )
    addresses = [controller.address for controller in controllers]
    nodes = [
        DaemonProcess(
            name,
            folder,
            _settings(folder, name, "node", {**_section(folder, name, addresses), **(node or {})}),
        )
        for name in (f"node-{number}" for number in range(1, node_count + 1))
    ]
    cluster = ReplicatedControl(controllers, nodes)
    for daemon in cluster.daemons():
        daemon.environment = {"SDRS_FAULT_POINTS": str(folder / f"{daemon.name}.points")}
    try:
        for daemon in cluster.daemons():
            daemon.start(wait=False)
        for daemon in cluster.daemons():
            daemon.wait_until_ready()
        cluster.wait_until_up()
        yield cluster
    finally:
        for daemon in cluster.daemons():
            if daemon.process and daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGCONT)
                daemon.kill()
