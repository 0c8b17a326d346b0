"""fsspec's own abstract tests, on real daemons: copy, get, put, open, pipe."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from sdrs.fsspec import SdrsFileSystem
from tests.support.cluster import LocalCluster, running_cluster


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class SdrsFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, one_node: LocalCluster) -> SdrsFileSystem:
        return SdrsFileSystem(one_node.address)

    @pytest.fixture
    def fs_path(self) -> str:
        return "suite/1"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False  # as in object stores: a folder is there because of what is in it


def _at_once(scenario: str) -> Callable[..., str]:
    """The files of a scenario in one transaction: a generation for each of them would only take longer."""

    def make(self: AbstractFixtures, some_fs: Any, some_join: Any, some_path: Any) -> str:
        with some_fs.transaction:
            source: str = getattr(AbstractFixtures, scenario)(self, some_fs, some_join, some_path)
        return source

    return make


for _name in (
    "_glob_edge_cases_files",
    "_bulk_operations_scenario_0",
    "_dir_and_file_with_same_name_prefix",
    "_10_files_with_hashed_names",
):
    setattr(SdrsFixtures, _name, _at_once(_name))


class TestCopy(AbstractCopyTests, SdrsFixtures):
    test_copy_glob_edge_cases = None  # TestGet has the same patterns, expanded by the same code


class TestGet(AbstractGetTests, SdrsFixtures):
    pass


class TestPut(AbstractPutTests, SdrsFixtures):
    # The patterns of these are expanded by the local file system, and what they write the other tests write too.
    test_put_glob_edge_cases = None


class TestOpen(AbstractOpenTests, SdrsFixtures):
    pass


class TestPipe(AbstractPipeTests, SdrsFixtures):
    pass
