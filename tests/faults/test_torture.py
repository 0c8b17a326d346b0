"""Everything dies and freezes at random while jobs save: what was acknowledged stays, whole, and nothing else appears.

A model of what was acknowledged is kept outside of the cluster, and compared with it at the end. The seed decides what
is done to whom; it is printed, and SDRS_TORTURE_SEED sets it. ``make soak`` runs the long form.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import sdrs
from sdrs import errors
from sdrs_core.checkpoints import Save
from sdrs_proto.v1.control_pb2 import ListShardsRequest
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.states import same
from tests.support.tortured_job import WORLD_SIZE, JobUnderTorture, state_of
from tests.support.waiting import wait_for

KEPT_COUNT = 6
# Beyond all that jobs come to.
LAST_STEP = 1_000_000
GRACE_SECONDS = 2.0
MAX_PAUSE_SECONDS = 2.5


@dataclass(frozen=True)
class Form:
    """What is tortured: a cluster whose pools have this level."""

    level: str
    node_count: int


ONE_COPY = Form("L1", 2)
MIRRORS = Form("L2", 4)


class Torture:
    def __init__(self, cluster: LocalCluster, client: sdrs.Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.client = client
        self.chance = chance
        self.jobs = [JobUnderTorture("all", "every"), JobUnderTorture("newest", "kept")]
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
            (3, self._kill_some_for_a_while),
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

    def _kill_some_for_a_while(self) -> None:
        """Half of the nodes at most: the others notice, and go on if the level lets them."""
        victims = self.chance.sample(self.cluster.nodes, self.chance.randint(1, len(self.cluster.nodes) // 2))
        self.done.append(f"kill {', '.join(node.name for node in victims)} for a while")
        for node in victims:
            node.kill()
        time.sleep(self.chance.uniform(0.1, MAX_PAUSE_SECONDS))
        for node in victims:
            node.start(wait=False)

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
        for job in self.jobs:
            # P13: what a daemon has sealed does not expire, it waits for its other ranks. The next attempt ends it.
            ckpts = self.client.checkpoints(job.name, pool=job.pool, attempt=f"run:{job.attempt + 1}")
            ckpts.save(step=LAST_STEP, state={}).wait()
            ckpts.delete(LAST_STEP)
        wait_for(lambda: self.client.info().pending_save_count == 0, "the last saves to end", 60)
        wait_for(lambda: self.client.info().degraded_blob_count == 0, "all copies to be made again", 60)
        wait_for(lambda: self._fragments() == self._named(), "the leftovers to go, and nothing else", 60)

    def _fragments(self) -> set[tuple[str, str]]:
        """Each as (node, blob)."""
        paths = [path.relative_to(self.cluster.folder) for path in self.cluster.fragments()]
        return {(path.parts[0], path.name.split(".")[0]) for path in paths}

    def _named(self) -> set[tuple[str, str]]:
        control = self.client.process().control
        saves = [save for job in self.jobs for save in self._readable(job)]
        # By id: older generations of a step are kept too.
        requests = [ListShardsRequest(save_id=save.save_id, page_size=20) for save in saves]
        pages = [page for request in requests for page in control.pages("list_shards", request)]
        blobs = [blob for page in pages for shard in page.shards for blob in shard.blobs]
        return {(holder.node_id, blob.id) for blob in blobs for holder in blob.holders}

    def _readable(self, job: JobUnderTorture) -> list[Save]:
        saves = self.client.checkpoints(job.name, pool=job.pool).list(all_states=True)
        return [save for save in saves if save.state.is_readable]


def torture(folder: Path, form: Form, seconds: float) -> None:
    seed = int(os.environ.get("SDRS_TORTURE_SEED", random.SystemRandom().randrange(2**32)))
    print(f"SDRS_TORTURE_SEED={seed}")
    settings = {
        "grace_seconds": GRACE_SECONDS,
        "save_ttl_seconds": 2,
        "suspect_after_seconds": 0.5,
        "settle_seconds": 1,
        "repair_after_seconds": 1,
        "repair_last_copy_after_seconds": 0.5,
        "repair_interval_seconds": 1,
    }
    with (
        running_cluster(folder, node_count=form.node_count, controller=settings) as cluster,
        cluster.connect(timeout_seconds=5) as client,
    ):
        client.create_pool("every", form.level)
        client.create_pool("kept", form.level, keep_last=KEPT_COUNT)
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
    torture(tmp_path, ONE_COPY, 2.5)


def test_nothing_acknowledged_is_lost_whatever_dies_of_a_mirrored_cluster(tmp_path: Path) -> None:
    torture(tmp_path, MIRRORS, 5)


@pytest.mark.soak
@pytest.mark.parametrize("form", [ONE_COPY, MIRRORS], ids=lambda form: form.level)
def test_nothing_acknowledged_is_lost_whatever_dies_for_long(tmp_path: Path, form: Form) -> None:
    torture(tmp_path, form, float(os.environ.get("SDRS_SOAK_SECONDS", "180")))
