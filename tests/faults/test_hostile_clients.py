"""Clients that hang up, say nothing, drip or lie cost the node nothing lasting, and nobody waits for them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from sdrs import errors
from sdrs_core.ids import random_id
from sdrs_proto import channel
from sdrs_proto.framing import Frame
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_proto.services import STORAGE, Stub
from sdrs_proto.signing import shared_secret, signature
from sdrs_proto.status import from_rpc_error
from sdrs_proto.v1 import storage_pb2 as pb
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A node with few slots: what is lost of them is missed soon."""
    folder = tmp_path_factory.mktemp("hostile")
    with running_cluster(folder, node={"write_slots": 2, "read_slots": 2}) as cluster:
        yield cluster


@pytest.fixture
def storage(cluster: LocalCluster) -> Iterator[Stub]:
    with grpc.insecure_channel(cluster.nodes[0].running()["grpc"], options=CHANNEL_OPTIONS) as connection:
        yield Stub(connection, STORAGE)


def _intent(size_bytes: int = MIB) -> pb.WriteIntent:
    return pb.WriteIntent(
        save_id=random_id(),
        blob_id=random_id(),
        size_bytes=size_bytes,
        job="hostile",
        step=1,
        attempt=1,
        group_id="default:node-1",
        epoch=1,
    )


def _connect(node: DaemonProcess, first: bytes = b"") -> socket.socket:
    host, _, port = node.running()["data"].rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall(first)
    return connection


def _hello(ticket: str) -> bytes:
    return channel.HELLO.pack(channel.MAGIC, 0, ticket.encode())


