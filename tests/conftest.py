from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from sdrs.restore.staged import StagedCopies
from sdrs.transfer import staged_copy
from tests.support.cluster import LocalCluster, running_cluster

_READ_STAGED = StagedCopies.read
_PATIENT = {"GREETING_SECONDS": 20.0, "ANSWER_SECONDS": 20.0}


@pytest.fixture(scope="session", autouse=True)
def disks_are_read() -> Iterator[None]:
    """Tests save and restore on one host: what is still in memory would hide from them what is on disks."""
    with patch.object(StagedCopies, "read", lambda *_: None):
        yield


@pytest.fixture
def staged_first() -> Iterator[None]:
    """As it is outside of tests, except that a daemon on a busy machine is not left for disks."""
    with patch.object(StagedCopies, "read", _READ_STAGED), patch.multiple(staged_copy, **_PATIENT):
        yield


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
