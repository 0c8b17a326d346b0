"""Everything dies and freezes at random while jobs save: what was acknowledged stays, whole, and nothing else appears.

A model of what was acknowledged is kept outside of the cluster, and compared with it at the end. The seed decides what
is done to whom; it is printed, and SDRS_TORTURE_SEED sets it. ``make soak`` runs the long form.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import sdrs
from sdrs import errors
from sdrs_core.checkpoints import Save
from sdrs_proto.v1.control_pb2 import ListShardsRequest
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.states import make_state, same
from tests.support.waiting import wait_for

WORLD_SIZE = 2
KEPT_COUNT = 6
GRACE_SECONDS = 2.0
MAX_PAUSE_SECONDS = 2.5
# Small ones go by gRPC, the others over the data channel.
SIZES_BYTES = (50_000, 1_500_000, 5_000_000)

# One rank: it saves step after step, says what was acknowledged, and gives up at the first failure.
TRAINER = """
import sys
import sdrs
from sdrs import errors
from tests.faults.test_torture import WORLD_SIZE, state_of
url, job, pool, attempt, rank, step = sys.argv[1:]
step = int(step)
try:
    with sdrs.connect(url, timeout_seconds=15) as cluster:
        ckpts = cluster.checkpoints(job, pool=pool, attempt=f"run:{attempt}")
        while True:
            state = state_of(job, int(attempt), step, int(rank))
            saving = ckpts.save(step=step, state=state, rank=int(rank), world_size=WORLD_SIZE)
            state["weights"][:] = 0  # what was staged is a copy
            saving.wait(timeout=30)
            print("acknowledged", step, flush=True)
            step += 1
except errors.SdrsError as error:
    print("failed", step, type(error).__name__, error, flush=True)
    sys.exit(1)
"""


def state_of(job: str, attempt: int, step: int, rank: int) -> dict[str, object]:
    seed = ((len(job) * 1000 + attempt) * 100_000 + step) * 10 + rank
    return make_state(seed, SIZES_BYTES[(step + rank) % len(SIZES_BYTES)])


@dataclass
class JobUnderTorture:
    """A job's processes, and what they were told. ``acknowledged``: step → the newest attempt that was."""

    name: str
    pool: str
    attempt: int = 0
    ranks: list[subprocess.Popen[str]] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)

    def start(self, url: str, redo: bool) -> None:
        """The next attempt goes on after the newest acknowledged step, or saves that one again."""
        self.attempt += 1
        first = max(self.acknowledged, default=0) + (0 if redo and self.acknowledged else 1)
        arguments = [url, self.name, self.pool, str(self.attempt)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINER, *arguments, str(rank), str(first)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            for rank in range(WORLD_SIZE)
        ]
        self.readers = [
            threading.Thread(target=self._listen, args=(process, self.attempt), daemon=True) for process in self.ranks
        ]
        for reader in self.readers:
            reader.start()

    def _listen(self, process: subprocess.Popen[str], attempt: int) -> None:
        assert process.stdout
        for line in process.stdout:
            self.said.append(f"attempt {attempt}: {line.rstrip()}")
            if line.startswith("acknowledged "):
                step = int(line.split()[1])
                self.acknowledged[step] = max(attempt, self.acknowledged.get(step, 0))

    def kill(self) -> None:
        for process in self.ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for reader in self.readers:
            reader.join()
        for process in self.ranks:
            assert process.stdout
            process.stdout.close()

    def tracebacks(self) -> list[str]:
        return [line for line in self.said if "Traceback" in line]


