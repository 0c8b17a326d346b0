"""Calls to one node. They are not repeated here: whoever transfers chooses between this node and another."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from google.protobuf.message import Message

from sdrs.rpc.channels import Channels, call_once, stream_responses
from sdrs.rpc.cutoff import Cutoff
from sdrs_core.cluster import Node
from sdrs_proto.limits import CALL_SECONDS, transfer_seconds
from sdrs_proto.services import STORAGE, Stub


class NodeCalls:
    def __init__(self, channels: Channels, node: Node) -> None:
        self.node = node
        self.peer = f"node {node.id} at {node.endpoints.grpc}"
        self._channels = channels

    def call(
        self, method: str, request: Message, *, timeout_seconds: float = CALL_SECONDS, cutoff: Cutoff | None = None
    ) -> Any:
        return call_once(
            getattr(self.stub, method), request, timeout_seconds=timeout_seconds, peer=self.peer, cutoff=cutoff
        )

    def stream(
        self, method: str, request: Message, *, size_bytes: int, cutoff: Cutoff | None = None
    ) -> Generator[Any, None, None]:
        timeout_seconds = transfer_seconds(size_bytes)
        return stream_responses(
            getattr(self.stub, method), request, timeout_seconds=timeout_seconds, peer=self.peer, cutoff=cutoff
        )

    @property
    def stub(self) -> Stub:
        return self._channels.stub(self.node.endpoints.grpc, STORAGE)
