"""One suite for every way that a blob takes to and from a node."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from sdrs.rpc.channels import Channels
from sdrs.rpc.nodes import NodeCalls
from sdrs.transfer import BlobSink, BlobSource, FragmentRange
from sdrs.transfer.data_channel import DataChannelSink, DataChannelSource
from sdrs.transfer.grpc_stream import GrpcSink, GrpcSource
from sdrs.transfer.local_file import LocalFileSource
from sdrs_core.checksums import BLOCK_BYTES, blob_hash, block_count, digest, table_entry
from sdrs_core.cluster import Node
from sdrs_core.errors import (
    CorruptDataError,
    NotFoundError,
    PermissionDeniedError,
    SaveFailedError,
    SdrsError,
    UnavailableError,
)
from sdrs_core.ids import BlobId, random_id
from sdrs_proto import channel
from sdrs_proto.dial import open_channel
from sdrs_proto.v1.storage_pb2 import BlobSummary, OpenReadRequest, OpenWriteRequest, StoredBlob, WriteIntent
from tests.support.cluster import LocalCluster

SIZES = [1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 123]
WRITERS = ["unix", "tcp", "grpc"]
READERS = ["file", "unix", "tcp", "grpc"]


@dataclass(frozen=True)
class Bytes:
    """A blob in memory."""

    data: bytes
    claimed_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.data) if self.claimed_bytes is None else self.claimed_bytes

    def segments(self) -> Iterator[memoryview]:
        half = len(self.data) // 2
        yield memoryview(self.data)[:half]
        yield memoryview(self.data)[half:]


@dataclass(frozen=True)
class Paths:
    """The ways to one node, made on demand."""

    local: NodeCalls
    remote: NodeCalls

    def sink(self, name: str) -> BlobSink:
        return {
            "unix": DataChannelSink(self.local),
            "tcp": DataChannelSink(self.remote),
            "grpc": GrpcSink(self.local),
        }[name]

    def source(self, name: str) -> BlobSource:
        return {
            "file": LocalFileSource(self.local),
            "unix": DataChannelSource(self.local),
            "tcp": DataChannelSource(self.remote),
            "grpc": GrpcSource(self.local),
        }[name]


@pytest.fixture
def paths(shared_cluster: LocalCluster) -> Iterator[Paths]:
    with shared_cluster.connect() as client:
        node = client.nodes()[0]
    channels = Channels()
    yield Paths(NodeCalls(channels, node), NodeCalls(channels, _seen_from_afar(node)))
    channels.close()


def _seen_from_afar(node: Node) -> Node:
    return replace(node, endpoints=replace(node.endpoints, unix="", host="elsewhere"))


def _intent(size_bytes: int, blob_id: str = "") -> WriteIntent:
    return WriteIntent(
        save_id="ab" * 16,
        blob_id=blob_id or random_id(),
        size_bytes=size_bytes,
        job="contract",
        step=1,
        attempt=1,
        group_id="default:node-1",
        epoch=1,
    )


def _data(size_bytes: int) -> bytes:
    return bytes(range(251)) * (size_bytes // 251 + 1)


def _hash(data: bytes) -> str:
    starts = range(0, len(data), BLOCK_BYTES)
    return blob_hash(len(data), b"".join(digest(data[start : start + BLOCK_BYTES]) for start in starts))


def _read(source: BlobSource, blob_id: str, offset: int, size_bytes: int) -> tuple[bytes, BlobSummary]:
    opened = source.open(FragmentRange(BlobId(blob_id), 0, offset, size_bytes))
    pages = mmap.mmap(-1, max(mmap.PAGESIZE, -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE))
    try:
        opened.read_into(memoryview(pages), size_bytes)
        return pages[:size_bytes], opened.summary
    finally:
        opened.close()


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_is_written_one_way_is_read_every_way(paths: Paths, writer: str, size_bytes: int) -> None:
    data = _data(size_bytes)[:size_bytes]
    intent = _intent(size_bytes)
    told: list[int] = []
    assert paths.sink(writer).send(intent, Bytes(data), told.append).result() == _hash(data)
    assert sum(told) == size_bytes
    for reader in READERS:
        read, summary = _read(paths.source(reader), intent.blob_id, 0, size_bytes)
        assert read == data, reader
        assert (summary.size_bytes, summary.hash) == (size_bytes, _hash(data))
        assert blob_hash(summary.size_bytes, summary.table) == summary.hash
        assert table_entry(summary.table, 0) == digest(data[:BLOCK_BYTES])
        assert len(summary.table) == 16 * block_count(size_bytes)


@pytest.mark.parametrize("reader", READERS)
def test_a_range_of_blocks_is_read_alone(paths: Paths, reader: str) -> None:
    data = _data(4 * BLOCK_BYTES)[: 3 * BLOCK_BYTES + 500]
    intent = _intent(len(data))
    paths.sink("unix").send(intent, Bytes(data), lambda _: None).result()
    for offset, size_bytes in ((BLOCK_BYTES, BLOCK_BYTES), (2 * BLOCK_BYTES, BLOCK_BYTES + 500)):
        read, _ = _read(paths.source(reader), intent.blob_id, offset, size_bytes)
        assert read == data[offset : offset + size_bytes]


@pytest.mark.parametrize("reader", READERS)
def test_what_does_not_come_in_time_can_be_waited_for_again(
    shared_cluster: LocalCluster, paths: Paths, reader: str
) -> None:
    """More than sockets and streams keep underway; of a passed file the node need not even be alive."""
    size_bytes = 48 * BLOCK_BYTES
    data = os.urandom(BLOCK_BYTES) * 48
    intent = _intent(size_bytes)
    paths.sink("unix").send(intent, Bytes(data), lambda _: None).result()
    opened = paths.source(reader).open(FragmentRange(BlobId(intent.blob_id), 0, 0, size_bytes))
    pages = mmap.mmap(-1, BLOCK_BYTES)
    node = next(daemon for daemon in shared_cluster.nodes if daemon.name == paths.local.node.id)
    was_late = False
    node.freeze()
    try:
        for start in range(0, size_bytes, BLOCK_BYTES):
            while not opened.read_into(memoryview(pages), BLOCK_BYTES, 0.05):
                was_late = True
                node.thaw()
            assert pages[:] == data[start : start + BLOCK_BYTES]
            assert opened.last_heard > 0
    finally:
        node.thaw()
        opened.close()
    assert was_late == (reader != "file")


@pytest.mark.parametrize("writer", WRITERS)
def test_a_blob_is_stored_once_and_never_replaced(paths: Paths, writer: str) -> None:
    data = _data(BLOCK_BYTES + 5)[: BLOCK_BYTES + 5]
    intent = _intent(len(data))
    for _ in range(2):
        assert paths.sink(writer).send(intent, Bytes(data), lambda _: None).result() == _hash(data)
    other = data[:-1] + b"!"
    with_other = paths.sink("grpc")
    with pytest.raises(SdrsError):
        with_other.send(intent, Bytes(other), lambda _: None).result()
    assert _read(paths.source("unix"), intent.blob_id, 0, len(data))[0] == data


@pytest.mark.parametrize("writer", WRITERS)
def test_a_blob_that_changes_its_size_on_the_way_is_not_stored(paths: Paths, writer: str) -> None:
    intent = _intent(2 * BLOCK_BYTES)
    with pytest.raises(SaveFailedError):
        paths.sink(writer).send(intent, Bytes(b"x" * BLOCK_BYTES, 2 * BLOCK_BYTES), lambda _: None).result()
    with pytest.raises(NotFoundError):
        _read(paths.source("grpc"), intent.blob_id, 0, 1)


@pytest.mark.parametrize("reader", READERS)
def test_a_blob_that_is_not_there_is_an_error_that_names_it(paths: Paths, reader: str) -> None:
    missing = random_id()
    with pytest.raises(NotFoundError, match=missing):
        _read(paths.source(reader), missing, 0, 10)


# The data channel by hand: what no well-behaved client sends.


def _dial(node: Node) -> socket.socket:
    host, port = node.endpoints.data.split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    return connection


def _write_ticket(paths: Paths, intent: WriteIntent) -> str:
    ticket: str = paths.local.call("open_write", OpenWriteRequest(intent=intent)).ticket
    return ticket


def _hello(ticket: str) -> bytes:
    return channel.HELLO.pack(channel.MAGIC, 0, ticket.encode())


def test_a_ticket_admits_once(paths: Paths) -> None:
    data = b"once"
    intent = _intent(len(data))
    paths.sink("unix").send(intent, Bytes(data), lambda _: None).result()
    request = OpenReadRequest(blob_id=intent.blob_id)
    ticket = paths.local.call("open_read", request).ticket
    with _dial(paths.local.node) as connection:
        connection.sendall(_hello(ticket))
        assert channel.receive_answer(connection, BlobSummary).size_bytes == len(data)
    for used in (ticket, "0" * 32):
        with _dial(paths.local.node) as connection:
            connection.sendall(_hello(used))
            with pytest.raises(PermissionDeniedError):
                channel.receive_answer(connection, BlobSummary)


def test_a_block_damaged_on_the_way_is_refused(paths: Paths) -> None:
    intent = _intent(1000)
    with _dial(paths.local.node) as connection:
        connection.sendall(_hello(_write_ticket(paths, intent)))
        connection.sendall(channel.BLOCK.pack(1000, digest(b"x" * 1000)) + b"y" * 1000)
        with pytest.raises(CorruptDataError):
            channel.receive_answer(connection, StoredBlob)
    with pytest.raises(NotFoundError):
        _read(paths.source("grpc"), intent.blob_id, 0, 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" + b"\0" * 40,
        channel.HELLO.pack(b"SDRSDC9\n", 0, b"0" * 32),
    ],
)
def test_a_stranger_gets_an_error_and_harms_nobody(paths: Paths, garbage: bytes) -> None:
    with _dial(paths.local.node) as connection:
        connection.sendall(garbage)
        with pytest.raises(SdrsError):
            channel.receive_answer(connection, StoredBlob)
    test_a_ticket_admits_once(paths)


def test_an_oversized_block_is_refused_before_it_is_read(paths: Paths) -> None:
    with _dial(paths.local.node) as connection:
        connection.sendall(_hello(_write_ticket(paths, _intent(1 << 30))))
        connection.sendall(channel.LENGTH.pack(BLOCK_BYTES + 1))
        with pytest.raises(SdrsError, match="announced"):
            channel.receive_answer(connection, StoredBlob)


def test_a_writer_that_vanishes_leaves_nothing_and_frees_its_slot(paths: Paths) -> None:
    for _ in range(20):  # more often than there are slots
        with _dial(paths.local.node) as connection:
            connection.sendall(_hello(_write_ticket(paths, _intent(5000))))
            connection.sendall(channel.BLOCK.pack(1000, digest(b"x" * 1000)) + b"x" * 500)
    data = b"still works"
    assert paths.sink("tcp").send(_intent(len(data)), Bytes(data), lambda _: None).result() == _hash(data)


@pytest.mark.parametrize("name", ["file", "unix", "tcp"])
def test_a_ticket_that_the_node_has_forgotten_is_worth_another_try(
    paths: Paths, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the node between the ticket and the connection."""
    intent = _intent(5000)
    paths.sink("tcp").send(intent, Bytes(_data(5000)[:5000]), lambda _: None).result()

    def forgotten(node: Node, ticket: str, flags: int = 0) -> socket.socket:
        return open_channel(node, "0" * 32, flags)

    monkeypatch.setattr("sdrs.transfer.data_channel.open_channel", forgotten)
    monkeypatch.setattr("sdrs.transfer.local_file.open_channel", forgotten)
    with pytest.raises(UnavailableError, match="ticket"):
        _read(paths.source(name), intent.blob_id, 0, 5000)
    if name != "file":
        with pytest.raises(UnavailableError, match="ticket"):
            paths.sink(name).send(_intent(5000), Bytes(_data(5000)[:5000]), lambda _: None).result()
