"""Checkpoints of a real cluster go into a bucket, and can be read from it bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sdrs
from sdrs.backups import Run, RunKind, Selection
from sdrs_core.backup.targets import Keep, Policy, Target
from sdrs_core.errors import RefusedError
from sdrs_core.ids import PoolName
from tests.support.backed_up import BucketView, finished
from tests.support.cluster import LocalCluster
from tests.support.s3_servers import S3Server, moto_s3, s3_server, seaweed_s3  # noqa: F401

MIB = 1 << 20


def state(seed: int, size: int = 3 * MIB) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"frozen": np.arange(2 * MIB, dtype=np.uint8), "weights": rng.integers(0, 256, size, dtype=np.uint8)}


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with shared_cluster.connect() as connected:
        yield connected


@pytest.fixture
def target(cluster: sdrs.Cluster, moto_s3: S3Server, tmp_path: Path) -> Iterator[Target]:  # noqa: F811
    added = cluster.backups.add_target(moto_s3.target(tmp_path, name=f"nas-{tmp_path.name[:40]}"))
    yield added
    cluster.backups.remove_target(added.name)


def back_up(cluster: sdrs.Cluster, target: Target, **selection: object) -> Run:
    return finished(cluster, cluster.backups.start(RunKind.BACKUP, target.name, Selection(**selection)))  # type: ignore[arg-type]


def test_a_backed_up_checkpoint_is_in_the_bucket_bit_for_bit(cluster: sdrs.Cluster, target: Target) -> None:
    cluster.checkpoints("whole").save(step=1, state=state(1)).wait()
    run = back_up(cluster, target, job="whole")
    assert (run.failure, run.done_checkpoints) == ("", 1)
    [backup] = cluster.backups.list("whole", target=target.name)
    assert (backup.step, backup.in_cluster) == (1, True)
    with BucketView(target) as view:
        assert view.restorable() == {backup.save_id}
