"""A real Slurm on this machine: a controller and three nodes, with a key, ports and a folder of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from sdrs_scheduler.executors.slurm.settings import SlurmSettings
from tests.support.cluster import free_port
from tests.support.waiting import wait_for

# Stand-ins for GPUs, device files that every machine has: nothing opens them.
_DEVICES = ("null", "zero", "full", "tty")
GPUS_PER_NODE = len(_DEVICES)
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
_IN_CI = bool(os.environ.get("CI"))

# Several slurmd on one host need root, for they start jobs as whoever submitted them. In CI a machine without Slurm is
# an error, not a reason to leave its tests out.
needs_slurm = pytest.mark.skipif(
    not _IN_CI and (os.getuid() != 0 or not all(map(shutil.which, _PROGRAMS))),
    reason="needs root and apt-get install slurmctld slurmd slurm-client munge",
)

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=500
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=5
# How long it waits for a node that is gone, twice, before it asks whether others are.
MessageTimeout=4
KillWait=2
MinJobAge=300
PropagateResourceLimits=NONE
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1,sched_min_interval=0
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n.slurmd
SlurmdParameters=config_overrides
{nodes}
PartitionName=train Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurmd:
    name: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None


@dataclass
class SlurmCluster:
    folder: Path
    nodes: dict[str, Slurmd]
    controller_port: int = field(default_factory=free_port)
    munged: subprocess.Popen[bytes] | None = None
    controller: subprocess.Popen[bytes] | None = None

    @property
    def conf_file(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def settings(self) -> SlurmSettings:
        return SlurmSettings(conf_file=str(self.conf_file))

    def start(self) -> None:
        for name in ("munge", "state", "log", *(f"spool/{name}" for name in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        self._write_conf()
        self._start_munged()
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self.wait_until_up()

    def start_controller(self, *, is_blank: bool = False) -> None:
        """``is_blank``: it has forgotten all jobs."""
        flags = ["-c"] if is_blank else []
        self.controller = self._spawn("slurmctld", ["slurmctld", "-D", *flags, "-f", str(self.conf_file)])
        wait_for(lambda: self.run("scontrol", "ping", check=False).returncode == 0, "slurmctld to answer", 60)

    def end_controller(self) -> None:
        """In good order: it has saved its state then."""
        assert self.controller
        self.controller.terminate()
        self.controller.wait(60)

    def start_node(self, name: str) -> None:
        self.nodes[name].process = self._spawn(name, ["slurmd", "-D", "-N", name, "-f", str(self.conf_file)])

    def kill_node(self, name: str) -> None:
        """As if its power was cut: slurmd and everything that runs under it, all at once."""
        log = f"{self.folder}/log/{name}.slurmd"
        slurmd = self.nodes[name].process
        assert slurmd
        steps = [process for process in psutil.process_iter() if _holds(process, "slurmstepd", log)]
        victims = [child for step in steps for child in step.children(recursive=True)]
        slurmd.kill()
        for victim in [*steps, *victims]:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL)
        slurmd.wait()

    def wait_until_up(self) -> None:
        def is_up() -> bool:
            states = self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
            return len(states) == len(self.nodes) and set(states) <= {"idle", "mixed", "allocated", "completing"}

        wait_for(is_up, f"nodes to be up; logs are in {self.folder}/log", 60)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLURM_CONF": str(self.conf_file)}
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60, env=environment)

    def stop(self) -> None:
        if self.controller and self.controller.poll() is None:
            self.run("scancel", "--user=root", check=False)
        for name in self.nodes:
            if self.nodes[name].process:
                self.kill_node(name)
        for process in (self.controller, self.munged):
            if process:
                process.kill()
                process.wait()

    def _write_conf(self) -> None:
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={slurmd.port} CPUs=8 RealMemory=4000 "
            f"Gres=gpu:{GPUS_PER_NODE} Feature=rack{number}"
            for number, (name, slurmd) in enumerate(self.nodes.items(), 1)
        )
        names = ",".join(self.nodes)
        self.conf_file.write_text(
            _CONF.format(host=host, port=self.controller_port, folder=self.folder, nodes=nodes, names=names)
        )
        lines = (f"NodeName={names} Name=gpu File=/dev/{device}\n" for device in _DEVICES)
        (self.folder / "gres.conf").write_text("".join(lines))

    def _start_munged(self) -> None:
        munge = self.folder / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(256))
        (munge / "key").chmod(0o600)
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        paths = [f"--{option}={munge / name}" for option, name in options.items()]
        # Forced: folders of tests are not those that it would like.
        self.munged = self._spawn("munged", ["munged", "--foreground", "--force", *paths])
        wait_for((munge / "socket").exists, "munged to listen", 30)

    def _spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            # Not in our session: a signal for the tests is none for what they started.
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.folder
            )


def _holds(process: psutil.Process, name: str, path: str) -> bool:
    """Whether it is called so, and has this file open."""
    try:
        return process.name().startswith(name) and any(file.path == path for file in process.open_files())
    except psutil.Error:
        return False


@contextmanager
def running_slurm(node_count: int = 3) -> Iterator[SlurmCluster]:
    # Paths of sockets are short ones.
    folder = Path(tempfile.mkdtemp(prefix="sdrs-slurm-"))
    cluster = SlurmCluster(folder, {name: Slurmd(name) for name in (f"n{number + 1}" for number in range(node_count))})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
