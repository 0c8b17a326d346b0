"""Clusters of real daemons on this machine, each process with its own folder, log and pid."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sdrs
from tests.support.waiting import wait_for

# Below those that Linux gives to outgoing connections: between the look and the use nobody else takes one by chance,
# neither a client of another test nor, at random, another worker of the same run.
_PORTS = range(12_000, 32_000)
# For each node: machines that run tests are not sized for it.
STAGING_BYTES = 256 << 20


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class DaemonProcess:
    """One storaged. ``start`` waits until it serves, unless told that it will not come so far."""

    name: str
    folder: Path
    settings: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def data_dir(self) -> Path:
        return self.folder / self.name

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def start(self, *, wait: bool = True, **environment: str) -> None:
        flags = [part for setting in self.settings for part in ("--set", setting)]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sdrs_storaged", *flags],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment, **environment},
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_for(self._is_ready, f"{self.name} to be ready; its log is {self.log_path}", 60)

    def _is_ready(self) -> bool:
        assert self.process
        if self.process.poll() is not None:
            raise AssertionError(
                f"{self.name} exited with {self.process.returncode}:\n{self.log_path.read_text()[-3000:]}"
            )
        running = self.running()
        return running.get("pid") == self.process.pid and bool(running["ready"])

    def running(self) -> dict[str, Any]:
        """What the daemon says of itself while it serves."""
        try:
            return dict(json.loads((self.data_dir / "run.json").read_text()))
        except FileNotFoundError:
            return {}

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """A graceful stop; its exit code."""
        assert self.process
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop:\n{self.log_path.read_text()[-3000:]}") from None

    def wait_for_death(self, seconds: float = 20.0) -> int:
        assert self.process
        return self.process.wait(seconds)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def staging_dir(folder: Path, name: str) -> Path:
    """Real shared memory, under a name that goes away with the test: a killed daemon cannot tidy up."""
    place = SHARED_MEMORY / hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return place / name


def remove_staging(folder: Path) -> None:
    shutil.rmtree(staging_dir(folder, "x").parent, ignore_errors=True)


SHARED_MEMORY = Path(f"/dev/shm/sdrs-test-{os.getpid()}")
atexit.register(shutil.rmtree, SHARED_MEMORY, ignore_errors=True)


@dataclass
class LocalCluster:
    folder: Path
    port: int
    controller: DaemonProcess
    nodes: list[DaemonProcess]

    @property
    def url(self) -> str:
        return f"sdrs://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connect(self, **options: Any) -> sdrs.Cluster:
        return sdrs.connect(self.url, **options)

    def start(self) -> None:
        # All at once: daemons spend their start on imports, and nodes look for their controller until it is there.
        daemons = [self.controller, *self.nodes]
        for daemon in daemons:
            daemon.start(wait=False)
        for daemon in daemons:
            daemon.wait_until_ready()
        self.wait_until_up()

    def wait_until_up(self) -> None:
        with self.connect() as cluster:
            wait_for(lambda: self._is_up(cluster), "all nodes to be up")

    def _is_up(self, cluster: sdrs.Cluster) -> bool:
        nodes = cluster.nodes()
        return len(nodes) >= len(self.nodes) and all(node.state == "up" for node in nodes)

    def stop(self) -> None:
        for daemon in [*self.nodes, self.controller]:
            if daemon.process and daemon.process.poll() is None:
                daemon.stop()

    def fragments(self) -> list[Path]:
        """The files of all fragments on all nodes."""
        return sorted(path for node in self.nodes for path in node.data_dir.glob("disk-*/fragments/*/*"))


def storage_node(folder: Path, name: str, controllers: list[str], section: dict[str, Any]) -> DaemonProcess:
    """A node alone, for whatever serves as its controller."""
    common = {"roles": ["node"], "data_dir": str(folder / name), "metrics": "127.0.0.1:0"}
    settings = {
        "id": name,
        "controllers": controllers,
        "domain": name,
        "staging_dir": str(staging_dir(folder, name)),
        "staging_bytes": STAGING_BYTES,
        **section,
    }
    flags = [f"{key}={json.dumps(value)}" for key, value in common.items()]
    return DaemonProcess(
        name, folder, [*flags, *(f"node.{key}={json.dumps(value)}" for key, value in settings.items())]
    )


def make_cluster(
    folder: Path,
    *,
    node_count: int = 1,
    controller: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> LocalCluster:
    """A cluster that is not started yet. ``controller`` and ``node`` are settings of those sections."""
    port = free_port()

    def settings(name: str, role: str, section: dict[str, Any]) -> list[str]:
        common = {"roles": [role], "data_dir": str(folder / name), "metrics": "127.0.0.1:0"}
        return [
            *(f"{key}={json.dumps(value)}" for key, value in common.items()),
            *(f"{role}.{key}={json.dumps(value)}" for key, value in section.items()),
        ]

    quick = {
        "listen": f"127.0.0.1:{port}",
        "collect_interval_seconds": 0.2,
        "scan_interval_seconds": 0,
        "grace_seconds": 3600,
        # A busy machine lets a process stand still for longer than in life: who is merely slow is not to be replaced,
        # except where a test is about that. A killed one is found by its closed port, at once.
        "suspect_after_seconds": 5,
        **(controller or {}),
    }
    daemon = DaemonProcess("controller", folder, settings("controller", "controller", quick), environment or {})
    nodes = [
        DaemonProcess(
            name,
            folder,
            settings(
                name,
                "node",
                {
                    "id": name,
                    "controllers": [f"127.0.0.1:{port}"],
                    "domain": name,
                    "slow_member_seconds": 20,
                    "staging_dir": str(staging_dir(folder, name)),
                    "staging_bytes": STAGING_BYTES,
                    **(node or {}),
                },
            ),
            environment or {},
        )
        for name in (f"node-{number}" for number in range(1, node_count + 1))
    ]
    return LocalCluster(folder, port, daemon, nodes)


@contextmanager
def running_cluster(folder: Path, **options: Any) -> Iterator[LocalCluster]:
    cluster = make_cluster(folder, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        for daemon in [*cluster.nodes, cluster.controller]:
            if daemon.process and daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGCONT)
                daemon.kill()
        remove_staging(folder)
