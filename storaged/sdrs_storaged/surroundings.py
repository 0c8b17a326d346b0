"""What every role of the daemon stands on: configuration, metrics, channels, a gRPC server, the order of stopping."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from sdrs_core.errors import UnavailableError
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_storaged.config import Config, split_address
from sdrs_storaged.rpc.channels import Channels

# A second daemon must not share the port: it would take half of the calls.
_SERVER_OPTIONS = [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]


@dataclass(slots=True)
class Surroundings:
    """``cleanup`` is left in the opposite order of entering; ``announce`` tells ``facts`` to whoever looks."""

    config: Config
    registry: CollectorRegistry
    channels: Channels
    cleanup: AsyncExitStack
    tasks: asyncio.TaskGroup
    announce: Callable[[], Awaitable[None]]
    metrics_endpoint: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def run(self, loop: Coroutine[Any, Any, None]) -> None:
        """In the background, until the daemon stops."""
        self.cleanup.callback(self.tasks.create_task(loop).cancel)

    async def serve(self, listen: str, handlers: list[grpc.GenericRpcHandler]) -> str:
        """Start a gRPC server with a health service; the address it took."""
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        server.add_generic_rpc_handlers(handlers)
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        host, _ = split_address(listen)
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise UnavailableError(
                f"cannot listen on {listen}: the port is in use, or not ours to take ({error})"
            ) from error
        await server.start()
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        self.cleanup.push_async_callback(server.stop, 1.0)
        self.cleanup.push_async_callback(checks.set, "", health_pb2.HealthCheckResponse.NOT_SERVING)
        return f"{host}:{port}"


def advertised(address: str) -> str:
    """Where others reach what is served at ``address``; of a daemon that listens everywhere, by this host's name."""
    host, port = split_address(address)
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "::") else address
