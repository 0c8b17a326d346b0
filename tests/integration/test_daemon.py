"""storaged as a process: how it starts, refuses to start, is watched, and stops."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sdrs import errors
from sdrs.transfer import FragmentRange
from sdrs.transfer.grpc_stream import GrpcSource
from sdrs_proto.services import CONTROL, STORAGE, methods
from sdrs_proto.status import from_rpc_error
from tests.support.cluster import LocalCluster, make_cluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for


def _run(*settings: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    flags = [part for setting in settings for part in ("--set", setting)]
    return subprocess.run(
        [sys.executable, "-m", "sdrs_storaged", *flags], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_it_refuses_bad_settings_exposure_and_foreign_folders_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("precious")
    alone = ['roles=["controller"]', "controller.listen=127.0.0.1:0"]
    cases = [
        (2, "log_level", [f"data_dir={tmp_path}/a", "log_level=loud"]),
        (4, "--insecure", [f"data_dir={tmp_path}/a", "controller.listen=0.0.0.0:0"]),
        (4, "thesis.tex", [f"data_dir={tmp_path}/foreign", *alone]),
    ]
    for code, named, settings in cases:
        done = _run(*settings)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert named in done.stderr
    assert (tmp_path / "foreign" / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("package", ["grpc_health", "pydantic", "structlog"])
def test_without_its_packages_it_says_what_to_install(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None\nfrom sdrs_storaged.__main__ import main\nmain()"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == f"storaged: the daemon needs {package}: pip install 'sdrs[server]'\n"


def test_a_second_daemon_on_the_same_folder_is_refused(shared_cluster: LocalCluster) -> None:
    for daemon in (shared_cluster.controller, shared_cluster.nodes[0]):
        done = _run(*daemon.settings)
        assert done.returncode == 4
        assert str(daemon.pid) in done.stderr
        assert "Traceback" not in done.stderr


def test_a_port_in_use_is_told(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    done = _run(f"data_dir={tmp_path}/other", 'roles=["controller"]', f"controller.listen={shared_cluster.address}")
    assert done.returncode == 6
    assert shared_cluster.address in done.stderr
    assert "in use" in done.stderr


def test_a_node_or_disk_of_another_cluster_is_refused(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    shared_cluster.nodes[0].stop()
    disk = shared_cluster.nodes[0].data_dir / "disk-1"
    (tmp_path / "other").mkdir()
    with running_cluster(tmp_path / "other", node_count=0) as other:
        controllers = f'node.controllers=["{other.address}"]'
        done = _run(f"data_dir={tmp_path}/new", 'roles=["node"]', controllers, f'node.disks=["{disk}"]')
        assert done.returncode == 4
        assert "belongs to cluster" in done.stderr
    shared_cluster.nodes[0].start()
    shared_cluster.wait_until_up()


def test_health_and_metrics_are_served(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as client:
        client.checkpoints("watched").save(step=1, state=make_state(1)).wait()
        with grpc.insecure_channel(shared_cluster.address) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        controller = _metrics(client.info().metrics_endpoint)
        assert 'sdrs_nodes{state="up"} 2.0' in controller
        assert re.search(r"^sdrs_commits_total [1-9]", controller, re.MULTILINE)
        assert 'sdrs_pool_checkpoints{pool="default"}' in controller
        nodes = "".join(_metrics(node.endpoints.metrics) for node in client.nodes())
        assert "sdrs_disk_capacity_bytes" in nodes
        assert "process_resident_memory_bytes" in nodes


def _metrics(endpoint: str) -> str:
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=5) as response:
        return bytes(response.read()).decode()


def test_a_stop_lets_a_save_finish(tmp_path: Path) -> None:
    """SIGTERM in the middle of a transfer: the node takes nobody new, but carries this one through."""
    with running_cluster(tmp_path) as cluster, cluster.connect(staging_bytes=MIB, timeout_seconds=30) as client:
        ckpts = client.checkpoints("drained")
        state = make_state(1, 128 * MIB)
        outcome: list[object] = []
        saver = threading.Thread(target=lambda: outcome.append(ckpts.save(step=1, state=state).wait(timeout=60)))
        saver.start()
        node = cluster.nodes[0]
        wait_for(lambda: list(node.data_dir.glob("disk-1/tmp/*")), "the transfer to begin")
        assert node.stop() == 0
        node.start()
        saver.join()
        assert outcome
        assert same(ckpts.restore(), state)


def test_the_cluster_is_the_same_after_all_daemons_restarted(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as client:
        client.checkpoints("kept").save(step=1, state=make_state(1)).wait()
        term = client.info().term
    shared_cluster.stop()
    for daemon in [*shared_cluster.nodes, shared_cluster.controller]:
        assert not (daemon.data_dir / "run.json").exists()
    shared_cluster.start()
    with shared_cluster.connect() as client:
        assert same(client.checkpoints("kept").restore(), make_state(1))
        assert client.info().term == term + 1


def test_a_node_says_where_it_is_also_while_no_controller_takes_it_in(shared_cluster: LocalCluster) -> None:
    shared_cluster.stop()
    try:
        node = shared_cluster.nodes[0]
        node.start(wait=False)
        wait_for(lambda: "grpc" in node.running(), "the node to serve")
        assert not node.running()["ready"]
        node.stop()
    finally:
        shared_cluster.start()


def test_nodes_start_before_their_controller(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    try:
        cluster.nodes[0].start(wait=False)
        wait_for(lambda: "controller_not_found" in cluster.nodes[0].log_path.read_text(), "the node to look")
        cluster.controller.start()
        cluster.wait_until_up()
    finally:
        for daemon in (cluster.nodes[0], cluster.controller):
            daemon.kill()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\x0a\xff\x01short"])
def test_a_malformed_message_is_an_error_to_its_sender_only(shared_cluster: LocalCluster, garbage: bytes) -> None:
    node_address = shared_cluster.nodes[0].running()["grpc"]
    for address, service in ((shared_cluster.address, CONTROL), (node_address, STORAGE)):
        with grpc.insecure_channel(address) as channel:
            for method in methods(service):
                send = getattr(channel, method.shape)(method.path)
                request = iter([garbage]) if method.shape.startswith("stream") else garbage
                with pytest.raises(grpc.RpcError) as caught:
                    _exhaust(send(request, timeout=10))
                error = from_rpc_error(caught.value, "peer")
                assert isinstance(error, errors.ProtocolError), (method.name, error)
    with shared_cluster.connect() as client:
        client.checkpoints("unharmed").save(step=1, state=make_state(1)).wait()


def _exhaust(answer: bytes | Iterable[bytes]) -> None:
    if not isinstance(answer, bytes):
        list(answer)


def test_a_reader_that_hangs_up_is_no_defect_of_the_node(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as client:
        ckpts = client.checkpoints("impatient")
        ckpts.save(step=1, state=make_state(1, 20 * MIB)).wait()
        blob = max(ckpts.shards(1)[0].blobs, key=lambda blob: blob.size_bytes)
        node, _ = client.node(blob.holders[0].node_id)
        source = GrpcSource(client.process().routes.calls(node))
        block = memoryview(bytearray(MIB))
        for block_count in [0, 1, 2, 3, 5] * 8:
            reading = source.open(FragmentRange(blob.id, 0, 0, blob.size_bytes))
            for _ in range(block_count):
                reading.read_into(block, MIB)
            reading.close()
        assert ckpts.verify(1).ok
        log = next(daemon for daemon in shared_cluster.nodes if daemon.name == node.id).log_path
        assert "call_failed" not in log.read_text()


def test_an_oversized_message_is_refused(shared_cluster: LocalCluster) -> None:
    with grpc.insecure_channel(shared_cluster.address) as channel:
        send = channel.unary_unary("/sdrs.v1.Control/GetCluster")
        with pytest.raises(grpc.RpcError) as caught:
            send(b"\x0a" + b"x" * (9 << 20), timeout=10)
        assert isinstance(from_rpc_error(caught.value, "peer"), errors.ProtocolError)
