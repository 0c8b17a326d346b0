from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import EtcdCluster, needs_etcd, running_etcd
<<<<<<< HEAD
from tests.support.executors import Bench, local_bench, memory_bench
=======
from tests.support.executors import Bench, memory_bench, slurm_bench
>>>>>>> slurm
from tests.support.metastores import Stores
from tests.support.s3_servers import moto_s3, s3_server, seaweed_s3
from tests.support.slurm import needs_slurm

# Slurm and its like come in here, and into the params of both fixtures.
<<<<<<< HEAD
BENCHES = {"memory": memory_bench, "local": local_bench}
=======
BENCHES = {"memory": memory_bench, "slurm": slurm_bench}
>>>>>>> slurm

__all__ = ["moto_s3", "s3_server", "seaweed_s3"]


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One etcd for all tests of the contract, each under prefixes of its own."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(params=["memory", "sqlite", pytest.param("etcd", marks=needs_etcd)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    endpoints = request.getfixturevalue("shared_etcd").endpoints if request.param == "etcd" else []
    return Stores(request.param, tmp_path, endpoints)


<<<<<<< HEAD
@pytest.fixture(params=["memory", "local"])
=======
@pytest.fixture(params=["memory", pytest.param("slurm", marks=needs_slurm)])
>>>>>>> slurm
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """An executor of each kind."""
    with BENCHES[request.param](tmp_path) as bench:
        yield bench


<<<<<<< HEAD
@pytest.fixture(params=["local"])
=======
@pytest.fixture(params=[pytest.param("slurm", marks=needs_slurm)])
>>>>>>> slurm
def real_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Those that start real processes."""
    with BENCHES[request.param](tmp_path) as bench:
        yield bench
