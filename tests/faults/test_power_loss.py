"""Power loss: what was acknowledged is on the platter, not only in the page cache (I1, I2).

kill -9 cannot reveal a missing fsync, since the page cache survives it. So controller and node live on an ext4 in a
loop file whose backing file is copied at random moments, and the copy is what a machine would find after the power
came back: it is mounted, its daemons are started, and every byte that was acknowledged before the copy began must be
there. Of a mirrored pool it is the disk of a replica alone, and the primary never comes back.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sdrs
from tests.support.battered import stands_still
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.file_systems import needs_root
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

pytestmark = needs_root

FILE_SYSTEM_BYTES = 400 * MIB
COPIES = 3
JOBS = ("one", "two")
# Inline, over gRPC and over the data channel; the last one is not staged.
SIZES_BYTES = (10_000, 700_000, 3 * MIB, 9 * MIB)


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop,commit=300", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _make_image(image: Path) -> None:
    with open(image, "wb") as file:
        file.truncate(FILE_SYSTEM_BYTES)
    # Lazy initialisation would write in the background for minutes.
    options = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
    subprocess.run(["mkfs.ext4", *options, str(image)], check=True)


def _size_of(step: int) -> int:
    return SIZES_BYTES[step % len(SIZES_BYTES)]


def _seed(job: str, step: int) -> int:
    return 1000 * JOBS.index(job) + step


class Trainer:
    """Saves step after step in a thread; ``acknowledged`` grows after each acknowledgement, never before."""

    def __init__(self, client: sdrs.Cluster, job: str, pool: str = "default") -> None:
        self.job = job
        self.acknowledged = 0
        self.failure: Exception | None = None
        self._ckpts = client.checkpoints(job, pool=pool)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                step = self.acknowledged + 1
                self._ckpts.save(step=step, state=make_state(_seed(self.job, step), _size_of(step))).wait(timeout=30)
                self.acknowledged = step
        except Exception as error:
            self.failure = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _check(client: sdrs.Cluster, acknowledged: dict[str, int]) -> None:
    """All that was acknowledged is there; what else is there is whole."""
    for job, count in acknowledged.items():
        ckpts = client.checkpoints(job)
        listed = {checkpoint.step for checkpoint in ckpts.list()}
        assert listed >= set(range(1, count + 1)), f"{job} lost acknowledged steps"
        for step in listed:
            assert same(ckpts.restore(step=step), make_state(_seed(job, step), _size_of(step))), f"{job} {step}"


def _check_acknowledged(client: sdrs.Cluster, acknowledged: dict[str, int]) -> None:
    for job, count in acknowledged.items():
        for step in range(1, count + 1):
            state = client.checkpoints(job).restore(step=step)
            assert same(state, make_state(_seed(job, step), _size_of(step))), f"{job} {step}"


def _take_copies(
    cluster: LocalCluster, daemons: list[DaemonProcess], client: sdrs.Cluster, image: Path, pool: str, count: int
) -> list[tuple[Path, dict[str, int]]]:
    """Copies of the image at random moments while jobs save, each with what had been acknowledged before it."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    copies: list[tuple[Path, dict[str, int]]] = []
    trainers = [Trainer(client, job, pool) for job in JOBS]
    try:
        wait_for(lambda: all(trainer.acknowledged for trainer in trainers), "something to lose")
        for number in range(count):
            time.sleep(moments.uniform(0.1, 0.8))  # the moment of the power loss, not a wait
            acknowledged = {trainer.job: trainer.acknowledged for trainer in trainers}
            copies.append((_freeze_copy(daemons, image, cluster.folder.parent / f"copy-{number}.img"), acknowledged))
            print(f"copy {number}: {acknowledged}")
    finally:
        for trainer in trainers:
            trainer.stop()
    assert [trainer.failure for trainer in trainers] == [None] * len(trainers)
    return copies


def test_every_acknowledged_byte_survives_a_power_loss(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    _make_image(image)
    with (
        mounted(image, tmp_path / "live") as folder,
        running_cluster(folder) as cluster,
        cluster.connect(staging_bytes=4 * MIB) as client,
    ):
        daemons = [*cluster.nodes, cluster.controller]
        copies = _take_copies(cluster, daemons, client, image, "default", COPIES)
    for copy, acknowledged in copies:
        with mounted(copy, copy.with_suffix(".mnt")) as folder:
            for leftover in folder.glob("*/run.json"):
                leftover.unlink()  # says that the daemons of the machine that lost its power run
            with running_cluster(folder) as returned, returned.connect() as client:
                _check(client, acknowledged)
                # And the cluster goes on from there.
                client.checkpoints("after").save(step=1, state=make_state(1)).wait()
        copy.unlink()


def test_every_acknowledged_copy_survives_the_power_loss_of_its_replica(tmp_path: Path) -> None:
    """I1: a member acknowledges what it has made durable itself, whatever the primary has."""
    image = tmp_path / "disk.img"
    _make_image(image)
    folder = tmp_path / "live"
    folder.mkdir()
    with mounted(image, folder / "node-2"), running_cluster(folder, node_count=2) as cluster:
        primary, replica = cluster.nodes
        with cluster.connect(staging_bytes=4 * MIB) as client:
            client.create_pool("fast", "L2")
            copies = _take_copies(cluster, [replica], client, image, "fast", 2)
            assert {group.primary for group in client.groups("fast") if group.id == "fast:node-1"} == {primary.name}
            for node in cluster.nodes:
                node.kill()
            # The latest first: what a disk lacks that came back is taken off the record.
            for number, (copy, acknowledged) in enumerate(reversed(copies)):
                after = tmp_path / f"after-{number}"
                after.mkdir()
                settings = [*replica.settings, f"data_dir={after / replica.name}"]
                returned = DaemonProcess(replica.name, after, settings)
                with mounted(copy, returned.data_dir):
                    (returned.data_dir / "run.json").unlink()
                    try:
                        returned.start()
                        wait_for(lambda: client.node(replica.name)[0].state == "up", "the replica to be back")
                        _check_acknowledged(client, acknowledged)
                    finally:
                        returned.kill()
                copy.unlink()


def _freeze_copy(daemons: list[DaemonProcess], image: Path, copy: Path) -> Path:
    """What the disk has at one moment. Who writes to it stands still, or the copy would be of many moments, which no
    disk ever shows; what the kernel was not asked to write stays out of it.
    """
    for daemon in daemons:
        daemon.freeze()
    try:
        for daemon in daemons:
            wait_for(lambda pid=daemon.pid: stands_still(pid), "the system calls under way to end")
        subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    finally:
        for daemon in daemons:
            daemon.thaw()
    return copy
