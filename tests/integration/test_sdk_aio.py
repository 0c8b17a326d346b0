"""The async twin."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import sdrs
from sdrs import aio, errors
from tests.support.cluster import LocalCluster
from tests.support.states import MIB, make_state, same


def test_the_async_twin_saves_and_restores(shared_cluster: LocalCluster) -> None:
    async def run() -> None:
        async with aio.connect(shared_cluster.url) as cluster:
            checkpoints = cluster.checkpoints("async")
            saving = await checkpoints.save(1, make_state(1, 8 * MIB))
            done = await saving.wait("L1")
            assert (done.step, saving.step, saving.done()) == (1, 1, True)
            assert same(await checkpoints.restore(), make_state(1, 8 * MIB))
            assert [checkpoint.step for checkpoint in await checkpoints.list()] == [1]
            assert await checkpoints.verify(1)
            with pytest.raises(errors.UnsupportedError):
                await saving.wait("L3")
            with pytest.raises(errors.NotFoundError):
                await checkpoints.restore(step=5)

    asyncio.run(run())


def test_many_saves_wait_without_threads_and_time_out_alone(shared_cluster: LocalCluster) -> None:
    async def run() -> None:
        async with await aio.connect(shared_cluster.url) as cluster:
            checkpoints = cluster.checkpoints("async-ranks", attempt="run:1")
            savings = [await checkpoints.save(1, {"rank": r}, rank=r, world_size=100) for r in range(99)]
            with pytest.raises(errors.DeadlineExceededError):
                await savings[0].wait(timeout=0.2)
            waits = [asyncio.create_task(saving.wait()) for saving in savings]
            waits[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits[0]
            # The pool of threads is not used up by those who wait.
            await (await checkpoints.save(1, {"rank": 99}, rank=99, world_size=100)).wait()
            assert {done.step for done in await asyncio.gather(*waits[1:])} == {1}
            assert (await savings[0].wait()).step == 1

    asyncio.run(run())


def test_ranks_in_one_loop_restore_together(shared_cluster: LocalCluster) -> None:
    async def run() -> None:
        async with await aio.connect(shared_cluster.url) as cluster:
            first = cluster.checkpoints("async-rounds", attempt="run:1")
            savings = [await first.save(1, {"rank": r}, rank=r, world_size=16) for r in range(16)]
            await asyncio.gather(*(saving.wait() for saving in savings))
            second = cluster.checkpoints("async-rounds", attempt="run:2")
            states = await asyncio.gather(*(second.restore(rank=r, world_size=16) for r in range(16)))
            assert states == [{"rank": r} for r in range(16)]

    asyncio.run(run())


def test_a_wrong_address_is_the_same_clear_error() -> None:
    async def run() -> None:
        await aio.connect("sdrs://127.0.0.1:1")

    with pytest.raises(errors.UnavailableError, match="sdrs up"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("sync", "twin"),
    [
        (sdrs.Cluster, aio.Cluster),
        (sdrs.Checkpoints, aio.Checkpoints),
        (sdrs.OpenShard, aio.OpenShard),
        (sdrs.Saving, aio.Saving),
    ],
)
def test_the_twin_has_every_public_method(sync: type, twin: type) -> None:
    internal = {
        "process",
        "settle",
        "check_level",
        "mark_seen",
        "add_sent",
        "set_sent",
        "restart",
        "note_ranks",
        "skip",
        "send_shard",
    }
    public = {name for name, _ in inspect.getmembers(sync, inspect.isfunction) if not name.startswith("_")}
    assert public - internal <= set(dir(twin))
