"""Power loss: what was acknowledged is on the platter, not only in the page cache (I1, I2).

kill -9 cannot reveal a missing fsync, since the page cache survives it. So controller and node live on an ext4 in a
loop file whose backing file is copied at random moments, and the copy is what a machine would find after the power
came back: it is mounted, its daemons are started, and every byte that was acknowledged before the copy began must be
there.
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
from tests.support.cluster import LocalCluster, make_cluster, running_cluster
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

    def __init__(self, client: sdrs.Cluster, job: str) -> None:
        self.job = job
        self.acknowledged = 0
        self.failure: Exception | None = None
        self._ckpts = client.checkpoints(job)
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


def _check(cluster: LocalCluster, acknowledged: dict[str, int]) -> None:
    with cluster.connect() as client:
        for job, count in acknowledged.items():
            ckpts = client.checkpoints(job)
            listed = {checkpoint.step for checkpoint in ckpts.list()}
            assert listed >= set(range(1, count + 1)), f"{job} lost acknowledged steps"
            for step in listed:
                assert same(ckpts.restore(step=step), make_state(_seed(job, step), _size_of(step))), f"{job} {step}"
        # And the cluster goes on from there.
        client.checkpoints("after").save(step=1, state=make_state(1)).wait()


def test_every_acknowledged_byte_survives_a_power_loss(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    image = tmp_path / "disk.img"
    _make_image(image)
    copies: list[tuple[Path, dict[str, int]]] = []
    with mounted(image, tmp_path / "live") as folder:
        with (
            running_cluster(folder) as cluster,
            cluster.connect(staging_bytes=4 * MIB) as client,
        ):
            trainers = [Trainer(client, job) for job in JOBS]
            try:
                for number in range(COPIES):
                    time.sleep(moments.uniform(0.1, 0.8))  # the moment of the power loss, not a wait
                    acknowledged = {trainer.job: trainer.acknowledged for trainer in trainers}
                    copies.append((_freeze_copy(cluster, image, tmp_path / f"copy-{number}.img"), acknowledged))
            finally:
                for trainer in trainers:
                    trainer.stop()
            assert [trainer.failure for trainer in trainers] == [None] * len(trainers)
    assert all(copies[-1][1].values()), "nothing was acknowledged before the last copy"
    for copy, acknowledged in copies:
        print(f"{copy.name}: {acknowledged}")
        with mounted(copy, copy.with_suffix(".mnt")) as folder:
            for leftover in folder.glob("*/run.json"):
                leftover.unlink()  # says that the daemons of the machine that lost its power run
            returned = make_cluster(folder)
            try:
                returned.start()
                _check(returned, acknowledged)
            finally:
                for daemon in [*returned.nodes, returned.controller]:
                    if daemon.process and daemon.process.poll() is None:
                        daemon.kill()
        copy.unlink()


def _stands_still(pid: int) -> bool:
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def _freeze_copy(cluster: LocalCluster, image: Path, copy: Path) -> Path:
    """What the disk has at one moment. The daemons stand still, or the copy would be of many moments, which no disk
    ever shows; what the kernel was not asked to write stays out of it.
    """
    for daemon in [*cluster.nodes, cluster.controller]:
        daemon.freeze()
    try:
        for daemon in [*cluster.nodes, cluster.controller]:
            wait_for(lambda pid=daemon.pid: _stands_still(pid), "the system calls under way to end")
        subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    finally:
        for daemon in [*cluster.nodes, cluster.controller]:
            daemon.thaw()
    return copy
