"""Which way a blob takes to or from a node."""

from __future__ import annotations

import logging
import threading
import time

from sdrs.rpc.channels import Channels
from sdrs.rpc.cutoff import Cutoff
from sdrs.rpc.nodes import NodeCalls
from sdrs.save.payload import PayloadBlob
from sdrs.transfer import BlobSource, FragmentRange, OpenRange, PendingWrite, Sent
from sdrs.transfer.data_channel import DataChannelSink, DataChannelSource
from sdrs.transfer.grpc_stream import GrpcSink, GrpcSource
from sdrs.transfer.local_file import LocalFileSource
from sdrs_core.cluster import Node
from sdrs_proto.dial import DataPortUnreachableError, is_local
from sdrs_proto.limits import DATA_CHANNEL_BYTES, STALL_SECONDS
from sdrs_proto.v1.storage_pb2 import WriteIntent

# For how long a node whose data port did not answer is served over gRPC before the port is tried again.
DETOUR_SECONDS = 60.0

log = logging.getLogger("sdrs")


class Routes:
    """Belongs to one process, and remembers which nodes can be reached over gRPC alone."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._lock = threading.Lock()
        self._detours: dict[str, float] = {}

    def calls(self, node: Node) -> NodeCalls:
        return NodeCalls(self._channels, node)

    def send(
        self, node: Node, intent: WriteIntent, blob: PayloadBlob, sent: Sent, cutoff: Cutoff | None = None
    ) -> PendingWrite:
        calls = self.calls(node)
        if self._takes_data_channel(node, blob.size_bytes):
            try:
                return DataChannelSink(calls).send(intent, blob, sent, cutoff)
            except DataPortUnreachableError as error:
                self._note_detour(node, error)
        return GrpcSink(calls).send(intent, blob, sent, cutoff)

    def open(self, node: Node, fragment: FragmentRange, stall_seconds: float = STALL_SECONDS) -> OpenRange:
        calls = self.calls(node)
        if self._takes_data_channel(node, fragment.size_bytes):
            source: BlobSource = LocalFileSource(calls) if is_local(node) else DataChannelSource(calls)
            try:
                return source.open(fragment, stall_seconds)
            except DataPortUnreachableError as error:
                self._note_detour(node, error)
        return GrpcSource(calls).open(fragment, stall_seconds)

    def _takes_data_channel(self, node: Node, size_bytes: int) -> bool:
        with self._lock:
            is_detoured = time.monotonic() < self._detours.get(node.endpoints.data, 0.0)
        return size_bytes >= DATA_CHANNEL_BYTES and not is_detoured

    def _note_detour(self, node: Node, error: DataPortUnreachableError) -> None:
        with self._lock:
            is_new = node.endpoints.data not in self._detours
            self._detours[node.endpoints.data] = time.monotonic() + DETOUR_SECONDS
        if is_new:
            log.warning("%s; its gRPC port is used instead, which costs more CPU: open the port", error)
