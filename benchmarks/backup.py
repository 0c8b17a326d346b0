"""Backup to and import from a real S3 server, against plain boto3 transfers of the same bytes with the same server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import raw
from benchmarks.processes import AS_DEPLOYED, watching
from benchmarks.results import Result
from benchmarks.seaweed import BUCKET, is_installed, running_seaweed
from sdrs import Cluster
from sdrs.backups import Run
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Target, TargetName
from tests.support.cluster import running_cluster

SIZE_BYTES = 512 << 20
BLOBS = 8
ROUNDS = 4
_TARGET = TargetName("bench")
_POLL_SECONDS = 0.02


def _run(cluster: Cluster, kind: RunKind, selection: Selection | None = None) -> Run:
    begun = cluster.backups.start(kind, _TARGET, selection)
    while True:
        found = cluster.backups.runs(_TARGET)[0]
        if found.id == begun.id and not found.is_under_way:
            assert not found.failure, found.failure
            assert not found.problems, found.problems
            return found
        time.sleep(_POLL_SECONDS)


def _seconds(start: float) -> float:
    return time.perf_counter() - start


def backup(folder: Path) -> Iterator[Result]:
    """Rounds take turns; each saves, backs up and uploads bytes that the server has never seen."""
    if not is_installed():
        return
    for name in ("one", "two"):
        (folder / name).mkdir()
    with running_seaweed(folder / "seaweed") as server:
        client = server.client
        credentials = folder / "credentials.json"
        credentials.touch(mode=0o600)
        credentials.write_text(json.dumps(server.credentials))
        target = Target(
            _TARGET, BUCKET, prefix="sdrs", endpoint=client.meta.endpoint_url, credentials=f"file:{credentials}"
        )
        up: list[tuple[float, float]] = []
        down: list[tuple[float, float]] = []
        with running_cluster(folder / "one", node_count=1, controller=AS_DEPLOYED) as one, one.connect() as cluster:
            cluster.backups.add_target(target)
            ckpts = cluster.checkpoints("bench")
            with watching(one.controller.pid, *(node.pid for node in one.nodes)) as peaks:
                for step in range(ROUNDS):
                    arrays = raw.arrays_of(SIZE_BYTES, BLOBS, seed=step)
                    ckpts.save(step=step, state={f"layer{index}": a for index, a in enumerate(arrays)}).wait()
                    # In turns: the server is slower for whoever comes first after a while.
                    if step % 2:
                        theirs = _plain_upload(client, folder, step, arrays)
                        up.append((_backup_seconds(cluster), theirs))
                    else:
                        ours = _backup_seconds(cluster)
                        up.append((ours, _plain_upload(client, folder, step, arrays)))
                grown_bytes = max(peak.grown_bytes for peak in peaks)
            again = _run(cluster, RunKind.BACKUP)
        with running_cluster(folder / "two", node_count=1, controller=AS_DEPLOYED) as two, two.connect() as cluster:
            cluster.backups.add_target(target)
            for step in range(ROUNDS):
                start = time.perf_counter()
                _run(cluster, RunKind.IMPORT, Selection(job="bench", step=step))
                down.append((_seconds(start), _plain_download(client, folder, step)))
    for name, pairs in (("backup_upload", up), ("backup_import", down)):
        ours, theirs = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
        yield Result(name, SIZE_BYTES / ours / 1e9, "GB/s", "boto3 of the same bytes, same server", theirs / ours)
    yield Result("backup_again_bytes", again.moved_bytes, "bytes", "nothing changed: of the first", again.moved_bytes)
    yield Result("backup_rss_bytes", grown_bytes, "bytes", "512 MiB", grown_bytes / (512 << 20))


def _backup_seconds(cluster: Cluster) -> float:
    start = time.perf_counter()
    _run(cluster, RunKind.BACKUP)
    return _seconds(start)


def _plain_upload(client: Any, folder: Path, step: int, arrays: list[Any]) -> float:
    """From files, as the daemon has them; one after the other, each in parallel parts, as boto3 does by itself."""
    files = []
    for index, array in enumerate(arrays):
        file = folder / f"plain-{step}-{index}"
        file.write_bytes(memoryview(array).cast("B"))
        files.append(file)
    start = time.perf_counter()
    for file in files:
        client.upload_file(str(file), BUCKET, file.name)
    return _seconds(start)


def _plain_download(client: Any, folder: Path, step: int) -> float:
    """Into files that are durable in the end, as an import's are."""
    start = time.perf_counter()
    for index in range(BLOBS):
        file = folder / f"back-{step}-{index}"
        client.download_file(BUCKET, f"plain-{step}-{index}", str(file))
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    return _seconds(start)
