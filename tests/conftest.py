from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import LocalCluster, running_cluster


@pytest.fixture
def local_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """One controller and two nodes."""
    with running_cluster(tmp_path, node_count=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The same for a whole module, where tests use job names of their own and break nothing."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), node_count=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def armed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One controller and one node that die or fail where the file ``points`` in the cluster's folder says."""
    folder = tmp_path_factory.mktemp("armed")
    with running_cluster(folder, environment={"SDRS_FAULT_POINTS": str(folder / "points")}) as cluster:
        yield cluster
