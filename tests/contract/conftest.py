from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.etcd import EtcdCluster, needs_etcd, running_etcd
from tests.support.executors import Bench, local_bench, memory_bench, slurm_bench
from tests.support.metastores import Stores
from tests.support.s3_servers import moto_s3, s3_server, seaweed_s3
from tests.support.slurm import SlurmCluster, needs_slurm, running_slurm

BENCHES = {"memory": memory_bench, "local": local_bench}

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


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[SlurmCluster]:
    """One Slurm for all tests of the contract: runs are told apart by their folders."""
    with running_slurm() as slurm:
        yield slurm


def _bench(request: pytest.FixtureRequest, folder: Path) -> AbstractContextManager[Bench]:
    if request.param == "slurm":
        return slurm_bench(folder, request.getfixturevalue("shared_slurm"))
    return BENCHES[request.param](folder)


@pytest.fixture(params=["memory", "local", pytest.param("slurm", marks=needs_slurm)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """An executor of each kind."""
    with _bench(request, tmp_path) as bench:
        yield bench


@pytest.fixture(params=["local", pytest.param("slurm", marks=needs_slurm)])
def real_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Those that start real processes."""
    with _bench(request, tmp_path) as bench:
        yield bench
