"""The transports, one blob of 1 GiB each: what the data channel gains over gRPC alone."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.processes import AS_DEPLOYED, cpu_seconds
from benchmarks.results import Result
from sdrs.rpc.channels import Channels
from sdrs.rpc.nodes import NodeCalls
from sdrs.transfer import BlobSink, BlobSource, FragmentRange
from sdrs.transfer.data_channel import DataChannelSink, DataChannelSource
from sdrs.transfer.grpc_stream import GrpcSink, GrpcSource
from sdrs.transfer.local_file import LocalFileSource
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.ids import BlobId, random_id
from sdrs_proto.v1.storage_pb2 import WriteIntent
from tests.support.cluster import running_cluster

GIB = raw.GIB


@dataclass(frozen=True)
class _Blob:
    array: np.ndarray

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    def segments(self) -> Iterator[memoryview]:
        yield memoryview(self.array).cast("B")


def streams(folder: Path) -> Iterator[Result]:
    array = raw.arrays_of(GIB, 1)[0]
    blob = _Blob(array)
    with running_cluster(folder, node_count=1, controller=AS_DEPLOYED) as cluster:
        with cluster.connect() as client:
            node = client.nodes()[0]
        channels = Channels()
        local = NodeCalls(channels, node)
        remote = NodeCalls(channels, replace(node, endpoints=replace(node.endpoints, unix="", host="elsewhere")))
        pids = [os.getpid(), cluster.nodes[0].pid]
        sinks: dict[str, BlobSink] = {
            "unix": DataChannelSink(local),
            "tcp": DataChannelSink(remote),
            "grpc": GrpcSink(local),
        }
        blob_id = ""
        raw_seconds = raw.write_and_sync(folder / "raw", [array])
        for name, sink in sinks.items():
            blob_id = random_id()
            intent = WriteIntent(
                save_id=random_id(), blob_id=blob_id, size_bytes=GIB, job="bench", group_id="g", epoch=1, attempt=1
            )
            write = lambda sink=sink, intent=intent: sink.send(intent, blob, lambda _: None).result()  # noqa: E731
            seconds, cpu = _measure(write, pids)
            yield Result(f"stream_{name}_write", GIB / seconds / 1e9, "GB/s", "raw write+fsync", raw_seconds / seconds)
            yield Result(f"stream_{name}_write_cpu", cpu, "CPU s/GiB")
        sources: dict[str, BlobSource] = {
            "file": LocalFileSource(local),
            "unix": DataChannelSource(local),
            "tcp": DataChannelSource(remote),
            "grpc": GrpcSource(local),
        }
        for name, source in sources.items():
            seconds, cpu = _measure(lambda source=source: _read(source, blob_id), pids)
            yield Result(f"stream_{name}_read", GIB / seconds / 1e9, "GB/s")
            yield Result(f"stream_{name}_read_cpu", cpu, "CPU s/GiB")
        channels.close()


def _read(source: BlobSource, blob_id: str) -> None:
    """Into one warm block, unverified: the transport alone."""
    opened = source.open(FragmentRange(BlobId(blob_id), 0, 0, GIB))
    block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    for _ in range(GIB // BLOCK_BYTES):
        opened.read_into(block, BLOCK_BYTES)
    opened.close()


def _measure(work: Callable[[], object], pids: list[int]) -> tuple[float, float]:
    before, start = cpu_seconds(pids), time.perf_counter()
    work()
    return time.perf_counter() - start, cpu_seconds(pids) - before
