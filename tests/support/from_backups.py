"""Clusters and the buckets that they are backed up to, from the side of whoever wants something back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import sdrs
from sdrs.backups import Run
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Target
from tests.support.backed_up import finished
from tests.support.cluster import LocalCluster


def back_up(cluster: sdrs.Cluster, target: Target, **selected: object) -> Run:
    run = finished(cluster, cluster.backups.start(RunKind.BACKUP, target.name, _selection(selected)))
    assert (run.failure, run.problems) == ("", ())
    return run


def bring_in(cluster: sdrs.Cluster, target: Target, **selected: object) -> Run:
    return finished(cluster, cluster.backups.start(RunKind.IMPORT, target.name, _selection(selected)))


def _selection(selected: dict[str, object]) -> Selection:
    return Selection(**selected)  # type: ignore[arg-type]


def of_another(cluster: sdrs.Cluster, target: Target) -> Target:
    """The same place as another cluster sees it, which only reads it."""
    return replace(target, source_cluster_id=cluster.info().id)


def wipe(cluster: LocalCluster) -> None:
    """All that nodes have, behind their backs."""
    for path in cluster.fragments():
        path.unlink()


def break_object(server_client: object, target: Target, key: str) -> None:
    """Other bytes of the same size."""
    client, name = server_client, f"{target.prefix}/{key}"
    whole = client.get_object(Bucket=target.bucket, Key=name)["Body"].read()  # type: ignore[attr-defined]
    client.put_object(Bucket=target.bucket, Key=name, Body=bytes(len(whole)))  # type: ignore[attr-defined]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