class Torture:
    def __init__(self, cluster: LocalCluster, client: sdrs.Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.client = client
        self.chance = chance
        self.jobs = [JobUnderTorture("all", "default"), JobUnderTorture("newest", "kept")]
        self.deleted: set[int] = set()  # steps of the first job; those whose deletion was not answered too
        self.done: list[str] = []

    def run(self, seconds: float) -> None:
        for job in self.jobs:
            job.start(self.cluster.url, redo=False)
        try:
            wait_for(lambda: all(job.acknowledged for job in self.jobs), "both jobs to have something to lose")
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(self.chance.uniform(0.05, 0.5))  # the moment of the next blow, not a wait
                self._revive_jobs()
                self._strike()
        finally:
            for job in self.jobs:
                job.kill()

    def _revive_jobs(self) -> None:
        for job in self.jobs:
            if any(process.poll() is not None for process in job.ranks):
                job.kill()
                job.start(self.cluster.url, redo=self.chance.random() < 0.5)

    def _strike(self) -> None:
        daemons = [self.cluster.controller, *self.cluster.nodes]
        blows: list[tuple[int, Callable[[], None]]] = [
            (3, lambda: self._restart(self.chance.choice(daemons))),
            (2, lambda: self._restart_all(daemons)),
            (3, lambda: self._freeze([self.chance.choice(daemons).pid])),
            (1, lambda: self._freeze([daemon.pid for daemon in daemons])),
            (2, self._kill_rank),
            (1, lambda: self._freeze([p.pid for p in self.chance.choice(self.jobs).ranks if p.poll() is None])),
            (3, self._delete),
            (3, self._undelete),
            (4, self._read),
            (2, self._verify),
        ]
        [(_, blow)] = self.chance.choices(blows, [weight for weight, _ in blows])
        blow()

    def _restart(self, daemon: DaemonProcess) -> None:
        self.done.append(f"kill {daemon.name}")
        daemon.kill()
        daemon.start(wait=daemon is self.cluster.controller)

    def _restart_all(self, daemons: list[DaemonProcess]) -> None:
        self.done.append("kill all")
        for daemon in daemons:
            daemon.kill()
        for daemon in daemons:
            daemon.start(wait=daemon is self.cluster.controller)

    def _freeze(self, pids: list[int]) -> None:
        self.done.append(f"freeze {pids}")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.1, MAX_PAUSE_SECONDS))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def _kill_rank(self) -> None:
        process = self.chance.choice(self.chance.choice(self.jobs).ranks)
        if process.poll() is None:
            self.done.append("kill rank")
            process.kill()
            process.wait()

    def _old_step(self) -> int | None:
        """One that no attempt will save again."""
        steps = sorted(self.jobs[0].acknowledged)[:-3]
        return self.chance.choice(steps) if steps else None

    def _delete(self) -> None:
        step = self._old_step()
        if step is not None and step not in self.deleted:
            self.deleted.add(step)
            self._try(f"delete {step}", lambda: self.client.checkpoints("all").delete(step))

    def _undelete(self) -> None:
        if self.deleted:
            step = max(self.deleted)  # deleted last, most likely: others are beyond their grace
            if self._try(f"undelete {step}", lambda: self.client.checkpoints("all").undelete(step)):
                self.deleted.discard(step)

    def _read(self) -> None:
        step = self._old_step()
        if step is not None:
            self._try(f"read {step}", lambda: self.check_bytes(self.jobs[0], step))

    def _verify(self) -> None:
        step = self._old_step()
        if step is not None:
            self._try(f"verify {step}", lambda: self._check_verified(step))

    def _check_verified(self, step: int) -> None:
        found = self.client.checkpoints("all").verify(step)
        assert all(p.undecided for p in found.problems) or step in self.deleted, found

    def _try(self, what: str, work: Callable[[], object]) -> bool:
        """What is asked while daemons die may fail, by an error that says so."""
        try:
            work()
        except errors.CorruptDataError:
            raise
        except errors.SdrsError as error:
            self.done.append(f"{what}: {type(error).__name__}: {error}")
            return False
        self.done.append(what)
        return True

    def check_bytes(self, job: JobUnderTorture, step: int) -> None:
        """Every rank's part is that of one attempt, which is the acknowledged one or a later one."""
        ckpts = self.client.checkpoints(job.name, pool=job.pool)
        acknowledged = job.acknowledged.get(step, 1)
        parts = [ckpts.restore(step=step, rank=rank) for rank in range(WORLD_SIZE)]
        assert any(
            all(same(part, state_of(job.name, attempt, step, rank)) for rank, part in enumerate(parts))
            for attempt in range(acknowledged, job.attempt + 1)
        ), f"step {step} of {job.name} is not what attempt {acknowledged} or a later one saved"

    def check_all(self) -> None:
        for job in self.jobs:
            assert not job.tracebacks(), job.said[-20:]
            ckpts = self.client.checkpoints(job.name, pool=job.pool)
            present = {save.step for save in self._readable(job)}
            expected = sorted(job.acknowledged)
            if job.pool == "kept":
                expected = expected[-KEPT_COUNT + 1 :]  # one may be committed beyond what was acknowledged
            missing = {step for step in expected if step not in present}
            assert missing <= (self.deleted if job.name == "all" else set()), f"{job.name} lost {missing}"
            for step in present:
                self.check_bytes(job, step)
                assert ckpts.verify(step).ok

    def check_leftovers(self) -> None:
        wait_for(lambda: self.client.info().pending_save_count == 0, "the last saves to end", 60)
        wait_for(lambda: self._fragments() == self._named(), "the leftovers to go, and nothing else", 60)

    def _fragments(self) -> set[str]:
        return {path.name.split(".")[0] for path in self.cluster.fragments()}

    def _named(self) -> set[str]:
        control = self.client.process().control
        saves = [save for job in self.jobs for save in self._readable(job)]
        # By id: older generations of a step are kept too.
        requests = [ListShardsRequest(save_id=save.save_id, page_size=20) for save in saves]
        pages = [page for request in requests for page in control.pages("list_shards", request)]
        return {blob.id for page in pages for shard in page.shards for blob in shard.blobs}

    def _readable(self, job: JobUnderTorture) -> list[Save]:
        saves = self.client.checkpoints(job.name, pool=job.pool).list(all_states=True)
        return [save for save in saves if save.state.is_readable]


def torture(folder: Path, seconds: float) -> None:
    seed = int(os.environ.get("SDRS_TORTURE_SEED", random.SystemRandom().randrange(2**32)))
    print(f"SDRS_TORTURE_SEED={seed}")
    settings = {"grace_seconds": GRACE_SECONDS, "save_ttl_seconds": 2, "suspect_after_seconds": 0.5}
    with (
        running_cluster(folder, node_count=2, controller=settings) as cluster,
        cluster.connect(timeout_seconds=5) as client,
    ):
        client.create_pool("kept", keep_last=KEPT_COUNT)
        blows = Torture(cluster, client, random.Random(seed))
        try:
            blows.run(seconds)
            cluster.wait_until_up()
            blows.check_leftovers()  # first: what goes with them must not be what was acknowledged
            blows.check_all()
        finally:
            print("\n".join(blows.done))
            for job in blows.jobs:
                print(f"{job.name}: {len(job.acknowledged)} acknowledged in {job.attempt} attempts")
        for daemon in [cluster.controller, *cluster.nodes]:
            assert "Traceback" not in daemon.log_path.read_text(), f"{daemon.name} had a defect: {daemon.log_path}"


def test_nothing_acknowledged_is_lost_whatever_dies(tmp_path: Path) -> None:
    torture(tmp_path, 2.5)


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_whatever_dies_for_long(tmp_path: Path) -> None:
    torture(tmp_path, float(os.environ.get("SDRS_SOAK_SECONDS", "180")))
