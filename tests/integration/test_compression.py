"""Checkpoints that are stored compressed, on real daemons: at every level, by every way in and out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pytest

import sdrs
from sdrs import errors
from sdrs_core.checkpoints import Blob
from sdrs_core.ids import BlobId
from sdrs_storaged.store.fragment import read_contents
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.fragments import payload_of
from tests.support.states import MIB, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for

POOLS: dict[str, dict[str, Any]] = {
    "one": {"level": "L1"},
    "two": {"level": "L2", "mirrors": 2},
    "coded": {"level": "L3", "ec": "2+1"},
    "mirrored": {"level": "L3", "ec": "2+1", "mirror_pool": "two", "mirror_ratio": 1.0},
}
# Copied into the daemon's memory, which compresses; sent by this process, from its own copy or from where it lies.
WAYS: dict[str, dict[str, Any]] = {"staged": {}, "streamed": {"staging_bytes": 1}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    eager = {"repair_interval_seconds": 0.5}
    with running_cluster(tmp_path_factory.mktemp("compressed"), node_count=3, controller=eager) as cluster:
        with cluster.connect() as client:
            for name, wish in POOLS.items():
                client.create_pool(name, **wish)
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with cluster.connect() as client:
        yield client


def state(seed: int = 0) -> dict[str, Any]:
    """Two large arrays that shrink (float32 with the precision of bfloat16; mostly zeros), one that does not, and
    small ones.
    """
    random = np.random.default_rng(seed)
    rounded = random.standard_normal(5 * MIB).astype(np.float32).view(np.uint32) & 0xFFFF0000
    sparse = np.where(random.random(5 * MIB) < 0.05, random.standard_normal(5 * MIB), 0).astype(np.float32)
    noise = random.integers(0, 256, 17 * MIB + 5, np.uint8)
    return {
        "rounded": rounded.view(np.float32),
        "sparse": sparse,
        "noise": noise,
        "small": [np.arange(100), np.zeros((3, 5), np.float16)],
        "seed": seed,
    }


def packed_of(shard: Any) -> list[Blob]:
    return [blob for blob in shard.blobs if blob.packing]


@pytest.mark.parametrize(("pool", "way"), [("one", "staged"), ("two", "streamed"), ("coded", "staged")])
def test_what_shrinks_is_stored_small_and_comes_back_to_the_bit(cluster: LocalCluster, pool: str, way: str) -> None:
    told: list[tuple[int, int]] = []
    with cluster.connect(**WAYS[way]) as client:
        job = f"round-{pool}-{way}"
        checkpoints = client.checkpoints(job, pool=pool, attempt="run:1", compress="zstd")
        saved = checkpoints.save(1, state(), progress=lambda *done: told.append(done)).wait()
        assert told[-1] == (saved.size_bytes, saved.size_bytes)
        [shard] = checkpoints.shards(1)
        kinds = {blob.raw_bytes // MIB: bool(blob.packing) for blob in shard.blobs[1:]}
        assert kinds == {20: True, 17: False}, "what does not shrink is stored as it is"
        assert len(packed_of(shard)) == 2
        assert saved.size_bytes == sum(blob.raw_bytes for blob in shard.blobs) > 57 * MIB
        assert saved.stored_bytes == sum(blob.size_bytes for blob in shard.blobs) < 34 * MIB
        assert saved.level is checkpoints.get(1).level
        # The same again by the same attempt is the same, however it is stored.
        plain = client.checkpoints(job, pool=pool, attempt="run:1", compress="none")
        assert plain.save(1, state()).wait().save_id == saved.save_id
        # Reading needs no word about it.
        assert same(plain.restore(), state())
        target = {name: np.zeros_like(array) for name, array in state().items() if isinstance(array, np.ndarray)}
        plain.restore(into=target)
        assert all(target[name].tobytes() == state()[name].tobytes() for name in target)
        checked = plain.verify(1)
        assert checked
        assert checked.checked_bytes == saved.size_bytes
        opened = plain.open(1)
        start, raw = 7 * MIB + 3, state()["rounded"].tobytes()
        assert opened.read("rounded", start, start + 100) == raw[start : start + 100]
        assert opened.read("rounded", 3 * MIB - 1, 5 * MIB + 1) == raw[3 * MIB - 1 : 5 * MIB + 1]
        assert opened.read_bytes < 12 * MIB
        assert same(opened.array("sparse"), state()["sparse"])


@pytest.mark.parametrize(
    "compress", [("none", "zstd", "none"), ("zstd", "none", "zstd")], ids=["off first", "on first"]
)
def test_references_go_across_switching_it_on_and_off(
    client: sdrs.Cluster, compress: tuple[Literal["zstd", "none"], ...]
) -> None:
    job, frozen, large = f"switched-{compress[0]}", state(1)["rounded"], state(1)["sparse"]
    stored_bytes = {}
    for step, method in enumerate(compress, 1):
        checkpoints = client.checkpoints(job, pool="two", compress=method)
        # The frozen one stays, the other is only in the last.
        arrays = {"frozen": frozen, "step": step} | ({"large": large} if step == 3 else {})
        stored_bytes[step] = checkpoints.save(step, arrays).wait().stored_bytes
    [shard] = checkpoints.shards(3)
    [reference] = shard.references
    home = shard.blobs[reference.ordinal]
    assert (reference.home.step, reference.size_bytes) == (1, home.raw_bytes)
    assert bool(home.packing) is (compress[0] == "zstd")
    assert (stored_bytes[1] < 11 * MIB) is (compress[0] == "zstd")
    assert stored_bytes[2] < MIB, "what is unchanged was stored again"
    assert (stored_bytes[3] < 3 * MIB) is (compress[2] == "zstd")
    checkpoints.delete(1)
    assert same(checkpoints.restore(2), {"frozen": frozen, "step": 2})
    assert same(checkpoints.restore(3), {"frozen": frozen, "step": 3, "large": large})
    assert checkpoints.open(3).read("frozen", MIB, MIB + 9) == frozen.tobytes()[MIB : MIB + 9]


def test_a_bit_that_flipped_is_read_from_another_copy_or_is_a_clear_error(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    for pool, copies in (("two", 2), ("one", 1)):
        checkpoints = client.checkpoints(f"flipped-{pool}", pool=pool, compress="zstd")
        checkpoints.save(1, {"rounded": state(2)["rounded"]}).wait()
        [packed] = packed_of(checkpoints.shards(1)[0])
        files = [path for path in cluster.fragments() if packed.id in path.name]
        assert len(files) == copies
        assert all(payload_of(path)[:8] == b"SDRSpack" for path in files)
        flip_bit(files[0], 5 * MIB)
        if copies > 1:
            assert same(checkpoints.restore(1), {"rounded": state(2)["rounded"]})
        else:
            with pytest.raises(errors.CorruptDataError, match="block"):
                checkpoints.restore(1)


def test_a_mirror_in_another_pool_serves_what_its_own_pool_lost(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    checkpoints = client.checkpoints("twice", pool="mirrored", compress="zstd")
    checkpoints.save(1, {"rounded": state(3)["rounded"]}).wait()
    wait_for(lambda: checkpoints.get(1).mirror_pool == "two", "the mirror to be whole", 60)
    [shard] = checkpoints.shards(1)
    assert [blob.packing for blob in shard.mirrors] == [blob.packing for blob in shard.blobs]
    # P19: each fragment tells it too.
    packings = {blob.id: blob.packing for blob in shard.all_blobs}
    for path in cluster.fragments():
        if (blob_id := BlobId(path.name.partition(".")[0])) in packings:
            with path.open("rb") as file:
                assert read_contents(file.fileno()).meta.packing == packings[blob_id]
    own = {blob.id for blob in shard.blobs}
    for path in cluster.fragments():
        if path.name.partition(".")[0] in own:
            path.unlink()
    assert same(checkpoints.restore(1), {"rounded": state(3)["rounded"]})


@pytest.mark.usefixtures("staged_first")
def test_what_is_still_staged_is_read_from_there_as_it_was_saved(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    checkpoints = client.checkpoints("in-memory", pool="one", compress="zstd")
    checkpoints.save(1, {"rounded": state(6)["rounded"]}).wait()
    [packed] = packed_of(checkpoints.shards(1)[0])
    for path in cluster.fragments():
        if packed.id in path.name:
            path.unlink()
    assert same(checkpoints.restore(1), {"rounded": state(6)["rounded"]})
    assert checkpoints.open(1).read("rounded", 5 * MIB, 5 * MIB + 9) == state(6)["rounded"].tobytes()[5 * MIB :][:9]


def test_files_are_compressed_too_and_read_by_ranges(cluster: LocalCluster, tmp_path: Path) -> None:
    text = "".join(f"line {number} of a log\n" for number in range(200_000)).encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "log.txt").write_bytes(text)
    pushed = json.loads(
        _sdrs(cluster, "ckpt", "push", "logs", "1", str(tmp_path / "in"), "--compress", "zstd", "-o", "json")
    )
    assert pushed["stored_bytes"] < pushed["size_bytes"] // 4
    assert "compressed from" in _sdrs(cluster, "ckpt", "show", "logs", "1")
    _sdrs(cluster, "ckpt", "pull", "logs", "1", str(tmp_path / "out"))
    assert (tmp_path / "out" / "log.txt").read_bytes() == text
    options: dict[str, Any] = {"hosts": cluster.address, "skip_instance_cache": True}
    system = fsspec.filesystem("sdrs", compress="zstd", **options)
    with system.open("written/1/copy.txt", "wb") as file:
        file.write(text)
    plain = fsspec.filesystem("sdrs", **options)
    assert plain.size("written/1/copy.txt") == len(text)
    assert plain.cat_file("written/1/copy.txt", 2_000_000, 2_000_100) == text[2_000_000:2_000_100]
    assert plain.cat_file("logs/1/log.txt") == text
    with cluster.connect() as client:
        saved = client.checkpoints("written").get(1)
        assert saved.stored_bytes < saved.size_bytes // 4


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_s_distributed_checkpoints_are_compressed_too(cluster: LocalCluster) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    from sdrs.torch import StorageReader, StorageWriter

    weights = torch.from_numpy(state(4)["rounded"])
    url = f"{cluster.url}/dcp/5"
    dcp.save({"w": weights}, storage_writer=StorageWriter(url, compress="zstd"), no_dist=True)
    with cluster.connect() as client:
        saved = client.checkpoints("dcp").get(5)
        assert saved.stored_bytes < 11 * MIB < saved.size_bytes
    into = {"w": torch.zeros_like(weights)}
    dcp.load(into, storage_reader=StorageReader(url), no_dist=True)
    assert torch.equal(into["w"], weights)


def _sdrs(cluster: LocalCluster, *words: str) -> str:
    command = [sys.executable, "-m", "sdrs.cli.main", "--url", cluster.url, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
