"""Outgoing gRPC channels of a daemon, one for each address, and calls with a deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from sdrs_proto.limits import CALL_SECONDS, CHANNEL_OPTIONS
from sdrs_proto.services import Stub
from sdrs_proto.status import from_rpc_error


class Channels:
    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        # Kept as well: to make one costs more than a call.
        self._stubs: dict[tuple[str, str], Stub] = {}

    def stub(self, address: str, service: ServiceDescriptor) -> Stub:
        stub = self._stubs.get((address, service.full_name))
        if stub is None:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            stub = self._stubs[address, service.full_name] = Stub(channel, service)
        return stub

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


async def call(method: Any, request: Any, peer: str, timeout_seconds: float = CALL_SECONDS) -> Any:
    try:
        return await method(request, timeout=timeout_seconds)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer) from None


async def stream(method: Any, request: Any, peer: str, timeout_seconds: float) -> AsyncIterator[Any]:
    try:
        async for response in method(request, timeout=timeout_seconds):
            yield response
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer) from None
