"""Ranks of torch.distributed on this machine: processes that meet over gloo and run one function.

They are forked from a server that has torch loaded, so that four of them cost one import.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

_SECONDS = 60
_PRELOADED = ["torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "grpc", "numpy"]


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def run_ranks(
    count: int,
    work: Callable[..., Any],
    folder: Path,
    *arguments: Any,
    may_die: tuple[int, ...] = (),
    **environment: str,
) -> list[Any]:
    """What ``work(rank, *arguments)`` returned on each rank, or the text of what it raised."""
    context = _context()
    results = context.Queue()
    meeting = folder / f"meeting-{time.monotonic_ns()}"
    ranks = [
        context.Process(target=_run, args=(rank, count, meeting, environment, results, work, arguments))
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    told: dict[int, Any] = {}
    deadline = time.monotonic() + _SECONDS
    while len(told) + len(may_die) < count and time.monotonic() < deadline:
        try:
            rank, result = results.get(timeout=0.2)
            told[rank] = result
        except queue.Empty:
            gone = [rank for rank, process in enumerate(ranks) if process.exitcode is not None and rank not in told]
            if set(gone) - set(may_die) and results.empty():
                break
    for process in ranks:
        process.join(max(0.1, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
    results.close()
    missing = set(range(count)) - set(told) - set(may_die)
    assert not missing, f"ranks {missing} ended without a result, the others told {told}"
    return [told.get(rank) for rank in range(count)]


def _run(
    rank: int,
    count: int,
    meeting: Path,
    environment: dict[str, str],
    results: Any,
    work: Callable[..., Any],
    arguments: Any,
) -> None:
    import torch
    from torch import distributed

    for name in ("SDRS_ATTEMPT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    torch.set_num_threads(1)
    store = distributed.FileStore(str(meeting), count)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=30))
    try:
        result = work(rank, *arguments)
    except BaseException as error:
        result = f"{error}\n{traceback.format_exc()}"
    results.put((rank, result))
    results.close()
    results.join_thread()
    # Without destroy_process_group: a rank whose fellows died would wait for them.
    os._exit(0)