def _threads(node: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{node.pid}/task"))


def _open_files(node: DaemonProcess, part_of_path: str) -> int:
    count = 0
    for fd in os.listdir(f"/proc/{node.pid}/fd"):
        with suppress(FileNotFoundError):
            count += part_of_path in os.readlink(f"/proc/{node.pid}/fd/{fd}")
    return count


def _check_serves(cluster: LocalCluster, step: int) -> None:
    with cluster.connect() as client:
        ckpts = client.checkpoints("hostile")
        ckpts.save(step=step, state=make_state(step)).wait(timeout=30)
        assert same(ckpts.restore(step=step), make_state(step))


def test_clients_that_hang_up_while_they_wait_for_a_slot_take_none_along(cluster: LocalCluster, storage: Stub) -> None:
    tickets = [storage.open_write(pb.OpenWriteRequest(intent=_intent()), timeout=10).ticket for _ in range(2)]
    opening = Frame(open=_intent().SerializeToString())
    waiting = [storage.write_blob.future(iter([opening]), timeout=0.3) for _ in range(6)]
    for call in waiting:
        with pytest.raises(grpc.RpcError):
            call.result()
    for ticket in tickets:
        _connect(cluster.nodes[0], _hello(ticket)).close()
    _check_serves(cluster, 1)


def test_streams_that_break_off_at_any_moment_leave_nothing_open(cluster: LocalCluster, storage: Stub) -> None:
    def frames() -> Iterator[Frame]:
        yield Frame(open=_intent(64 * MIB).SerializeToString())
        while True:
            time.sleep(0.01)
            yield Frame(digest=b"0" * 16, data=b"")

    for number in range(60):
        call = storage.write_blob.future(frames(), timeout=10)
        time.sleep(number * 0.0003)  # the moment of hanging up, not a wait
        call.cancel()
    wait_for(lambda: not _open_files(cluster.nodes[0], "disk-1/tmp/"), "the files of broken streams to be closed")
    assert not list(cluster.nodes[0].data_dir.glob("disk-1/tmp/*"))
    _check_serves(cluster, 2)


def test_strangers_who_say_nothing_make_nobody_wait(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    silent = [_connect(node) for _ in range(300)]
    try:
        assert _threads(node) < 250
        with _connect(node, _hello("0" * 32)) as speaking:
            speaking.settimeout(4)  # less than a stranger may be silent: who speaks does not wait for them
            with pytest.raises(errors.PermissionDeniedError):
                channel.receive_answer(speaking, pb.StoredBlob)
        _check_serves(cluster, 3)
    finally:
        for connection in silent:
            connection.close()


def test_a_refused_caller_that_goes_on_talking_is_left(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    before = _threads(node)
    refused = [_connect(node, _hello("0" * 32)) for _ in range(120)]
    try:
        assert _threads(node) < before + 100

        def all_left() -> bool:
            for connection in refused:
                with suppress(OSError):
                    connection.send(b"x")
            return _threads(node) < before + 10

        wait_for(all_left, "the threads of refused callers to end")
    finally:
        for connection in refused:
            connection.close()


@pytest.mark.parametrize("token", ["x", "²", f"{'a' * 32}.²", f"{'a' * 32}.{'9' * 30}", "../../etc.1"])
def test_a_page_token_that_is_not_ours_is_refused(storage: Stub, token: str) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        storage.list_fragments(pb.ListFragmentsRequest(page_token=token), timeout=10)
    assert isinstance(from_rpc_error(refusal.value, "the node"), errors.InvalidArgumentError)


def test_a_blob_announced_larger_than_the_disk_reserves_nothing(cluster: LocalCluster, storage: Stub) -> None:
    for size_bytes in (2**44, 2**60, 2**64 - 1):
        frames = [Frame(open=_intent(size_bytes).SerializeToString()), Frame(digest=b"0" * 16, data=b"x")]
        with pytest.raises(grpc.RpcError) as refusal:
            storage.write_blob(iter([*frames, Frame(end=b"")]), timeout=10)
        refused = from_rpc_error(refusal.value, "the node")
        assert isinstance(refused, (errors.InvalidArgumentError, errors.FullError, errors.ProtocolError)), refused
    assert not list(cluster.nodes[0].data_dir.glob("disk-1/tmp/*"))
    _check_serves(cluster, 4)


def test_an_epoch_that_a_client_made_up_does_not_close_the_group(cluster: LocalCluster, storage: Stub) -> None:
    intent = _intent()
    intent.epoch = 2**60
    with pytest.raises(grpc.RpcError) as refusal:
        storage.open_write(pb.OpenWriteRequest(intent=intent), timeout=30)
    assert isinstance(from_rpc_error(refusal.value, "the node"), errors.UnavailableError)
    _check_serves(cluster, 5)


def test_only_the_controller_can_have_fragments_dropped(cluster: LocalCluster, storage: Stub) -> None:
    with cluster.connect() as client:
        ckpts = client.checkpoints("dropped")
        ckpts.save(step=1, state=make_state(1)).wait()
        request = pb.DropFragmentsRequest(fragments=[pb.FragmentName(blob_id=ckpts.shards(1)[0].blobs[0].id)])
        request.authority.term = request.authority.incarnation = request.authority.revision = 2**40
        for forged in (b"", signature(shared_secret("a guess"), request)):
            request.signature = forged
            with pytest.raises(grpc.RpcError) as refusal:
                storage.drop_fragments(request, timeout=10)
            assert isinstance(from_rpc_error(refusal.value, "the node"), errors.PermissionDeniedError)
        assert ckpts.verify(1)


def test_many_verifications_at_once_keep_no_one_from_saving(cluster: LocalCluster, storage: Stub) -> None:
    """Each reads a whole fragment: they have slots of their own, and end when nobody waits for them (P21)."""
    with cluster.connect() as client:
        ckpts = client.checkpoints("verified")
        ckpts.save(step=1, state=make_state(1, 150 * MIB)).wait()
        blob = max(ckpts.shards(1)[0].blobs, key=lambda blob: blob.size_bytes)
        calls = [storage.verify_fragment(pb.VerifyFragmentRequest(blob_id=blob.id), timeout=60) for _ in range(80)]
        next(iter(calls[0]))
        wait_for(lambda: _open_files(cluster.nodes[0], blob.id), "the verifications to read")
        # Two readers at once, each with two descriptors.
        assert max(_open_files(cluster.nodes[0], blob.id) for _ in range(20)) <= 4
        _check_serves(cluster, 6)
        for call in calls:
            call.cancel()
        wait_for(lambda: not _open_files(cluster.nodes[0], blob.id), "the readings that nobody waits for to end", 5)
        assert ckpts.verify(1).ok


def test_the_metrics_port_leaves_those_who_say_nothing(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    before = _threads(node)
    host, _, port = node.running()["metrics"].rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=5) for _ in range(12)]
    try:
        wait_for(lambda: _threads(node) >= before + 8, "them to be taken in")
        wait_for(lambda: _threads(node) < before + 4, "their threads to end")
        assert "Traceback" not in node.log_path.read_text()
    finally:
        for connection in silent:
            connection.close()
