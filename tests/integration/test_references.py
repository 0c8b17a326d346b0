"""Unchanged blobs on real daemons: stored once, at every level, and kept as long as anybody needs them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sdrs
from sdrs import errors
from sdrs_core.checkpoints import SaveState
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.fragments import payload_of
from tests.support.states import MIB, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for

FROZEN_BYTES = 64 * MIB
POOLS: dict[str, dict[str, Any]] = {
    "one": {"level": "L1"},
    "two": {"level": "L2", "mirrors": 2},
    "coded": {"level": "L3", "ec": "2+1"},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # The collector at full speed, and a scrub only when asked.
    eager = {"grace_seconds": 0, "collect_interval_seconds": 0.1, "repair_interval_seconds": 0.5}
    with running_cluster(tmp_path_factory.mktemp("references"), node_count=3, controller=eager) as cluster:
        with cluster.connect() as client:
            for name, wish in POOLS.items():
                client.create_pool(name, **wish)
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with cluster.connect() as client:
        yield client


def state(step: int, *, frozen: int = 7, frozen_bytes: int = FROZEN_BYTES) -> dict[str, object]:
    """A large array that stays as it is, one that changes with every step, and a small one."""
    still = np.random.default_rng(frozen).integers(0, 256, frozen_bytes, np.uint8)
    moving = np.random.default_rng(1000 + step).integers(0, 256, 17 * MIB, np.uint8)
    return {"frozen": still, "moving": moving, "small": np.arange(step, step + 100), "step": step}


def on_disk_bytes(cluster: LocalCluster) -> int:
    return sum(path.stat().st_size for path in cluster.fragments())


@pytest.mark.parametrize("pool", POOLS)
def test_an_unchanged_array_is_stored_once_and_outlives_the_checkpoint_that_stored_it(
    cluster: LocalCluster, client: sdrs.Cluster, pool: str
) -> None:
    checkpoints = client.checkpoints(f"once-{pool}", pool=pool)
    empty_bytes = on_disk_bytes(cluster)
    first = checkpoints.save(1, {"frozen": state(0)["frozen"], "step": 1}).wait()
    before_bytes = on_disk_bytes(cluster)
    second = checkpoints.save(2, {"frozen": state(0)["frozen"], "step": 2}).wait()
    added_bytes = on_disk_bytes(cluster) - before_bytes
    assert first.stored_bytes == first.size_bytes > FROZEN_BYTES
    assert (second.level, second.size_bytes) == (first.level, first.size_bytes)
    assert second.stored_bytes < MIB
    assert added_bytes < MIB
    third = checkpoints.save(3, state(3)).wait()
    assert 17 * MIB < third.stored_bytes < 18 * MIB
    [shard] = checkpoints.shards(3)
    assert {reference.home.step for reference in shard.references} == {1}, "a chain of references"
    used_bytes = client.pool(pool).used_bytes
    assert used_bytes == first.stored_bytes + second.stored_bytes + third.stored_bytes
    assert checkpoints.verify(3)
    checkpoints.delete(1)
    checkpoints.delete(2)
    # The second goes for good, the first is kept for the third.
    wait_for(lambda: [s.step for s in checkpoints.list(all_states=True)] == [3, 1], "step 2 to be collected")
    retired = checkpoints.list(all_states=True)[1]
    assert retired.state is SaveState.RETIRED
    assert [save.step for save in checkpoints.list()] == [3]
    with pytest.raises(errors.NotFoundError):
        checkpoints.get(1)
    assert same(checkpoints.restore(), state(3))
    # Of the first, only what the third refers to is left.
    frozen_bytes = second.size_bytes - second.stored_bytes
    wait_for(lambda: client.pool(pool).used_bytes == third.stored_bytes + frozen_bytes, "the rest of it to go")
    checkpoints.delete(3)
    wait_for(lambda: not checkpoints.list(all_states=True), "all of it to be collected")
    wait_for(lambda: client.pool(pool).used_bytes == 0, "nothing to be counted any more")
    wait_for(lambda: on_disk_bytes(cluster) == empty_bytes, "its room to be free again")


def test_bits_flipped_in_a_shared_blob_are_decoded_around_or_a_clear_error_for_all_who_need_it(
    cluster: LocalCluster, client: sdrs.Cluster
) -> None:
    checkpoints = client.checkpoints("flipped", pool="two")
    for step in (1, 2, 3):
        checkpoints.save(step, state(step, frozen_bytes=20 * MIB)).wait()
    checkpoints.save(4, {"other": 1}).wait()
    [shard] = checkpoints.shards(3)
    [reference] = shard.references
    shared = shard.blobs[reference.ordinal]
    copies = [path for path in cluster.fragments() if shared.id in path.name]
    assert len(copies) == 2
    flip_bit(copies[0], 5 * MIB)
    for step in (1, 2, 3):
        assert same(checkpoints.restore(step=step), state(step, frozen_bytes=20 * MIB))
    # The bad copy was found by its readers, and is made again beside the other.
    wait_for(lambda: len(_good(cluster, shared.id)) == 2, "the bad copy to be replaced", 30)
    for path in _good(cluster, shared.id):
        flip_bit(path, 5 * MIB)
    with pytest.raises((errors.CorruptDataError, errors.NotRestorableError, errors.UnavailableError)):
        checkpoints.restore(step=3)
    wait_for(lambda: all(checkpoints.get(step).damage for step in (1, 2, 3)), "all who need it to be marked")
    assert checkpoints.get(4).damage == ""
    for step in (1, 2):
        assert not checkpoints.verify(step)
        with pytest.raises((errors.CorruptDataError, errors.NotRestorableError, errors.UnavailableError)):
            checkpoints.restore(step=step)


def test_a_quota_counts_what_is_stored_and_holds_for_what_changed(client: sdrs.Cluster) -> None:
    client.create_pool("small", "L1", quota_bytes=100 * MIB)
    checkpoints = client.checkpoints("quota", pool="small")
    checkpoints.save(1, state(1, frozen_bytes=40 * MIB)).wait()
    # 57 MiB are stored, and 17 come with each step, though each has 57.
    checkpoints.save(2, state(2, frozen_bytes=40 * MIB)).wait()
    with pytest.raises(errors.FullError):
        checkpoints.save(3, state(3, frozen=8, frozen_bytes=40 * MIB)).wait()
    checkpoints.save(4, state(4, frozen_bytes=40 * MIB)).wait()
    assert client.pool("small").used_bytes < 100 * MIB


def test_without_blake3_everything_is_stored_and_what_others_refer_to_is_read(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect(staging_bytes=0) as client:  # this process sends, not the daemon
        _check_without_blake3(client, monkeypatch)


def _check_without_blake3(client: sdrs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = client.checkpoints("plain", pool="one")
    checkpoints.save(1, state(1, frozen_bytes=20 * MIB)).wait()
    checkpoints.save(2, state(2, frozen_bytes=20 * MIB)).wait()
    monkeypatch.setitem(sys.modules, "blake3", None)
    third = checkpoints.save(3, state(3, frozen_bytes=20 * MIB)).wait()
    assert third.stored_bytes == third.size_bytes
    assert same(checkpoints.restore(step=2), state(2, frozen_bytes=20 * MIB))


def test_a_command_line_tells_size_and_what_is_stored(cluster: LocalCluster, client: sdrs.Cluster) -> None:
    checkpoints = client.checkpoints("shown", pool="one")
    checkpoints.save(1, state(1, frozen_bytes=20 * MIB)).wait()
    second = checkpoints.save(2, state(2, frozen_bytes=20 * MIB)).wait()
    shown = json.loads(_sdrs(cluster, "ckpt", "show", "shown", "2", "-o", "json"))
    assert (shown["size_bytes"], shown["stored_bytes"]) == (second.size_bytes, second.stored_bytes)
    assert [reference["step"] for reference in shown["shards"][0]["references"]] == [1]
    assert "unchanged since step 1" in _sdrs(cluster, "ckpt", "show", "shown", "2")
    assert "STORED" in _sdrs(cluster, "ckpt", "list", "shown")


def _sdrs(cluster: LocalCluster, *words: str) -> str:
    command = [sys.executable, "-m", "sdrs.cli.main", "--url", cluster.url, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def _good(cluster: LocalCluster, blob_id: str) -> list[Path]:
    found = []
    for path in cluster.fragments():
        if blob_id in path.name:
            with suppress(AssertionError, FileNotFoundError, errors.SdrsError):
                payload_of(path)
                found.append(path)
    return found
