"""What saving costs the host: processor time for each GiB, and the daemons' memory beyond the staged bytes.

Each level by both ways: staged in the daemon of the host, and streamed straight from the process's memory. All in one
cluster, taking turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import raw
from benchmarks.l1 import saver
from benchmarks.processes import AS_DEPLOYED, STAGED, watching
from benchmarks.results import Result, alternate
from tests.support.cluster import running_cluster

GIB = raw.GIB
ROUNDS = 5
MEMORY_AIM_BYTES = 512 << 20
# By pool: what creates it.
POOLS: dict[str, tuple[str, dict[str, object]]] = {
    "l1": ("L1", {}),
    "l2": ("L2", {"mirrors": 2}),
    "l3": ("L3", {"ec": "4+2"}),
}
# By way: the staging that the process allows; None is as it comes.
WAYS: dict[str, int | None] = {"staged": None, "streamed": 0}


def save_costs(folder: Path, *, size_bytes: int = GIB, rounds: int = ROUNDS) -> Iterator[Result]:
    """``size_bytes`` and ``rounds`` are for a quick look."""
    arrays = raw.arrays_of(size_bytes, 16)
    state = {f"layer{index}": array for index, array in enumerate(arrays)}
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(folder, node_count=6, controller=AS_DEPLOYED, node=STAGED))
        clients = {
            way: stack.enter_context(cluster.connect(staging_bytes=staging_bytes))
            for way, staging_bytes in WAYS.items()
        }
        for pool, (level, options) in POOLS.items():
            clients["staged"].create_pool(pool, level, **options)
        savers = {
            (pool, way): saver(cluster, client.checkpoints(f"bench-{pool}-{way}", pool=pool), state, level)
            for pool, (level, _) in POOLS.items()
            for way, client in clients.items()
        }
        for save, cpu in savers.values():
            save()
            cpu.clear()  # buffers and connections are warm from here on
        memory: dict[tuple[str, str], list[int]] = {path: [] for path in savers}

        def watched(path: tuple[str, str]) -> float:
            with watching(*(node.pid for node in cluster.nodes)) as peaks:
                elapsed = savers[path][0]()
            memory[path].append(max(peak.peak_bytes for peak in peaks))
            return elapsed

        alternate(rounds, *(lambda path=path: watched(path) for path in savers))  # type: ignore[misc]
    for (pool, way), (_, cpu) in savers.items():
        per_gib = statistics.median(cpu) * GIB / size_bytes
        most_bytes = max(memory[pool, way])
        yield Result(f"save_cost_{pool}_{way}_cpu", per_gib, "CPU s/GiB", "client and daemons together")
        yield Result(
            f"save_cost_{pool}_{way}_memory",
            most_bytes,
            "bytes",
            "512 MiB, which no daemon may need beyond what is staged",
            most_bytes / MEMORY_AIM_BYTES,
        )
