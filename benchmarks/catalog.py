"""The control plane: commits a second, and a checkpoint of a thousand ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.processes import AS_DEPLOYED
from benchmarks.results import Result
from tests.support.cluster import running_cluster

JOBS, SAVES_EACH = 16, 25
RANKS = 1000


def commits_per_second(folder: Path) -> Iterator[Result]:
    """Small checkpoints of many jobs at once, each durable and committed, against bare fsyncs one after another."""
    state = {"weights": np.ones(256), "step": 1}
    with running_cluster(folder, node_count=2, controller=AS_DEPLOYED) as cluster, cluster.connect() as client:

        def save_all(job: int) -> None:
            ckpts = client.checkpoints(f"job-{job}")
            for step in range(SAVES_EACH):
                ckpts.save(step=step, state=state).wait()

        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(save_all, range(JOBS)))  # warm
        start = time.perf_counter()
        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(save_all, range(JOBS, 2 * JOBS)))
        rate = JOBS * SAVES_EACH / (time.perf_counter() - start)
    raw_rate = 400 / raw.sync_small_writes(folder / "raw", 400)
    yield Result("commits_per_second", rate, "commits/s", "fsyncs of 512 bytes a second", rate / raw_rate)


def ranks_1000(folder: Path) -> Iterator[Result]:
    """One checkpoint of a thousand ranks with small shards, from the first rank's save to the commit."""
    with running_cluster(folder, node_count=3, controller=AS_DEPLOYED) as cluster, cluster.connect() as client:
        ckpts = client.checkpoints("wide", attempt="bench:1")

        def save(rank: int) -> None:
            state = {"rank": rank, "shard": np.full(1024, rank)}
            ckpts.save(step=1, state=state, rank=rank, world_size=RANKS).wait()

        start = time.perf_counter()
        with ThreadPoolExecutor(RANKS) as pool:
            list(pool.map(save, range(RANKS)))
        elapsed = time.perf_counter() - start
        assert ckpts.latest() is not None
    yield Result("ranks_1000", elapsed, "s", "1,000 ranks, one commit")
