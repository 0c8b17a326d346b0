"""Parts of a checkpoint by ranges of bytes; and generations that fail to restore, until they are marked."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sdrs
from sdrs import errors
from sdrs.checkpoints import Checkpoints
from sdrs.state import EncodedState
from sdrs.state.blobs import index_tensor, make_blob
from sdrs.state.container import TREE_TENSOR
from sdrs.state.encode import encode
from sdrs_core.failed_restores import FAILURES_TO_MARK
from tests.support.cluster import LocalCluster
from tests.support.program import Program
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for


def test_a_range_of_an_array_is_read_without_the_rest(shared_cluster: LocalCluster) -> None:
    state = {"big": np.arange(30 * MIB // 8), "model": {"w": torch.randn(3, 4)}, "n": 1, "raw": b"x" * 9000}
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("ranges", attempt="run:1")
        savings = [
            checkpoints.save(1, state if rank == 2 else make_state(rank), rank=rank, world_size=3) for rank in range(3)
        ]
        for saving in savings:
            saving.wait()
        opened = checkpoints.open(rank=2)
        parts = {part.name: part for part in opened.parts()}
        assert {name: part.size_bytes for name, part in parts.items()} == {"big": 30 * MIB, "model.w": 48, "raw": 9000}
        assert (parts["model.w"].dtype, parts["model.w"].shape) == ("float32", (3, 4))
        start = 17 * MIB + 5
        assert opened.read("big", start, start + 100) == state["big"].tobytes()[start : start + 100]
        # The first blob's head and index, the large one's head, and the block.
        assert opened.read_bytes <= 4 * MIB
        assert opened.read("big", 0, 0) == b""
        assert torch.equal(opened.array("model.w"), state["model"]["w"])
        assert same(opened.array("big"), state["big"])
        with pytest.raises(errors.NotFoundError, match="has no 'none'"):
            opened.read("none")
        with pytest.raises(errors.InvalidArgumentError, match="it has 48"):
            opened.read("model.w", 40, 50)
        with pytest.raises(errors.InvalidArgumentError, match="by ranks 0 to 2"):
            checkpoints.open(1, rank=3)


def test_a_range_of_a_saved_file_is_read_and_verified(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    data = np.random.default_rng(3).bytes(20 * MIB + 7)
    (tmp_path / "deep" / "large.bin").write_bytes(data)
    (tmp_path / "small.txt").write_text("hello")
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("file-ranges")
        before = set(shared_cluster.fragments())
        checkpoints.save_files(1, tmp_path).wait()
        opened = checkpoints.open(1)
        assert {part.name for part in opened.parts()} == {"deep/large.bin", "small.txt"}
        assert opened.read("small.txt") == b"hello"
        assert opened.read("deep/large.bin", 9 * MIB, 9 * MIB + 20) == data[9 * MIB : 9 * MIB + 20]
        assert opened.read("deep/large.bin", 20 * MIB) == data[20 * MIB :]
        assert opened.read_bytes < 6 * MIB
        with pytest.raises(errors.InvalidArgumentError, match="is a file"):
            opened.array("small.txt")
        large = max(set(shared_cluster.fragments()) - before, key=lambda path: path.stat().st_size)
        flip_bit(large, 4096 + 5 * MIB)
        with pytest.raises(errors.CorruptDataError):
            opened.read("deep/large.bin", 5 * MIB, 5 * MIB + 1)
        # What is good can still be read.
        assert opened.read("small.txt", 1) == b"ello"


def test_the_async_twin_reads_parts_too(shared_cluster: LocalCluster) -> None:
    async def read() -> None:
        async with sdrs.aio.connect(shared_cluster.url) as cluster:
            checkpoints = cluster.checkpoints("async-parts")
            await (await checkpoints.save(1, make_state(4))).wait()
            opened = await checkpoints.open(rank=0)
            assert await opened.read("layers.0") == make_state(4)["layers"][0].tobytes()
            assert (opened.checkpoint.step, opened.rank) == (1, 0)

    asyncio.run(read())


def save_broken(checkpoints: Checkpoints, step: int, **ranks: Any) -> None:
    """Bytes that are stored well, and are no state."""
    index = b'{"version":1,"blobs":1,"arrays":[],"tree":[{"list":3}]}'
    shard = EncodedState((make_blob([index_tensor(TREE_TENSOR, index)]),))
    order = {"rank": 0, "world_size": 1} | ranks
    checkpoints.send_shard(step, shard, **order)


def test_a_generation_that_fails_again_and_again_is_marked(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("failing")
        checkpoints.save(1, make_state(1)).wait()
        save_broken(checkpoints, 2)
        wait_for(lambda: len(checkpoints.list()) == 2, "the broken one to be committed")
        sdrs_program = Program(shared_cluster.url)
        for count in range(1, FAILURES_TO_MARK + 1):
            with pytest.warns(sdrs.RestoreWarning, match="step 2 .*malformed"):
                assert same(checkpoints.restore(), make_state(1))
            found = checkpoints.get(2)
            assert len(found.failed_restores) == count
            assert bool(found.damage) == (count == FAILURES_TO_MARK)
            if count == 1:
                assert "failed to restore 1 time" in sdrs_program.run("ckpt", "list", "failing")
        assert found.damage.startswith(f"it failed to restore {FAILURES_TO_MARK} times: rank 0: ")
        # By now it is skipped without a look at it, and that is said.
        with pytest.warns(sdrs.RestoreWarning, match=f"it failed to restore {FAILURES_TO_MARK} times"):
            assert same(checkpoints.restore(), make_state(1))
        assert "damaged" in sdrs_program.run("ckpt", "list", "failing")
        assert "malformed" in sdrs_program.run("ckpt", "show", "failing", "2")
        assert sdrs_program.json("ckpt", "show", "failing", "2")["failed_restores"] == FAILURES_TO_MARK
        # Its bytes are as they were written: whoever has it verified gives it a new chance.
        assert checkpoints.verify(2).ok
        assert (checkpoints.get(2).damage, checkpoints.get(2).failed_restores) == ("", ())


def test_ranks_that_fail_together_count_once(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        first = cluster.checkpoints("failing-ranks", attempt="run:1")
        for rank in range(2):
            saving = first.save(1, make_state(rank), rank=rank, world_size=2)
        saving.wait()
        for rank in range(2):
            save_broken(first, 2, rank=rank, world_size=2)
        wait_for(lambda: len(first.list()) == 2, "the broken one to be committed")
        second = cluster.checkpoints("failing-ranks", attempt="run:2")

        def restore(rank: int) -> Any:
            return second.restore(rank=rank, world_size=2)

        with pytest.warns(sdrs.RestoreWarning, match="step 2"), ThreadPoolExecutor(2) as pool:
            states = list(pool.map(restore, range(2)))
        assert all(same(state, make_state(rank)) for rank, state in enumerate(states))
        assert len(second.get(2).failed_restores) == 1


def test_an_encoded_state_knows_where_its_arrays_are() -> None:
    state = {"a": np.arange(5), "b": np.ones(3, np.uint8)}
    (blob,) = encode(state).blobs
    raw = b"".join(bytes(segment) for segment in blob.segments())
    for name, array in state.items():
        span = blob.spans()[name]
        assert raw[span.start : span.end] == array.tobytes()


def test_one_that_is_out_of_reach_is_passed_over_and_never_marked(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("away")
        for step in (1, 2):  # each on the other node
            cluster.cordon(f"node-{step}")
            checkpoints.save(step, make_state(step)).wait()
            cluster.uncordon(f"node-{step}")
        (node,) = [node for node in shared_cluster.nodes if node.name == "node-1"]
        assert {holder.node_id for holder in checkpoints.shards(2)[0].blobs[0].holders} == {node.name}
        node.kill()
        for _ in range(FAILURES_TO_MARK + 1):
            with pytest.warns(sdrs.RestoreWarning, match=r"step 2 .*out of reach"):
                assert same(checkpoints.restore(), make_state(1))
        assert (checkpoints.get(2).damage, checkpoints.get(2).failed_restores) == ("", ())
        node.start()
        shared_cluster.wait_until_up()
        assert same(checkpoints.restore(), make_state(2))
