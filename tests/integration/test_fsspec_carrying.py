"""Files that a write leaves alone stay where they are stored: in the blobs of earlier generations."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import sdrs
from sdrs.fsspec import SdrsFileSystem, carrying, writing
from sdrs.fsspec.contents import Spool
from sdrs.fsspec.generations import Shards
from sdrs.fsspec.trees import Put
from sdrs.fsspec.writing import StepWriter
from sdrs_core.checkpoints import Save
from tests.support.cluster import LocalCluster

MIB = 1 << 20
KIB = 1 << 10


@pytest.fixture
def fs(shared_cluster: LocalCluster) -> SdrsFileSystem:
    return SdrsFileSystem(shared_cluster.address)


def random_bytes(seed: int, size_bytes: int) -> bytes:
    return np.random.default_rng(seed).bytes(size_bytes)


def newest(fs: SdrsFileSystem, job: str, step: int) -> Save:
    return fs.cluster.checkpoints(job).get(step)


@pytest.mark.parametrize("large_bytes", [5 * MIB, 20 * MIB], ids=["in a pack", "in a blob of its own"])
def test_a_small_file_beside_a_large_one_stores_itself_and_reads_nothing_of_the_other(
    fs: SdrsFileSystem, monkeypatch: pytest.MonkeyPatch, large_bytes: int
) -> None:
    job = f"beside-{large_bytes}"
    large = random_bytes(1, large_bytes)
    fs.pipe({f"{job}/1/large": large, f"{job}/2/later": b"the newest step is another one"})
    read_bytes = []
    fetch = Shards._fetch

    def counted(self: Shards, rank: int, ordinal: int, start: int, end: int) -> bytearray:
        read_bytes.append(end - start)
        return fetch(self, rank, ordinal, start, end)

    monkeypatch.setattr(Shards, "_fetch", counted)
    for number in range(3):
        fs.pipe(f"{job}/1/small-{number}", bytes(KIB))
        assert newest(fs, job, 1).stored_bytes < (number + 3) * KIB
    fs.mv(f"{job}/1/large", f"{job}/1/renamed")
    assert newest(fs, job, 1).stored_bytes < 8 * KIB
    assert sum(read_bytes) < 64 * KIB
    fs.cp(f"{job}/1/renamed", f"{job}/1/copy")
    assert fs.cat(f"{job}/1/renamed") == fs.cat(f"{job}/1/copy") == large


def test_files_of_many_generations_come_back_as_they_were(fs: SdrsFileSystem, tmp_path: Path) -> None:
    wanted = {f"f{number}": random_bytes(number, 700 * KIB) for number in range(6)}
    for name, data in wanted.items():
        fs.pipe(f"many/1/{name}", data)
    fs.cp("many/1/f0", "many/1/copy")
    fs.rm("many/1/f1")
    with fs.open("many/1/f2", "ab") as file:
        file.write(b"more")
    fs.pipe("many/1/f3", b"another")
    fs.pipe("many/1/empty", b"")
    wanted |= {"copy": wanted["f0"], "f2": wanted["f2"] + b"more", "f3": b"another", "empty": b""}
    del wanted["f1"]
    assert {name.split("/")[-1]: fs.cat(name) for name in fs.find("many/1")} == wanted
    fs.cluster.checkpoints("many").restore_files(tmp_path, 1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == wanted


def test_a_blob_of_which_little_is_left_is_packed_anew(fs: SdrsFileSystem) -> None:
    data = random_bytes(3, 2 * MIB)
    fs.pipe({f"left/1/{name}": data for name in "abc"})
    packed_bytes = newest(fs, "left", 1).size_bytes
    fs.rm("left/1/a")
    assert newest(fs, "left", 1).stored_bytes < 4 * KIB
    assert newest(fs, "left", 1).size_bytes > packed_bytes - 4 * KIB
    fs.rm("left/1/b")
    assert newest(fs, "left", 1).size_bytes < 2 * MIB + 4 * KIB
    assert fs.cat("left/1/c") == data


def test_a_generation_refers_to_few_others_and_the_rest_is_packed_anew(
    fs: SdrsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "MAX_HOMES", 3)
    for number in range(6):
        fs.pipe(f"homes/1/{number}", random_bytes(number, MIB + (6 - number) * KIB))
        [shard] = fs.cluster.checkpoints("homes").shards(1)
        assert len({reference.home.save_id for reference in shard.references}) <= 3
    for number in range(6):
        assert fs.cat(f"homes/1/{number}") == random_bytes(number, MIB + (6 - number) * KIB)


def test_a_writer_that_was_overtaken_logs_no_failure_and_succeeds(
    fs: SdrsFileSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fs.pipe("overtaken/1/first", b"")
    monkeypatch.setattr(writing, "PATIENCE_SECONDS", 0.1)
    others = [StepWriter(*fs.connected, "overtaken", 1, pool=None, level=sdrs.Level.NONE)]

    def with_another(tree: writing.Tree) -> carrying.NewGeneration:
        while others:
            others.pop().write([Put(("other",), Spool(), 0)])
        return carrying.new_generation(tree)

    monkeypatch.setattr(writing, "new_generation", with_another)
    with caplog.at_level(logging.WARNING):
        fs.pipe("overtaken/1/mine", b"")
    assert fs.find("overtaken/1") == [f"overtaken/1/{name}" for name in ("first", "mine", "other")]
    assert caplog.records == []
