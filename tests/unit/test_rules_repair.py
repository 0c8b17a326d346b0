"""P4: copies are made again by themselves, least redundant first, and one bad object blocks no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.cluster import Disk, DiskState, Node
from sdrs_core.errors import DeadlineExceededError, StaleTermError, UnavailableError
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.levels import Level
from sdrs_storaged.control.copier import HeldFragment
from tests.support.control import DISK, GRACE_SECONDS, JOB
from tests.support.mirrors import (
    LONG_SECONDS,
    A,
    B,
    C,
    D,
    blob_of,
    come_back,
    go_down,
    holder,
    mirrored,
    on_record,
    repair,
    started_with_mirrors,
    write,
)


def test_a_copy_lost_with_its_node_is_made_again_elsewhere() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B], world_size=3)
        await repair(harness)
        assert harness.nodes.pulls == []
        await go_down(harness, B)
        await repair(harness)
        for rank in range(3):
            blob = await blob_of(harness, save, rank)
            live = {h.node_id for h in blob.holders} - {B}
            assert A in live
            assert len(live) == 2
            # Who was not heard of keeps its place on record, in case it comes back.
            assert B in {h.node_id for h in blob.holders}
            assert live <= harness.nodes.having(blob.id)
        totals = harness.controller.repairer.totals
        assert (totals.done_blobs, totals.done_bytes, totals.waiting_blobs, totals.degraded_blobs) == (3, 30, 0, 3)
        await repair(harness)
        assert (totals.done_blobs, totals.degraded_blobs) == (3, 0)

    asyncio.run(run())


def test_a_reboot_moves_no_data() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(mirrors=3)
        save = await mirrored(harness, 10, [A, B, C])
        await repair(harness)
        await go_down(harness, C, seconds=59)
        await repair(harness)
        assert harness.controller.repairer.totals.degraded_blobs == 1
        await come_back(harness, C)
        await repair(harness)
        assert harness.nodes.pulls == []
        assert await on_record(harness, save) == {A, B, C}

    asyncio.run(run())


def test_with_one_live_copy_left_the_wait_is_shorter() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])
        await go_down(harness, B, seconds=29)
        await repair(harness)
        assert harness.nodes.pulls == []
        await harness.pass_time(1)
        await repair(harness)
        assert len(harness.nodes.pulls) == 1

    asyncio.run(run())


def test_the_least_redundant_blob_is_copied_first() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(mirrors=3)
        await harness.controller.repairer.change_settings(concurrency=1)
        two = await mirrored(harness, 10, [A, B])
        one = await mirrored(harness, 20, [A])
        await repair(harness)
        first = harness.nodes.pulls[0][1]
        assert first == (await blob_of(harness, one)).id
        assert len(await on_record(harness, one)) == len(await on_record(harness, two)) == 3

    asyncio.run(run())


def test_a_pool_without_another_node_stays_degraded_until_one_joins() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B))
        save = await mirrored(harness, 10, [A, B])
        await go_down(harness, B)
        await repair(harness)
        assert (harness.nodes.pulls, harness.controller.repairer.totals.degraded_blobs) == ([], 1)
        harness.node_ids = (A, B, C)
        await harness.register()
        await repair(harness)
        assert await on_record(harness, save) == {A, B, C}

    asyncio.run(run())


def test_one_bad_object_blocks_no_other_and_is_tried_again_later_and_later() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        bad, good = await mirrored(harness, 10, [A]), await mirrored(harness, 20, [A])
        bad_id = (await blob_of(harness, bad)).id

        async def refuse(_: NodeId, blob_id: BlobId) -> None:
            if blob_id == bad_id:
                raise UnavailableError("not this one")

        harness.nodes.on_pull = refuse
        await repair(harness, times=3)
        assert len(await on_record(harness, good)) == 2
        assert [blob_id for _, blob_id, _ in harness.nodes.pulls].count(bad_id) == 1
        assert harness.controller.repairer.totals.failed_blobs == 1
        await harness.pass_time(6)
        await repair(harness, times=3)
        assert [blob_id for _, blob_id, _ in harness.nodes.pulls].count(bad_id) == 2
        harness.nodes.on_pull = None
        await harness.pass_time(6)
        await repair(harness)
        assert len(await on_record(harness, bad)) == 1
        await harness.pass_time(6)
        await repair(harness, times=2)
        assert len(await on_record(harness, bad)) == 2
        assert harness.controller.repairer.totals.failed_blobs == 0

    asyncio.run(run())


@pytest.mark.parametrize("change", ["a node came back", "room appeared", "nothing"])
def test_what_failed_is_tried_at_once_when_something_changed_that_may_help(change: str) -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B, C, D))
        save = await mirrored(harness, 10, [A])
        blob_id = (await blob_of(harness, save)).id
        await go_down(harness, D, seconds=5)
        harness.nodes.full.update(harness.node_ids)
        if change == "room appeared":
            harness.disks[B] = (Disk(DISK, "/disk", DiskState.OK, 1000, 900, 0),)
        for _ in range(6):
            await harness.pass_time(300)
            await repair(harness)
        assert await on_record(harness, save) == {A}
        harness.nodes.full.clear()
        harness.nodes.pulls.clear()
        if change == "a node came back":
            await come_back(harness, D)
        elif change == "room appeared":
            harness.disks[B] = (Disk(DISK, "/disk", DiskState.OK, 1000, 100, 0),)
        await repair(harness)
        assert ([pulled for _, pulled, _ in harness.nodes.pulls] == [blob_id]) is (change != "nothing")

    asyncio.run(run())


def test_more_than_the_queue_holds_is_done_in_the_next_passes() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        harness.controller.repairer._surveyor._limit = 2
        saves = [await mirrored(harness, step, [A]) for step in range(5)]
        await repair(harness)
        totals = harness.controller.repairer.totals
        assert (totals.done_blobs, totals.waiting_blobs, totals.waiting_bytes) == (2, 3, 30)
        assert harness.controller.repairer._woken.is_set()
        await repair(harness, times=2)
        assert (totals.done_blobs, totals.waiting_blobs) == (5, 0)
        assert all([len(await on_record(harness, save)) == 2 for save in saves])

    asyncio.run(run())


def test_a_target_pulls_one_at_a_time_and_different_targets_at_once() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await harness.controller.repairer.change_settings(concurrency=8)
        for step in range(20):
            await mirrored(harness, step, [A])
        pulling: list[NodeId] = []
        doubled: set[NodeId] = set()
        most = 0

        async def watch(node_id: NodeId, _: BlobId) -> None:
            nonlocal most
            pulling.append(node_id)
            most = max(most, len(pulling))
            doubled.update(name for name in pulling if pulling.count(name) > 1)
            for _ in range(10):
                await asyncio.sleep(0)
            pulling.remove(node_id)

        harness.nodes.on_pull = watch
        await repair(harness)
        assert (harness.controller.repairer.totals.done_blobs, most, doubled) == (20, 3, set())

    asyncio.run(run())


def test_something_new_is_looked_at_before_a_long_queue_is_done() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await harness.controller.repairer.change_settings(concurrency=1)
        for step in range(10):
            await mirrored(harness, step, [A])

        async def poke(_: NodeId, __: BlobId) -> None:
            harness.controller.repairer.poke()

        harness.nodes.on_pull = poke
        await repair(harness)
        assert harness.controller.repairer.totals.done_blobs == 1

    asyncio.run(run())


def test_a_copy_that_comes_in_after_the_save_was_condemned_is_not_recorded() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A])

        async def condemn(_: NodeId, __: BlobId) -> None:
            harness.nodes.on_pull = None
            await harness.controller.catalog.delete(JOB, 10, why="test")
            await harness.pass_time(GRACE_SECONDS + 1)
            harness.nodes.broken.add(A)
            await harness.collect()
            harness.nodes.broken.discard(A)

        harness.nodes.on_pull = condemn
        await repair(harness)
        assert harness.controller.repairer.totals.done_blobs == 0
        assert [[h.dropping for h in blob.holders] for blob in (await harness.shards(save))[0].blobs] == [[True]]
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert await harness.trash() == []
        assert not any(harness.nodes.names(node_id) for node_id in (A, B, C, D))

    asyncio.run(run())


def test_a_copy_and_another_change_of_the_record_are_both_kept() -> None:
    """P4: the record is compared, so neither overwrites the other."""

    async def run() -> None:
        harness = await started_with_mirrors(mirrors=3)
        save = await mirrored(harness, 10, [A, B])

        async def change(_: NodeId, __: BlobId) -> None:
            [shard] = await harness.shards(save)
            blob = shard.blobs[0]
            gone = tuple(h for h in blob.holders if h.node_id != B)
            await write(harness, replace(shard, blobs=(replace(blob, holders=gone),)))
            harness.nodes.on_pull = None

        harness.nodes.on_pull = change
        await repair(harness)
        recorded = await on_record(harness, save)
        assert len(recorded) == 3
        assert recorded <= harness.nodes.having((await blob_of(harness, save)).id) | {B}

    asyncio.run(run())


def test_a_change_of_the_record_just_before_the_copy_is_recorded_is_kept() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B, C), mirrors=3)
        save = await mirrored(harness, 10, [A, B])

        async def change(_: int) -> None:
            harness.store.heal()
            [shard] = await harness.shards(save)
            gone = replace(shard.blobs[0], holders=(holder(A),))
            await write(harness, replace(shard, blobs=(gone,)))

        async def pulled(_: NodeId, __: BlobId) -> None:
            harness.nodes.on_pull = None
            harness.store.before = change

        harness.nodes.on_pull = pulled
        harness.nodes.broken.add(B)  # so that it does not get its copy back at once
        await repair(harness)
        assert await on_record(harness, save) == {A, C}

    asyncio.run(run())


def test_what_the_queue_cannot_hold_is_the_least_urgent() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(mirrors=3)
        harness.controller.repairer._surveyor._limit = 2
        steps = {}
        for step, on in enumerate([[A, B], [A], [A, B, C, D], [A, B], [A]]):
            save = await mirrored(harness, step, on)
            steps[(await blob_of(harness, save)).id] = step
        await repair(harness)
        assert {steps[blob_id] for _, blob_id, _ in harness.nodes.pulls} == {1, 4}
        assert not any(node_id == D for node_id, _ in harness.nodes.orders)

    asyncio.run(run())


def test_what_happened_is_told() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()

        async def told() -> list[tuple[str, str]]:
            """Oldest first, and not what others tell of nodes and pools."""
            events, _ = await harness.controller.events.page(group_id="", node_id="", after="", limit=100)
            told = [event for event in reversed(events) if not event.node_id and event.kind != "pool_created"]
            return [(event.kind, event.text) for event in told]

        await mirrored(harness, 10, [A], level=Level.L1)
        await repair(harness, times=2)
        before = await told()
        assert before == [
            ("repair_done", "1 copy made, 10 bytes"),
            ("level_raised", f"all copies there: {JOB} step 10"),
        ]
        await harness.kill(A, B, C, D)
        await repair(harness, times=2)
        await harness.revive(A)
        await repair(harness, times=2)
        after = (await told())[len(before) :]
        assert [kind for kind, _ in after][:2] == ["checkpoints_unavailable", "checkpoints_available"]
        assert all(f"{JOB} step 10" in text for _, text in after[:2])

    asyncio.run(run())


def test_the_loop_goes_on_after_an_error_and_wakes_when_it_is_poked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        repairer = harness.controller.repairer
        repairer._interval_seconds = 1e6
        save = await mirrored(harness, 10, [A])
        ended = asyncio.Event()
        pass_once = repairer._pass

        async def pass_and_tell() -> None:
            try:
                await pass_once()
            finally:
                ended.set()

        monkeypatch.setattr(repairer, "_pass", pass_and_tell)
        harness.controller.records.frozen_because = "a node knows better"
        running = asyncio.create_task(repairer.run())
        async with asyncio.timeout(20):
            await ended.wait()
        assert harness.nodes.pulls == []
        harness.controller.records.frozen_because = ""
        ended.clear()
        repairer.poke()
        async with asyncio.timeout(20):
            await ended.wait()
        assert len(await on_record(harness, save)) == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_frozen_node_does_not_make_repair_rest_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])

        async def lookup_fragments(node: Node, names: object) -> list[HeldFragment]:
            harness.clock.advance(LONG_SECONDS)
            raise DeadlineExceededError(f"{node.id} did not answer")

        monkeypatch.setattr(harness.nodes, "lookup_fragments", lookup_fragments)
        repairer = harness.controller.repairer
        repairer.node_returned(A)
        await repair(harness)
        rests: list[float] = []

        async def sleep(seconds: float) -> None:
            rests.append(seconds)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        repairer.poke()
        await repairer._rest()
        assert rests == [0.0]

    asyncio.run(run())


def test_a_deposed_controller_records_nothing() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A])
        old = harness.controller

        async def depose(_: NodeId, __: BlobId) -> None:
            harness.nodes.on_pull = None
            await harness.start()

        harness.nodes.on_pull = depose
        with pytest.raises(StaleTermError):
            await old.repairer.pass_once()
        assert await on_record(harness, save) == {A}
        await repair(harness)
        assert len(await on_record(harness, save)) == 2

    asyncio.run(run())


@pytest.mark.parametrize("loop", ["repairer", "collector"])
def test_a_loop_of_a_deposed_controller_ends(loop: str) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        old = harness.controller
        old.collector._interval_seconds = 0.01
        await harness.start()
        with pytest.raises(StaleTermError):
            async with asyncio.timeout(20):
                await getattr(old, loop).run()

    asyncio.run(run())
