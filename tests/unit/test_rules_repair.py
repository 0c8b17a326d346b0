"""P4, P14, I4, I6: copies come back by themselves, and nothing is let go that somebody may need."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Holder, SaveState, Verdict
from sdrs_core.cluster import Node
from sdrs_core.errors import CorruptDataError, DeadlineExceededError, RefusedError, StaleTermError, UnavailableError
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.levels import Level
from sdrs_storaged.control.copier import HeldFragment
from tests.support.control import GRACE_SECONDS, JOB, Harness
from tests.support.mirrors import (
    FAST,
    A,
    B,
    C,
    D,
    blob_of,
    holder,
    mirrored,
    on_record,
    save_of,
    started_with_mirrors,
    write,
)

LONG_SECONDS = 61.0


async def repair(harness: Harness, times: int = 1) -> None:
    for _ in range(times):
        harness.beat()
        await harness.controller.repairer.pass_once()


async def go_down(harness: Harness, *node_ids: NodeId, seconds: float = LONG_SECONDS) -> None:
    harness.silent.update(node_ids)
    await harness.pass_time(seconds)


async def come_back(harness: Harness, *node_ids: NodeId) -> None:
    harness.silent.difference_update(node_ids)
    harness.beat()


# Copies


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
        harness.controller.repairer._concurrency = 1
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
        harness.controller.repairer._concurrency = 8
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
        harness.controller.repairer._concurrency = 1
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
            """Oldest first, and not what failover tells of nodes."""
            events, _ = await harness.controller.events.page(group_id="", node_id="", after="", limit=100)
            return [(event.kind, event.text) for event in reversed(events) if not event.node_id]

        await mirrored(harness, 10, [A], level=Level.L1)
        await repair(harness, times=2)
        before = await told()
        assert before == [
            ("repair_done", "1 copies made, 10 bytes"),
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
        pass_once = repairer.pass_once

        async def pass_and_tell() -> None:
            try:
                await pass_once()
            finally:
                ended.set()

        monkeypatch.setattr(repairer, "pass_once", pass_and_tell)
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


# Levels


def test_a_save_below_its_level_rises_when_all_its_copies_are_there() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A], world_size=2, level=Level.L1)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L2

    asyncio.run(run())


def test_a_level_does_not_rise_while_one_blob_is_short_and_never_falls() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B))
        degraded = await mirrored(harness, 10, [A, B], world_size=2, level=Level.L1)
        full = await mirrored(harness, 20, [A, B])
        shards = await harness.shards(degraded)
        lone = replace(shards[1].blobs[0], holders=(holder(A),))
        await write(harness, replace(shards[1], blobs=(lone,)))
        await go_down(harness, B)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L1
        assert await save_of(harness, 20) == full
        await come_back(harness, B)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L2

    asyncio.run(run())


def test_a_level_does_not_rise_on_the_word_of_a_node_that_was_not_asked() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B], level=Level.L1)
        harness.nodes.broken.add(B)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L1
        harness.nodes.broken.clear()
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L2

    asyncio.run(run())


# Trims


def test_a_node_that_comes_back_counts_again_and_one_copy_too_many_is_dropped() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await go_down(harness, B)
        await repair(harness)
        await come_back(harness, B)
        await repair(harness)
        blob = await blob_of(harness, save)
        assert len(blob.holders) == 2
        assert not any(h.dropping for h in blob.holders)
        assert harness.nodes.having(blob.id) == {h.node_id for h in blob.holders}
        assert len(harness.nodes.pulls) == 1

    asyncio.run(run())


def test_a_copy_is_not_dropped_for_one_that_is_only_on_record() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B, C])
        await repair(harness)  # nobody has been asked about this one since
        save = await mirrored(harness, 20, [A, B, C])
        blob = await blob_of(harness, save)
        for node_id in (A, B):
            harness.nodes.take(node_id, blob.id)
        await repair(harness)
        assert C in harness.nodes.having(blob.id)
        await harness.pass_time(10)
        await repair(harness, times=3)
        having = harness.nodes.having(blob.id)
        assert len(having) == 2
        assert await on_record(harness, save) == having

    asyncio.run(run())


def test_a_dropping_copy_is_finished_when_its_node_is_back_and_never_counts() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B, C])
        harness.nodes.broken.update({A, B, C, D})
        [shard] = await harness.shards(save)
        blob = replace(shard.blobs[0], holders=(holder(A), holder(B), holder(C, dropping=True)))
        await write(harness, replace(shard, blobs=(blob,)))
        await go_down(harness, C)
        harness.nodes.broken.clear()
        await repair(harness)
        assert C in harness.nodes.having(blob.id)
        await come_back(harness, C)
        await repair(harness)
        assert harness.nodes.having(blob.id) == {A, B} == {h.node_id for h in (await blob_of(harness, save)).holders}
        assert harness.nodes.pulls == []

    asyncio.run(run())


def test_a_drop_that_was_begun_is_not_finished_for_copies_that_are_only_on_record() -> None:
    """I7: what was dispensable when the drop began is by now the only copy."""

    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B, C])
        await repair(harness)  # nobody has been asked about what follows
        [shard] = await harness.shards(save)
        blob = replace(shard.blobs[0], holders=(holder(A), holder(B), holder(C, dropping=True)))
        await write(harness, replace(shard, blobs=(blob,)))
        harness.nodes.put(C, blob.id, save.save_id, 0)
        for node_id in (A, B):
            harness.nodes.take(node_id, blob.id)
        await repair(harness, times=3)
        assert C in harness.nodes.having(blob.id)

    asyncio.run(run())


# Coming back


def test_what_a_returning_node_lacks_is_taken_off_the_record_and_copied_again() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        kept, lost = await mirrored(harness, 10, [A, B]), await mirrored(harness, 20, [A, B])
        await repair(harness)
        await go_down(harness, B, seconds=10)
        await repair(harness)
        blob = await blob_of(harness, lost)
        harness.nodes.take(B, blob.id)
        await come_back(harness, B)
        await repair(harness)
        # The node that lost it is as good as any other to get it again.
        assert await on_record(harness, lost) == await on_record(harness, kept) == {A, B}
        assert [(node_id, blob_id) for node_id, blob_id, _ in harness.nodes.pulls] == [(B, blob.id)]
        assert harness.nodes.having(blob.id) == {A, B}
        assert not (await save_of(harness, 20)).damage

    asyncio.run(run())


def test_a_blip_between_two_looks_is_told_and_the_node_asked_again() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await repair(harness)
        harness.nodes.take(B, (await blob_of(harness, save)).id)
        await repair(harness)
        assert harness.nodes.pulls == []
        harness.controller.repairer.node_returned(B)
        await repair(harness)
        assert harness.nodes.having((await blob_of(harness, save)).id) == {A, B}

    asyncio.run(run())


def test_a_new_controller_asks_every_node_once() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])
        await harness.start()
        await repair(harness, times=3)
        assert sorted(node_id for node_id, _ in harness.nodes.looked_up) == [A, B]

    asyncio.run(run())


def test_the_last_copy_on_record_stays_there_and_the_checkpoint_is_named_as_damaged() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        for node_id in (A, B):
            harness.nodes.take(node_id, blob.id)
        await repair(harness)
        assert len(await on_record(harness, save)) == 1
        assert "rank 0 is missing on node" in (await save_of(harness, 10)).damage
        assert len(harness.controller.tally.damaged) == 1

    asyncio.run(run())


def test_a_copy_that_differs_is_replaced_by_the_right_one() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        harness.nodes.hashes[(B, (blob.id, 0))] = "something else"
        await repair(harness)
        assert harness.nodes.pulls == [(B, blob.id, (A,))]
        assert harness.nodes.hashes[(B, (blob.id, 0))] == "content"
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())


def test_a_node_without_its_disk_keeps_its_place_on_record_and_does_not_count() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        [shard] = await harness.shards(save)
        absent = Holder(B, DiskId("e" * 32), 0, "content")
        await write(harness, replace(shard, blobs=(replace(blob, holders=(holder(A), absent)),)))
        harness.nodes.take(B, blob.id)
        await repair(harness)
        holders = (await blob_of(harness, save)).holders
        assert absent in holders
        assert len(holders) == 3
        assert not (await save_of(harness, 10)).damage

    asyncio.run(run())


def test_a_copy_on_another_disk_than_recorded_counts_where_it_lies() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B))
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        [shard] = await harness.shards(save)
        moved = Holder(B, DiskId("e" * 32), 0, "content")
        await write(harness, replace(shard, blobs=(replace(blob, holders=(holder(A), moved)),)))
        await repair(harness)
        assert (await blob_of(harness, save)).holders == (holder(A), holder(B))
        assert harness.nodes.pulls == []

    asyncio.run(run())


def test_a_node_that_does_not_answer_is_asked_again_and_loses_nothing() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        harness.nodes.take(B, blob.id)
        harness.nodes.broken.add(B)
        await repair(harness)
        assert await on_record(harness, save) == {A, B}
        harness.nodes.broken.clear()
        await repair(harness)
        assert harness.nodes.having(blob.id) == {A, B}

    asyncio.run(run())


# A source that turns out to be bad


def test_sources_that_are_all_bad_are_looked_at_at_once() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(mirrors=3)
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        harness.nodes.verdicts_at[(A, blob.id)] = Verdict.CORRUPT

        async def refuse(_: NodeId, __: BlobId) -> None:
            raise CorruptDataError("no source is good")

        harness.nodes.on_pull = refuse
        await repair(harness)
        assert await on_record(harness, save) == {B}
        assert not (await save_of(harness, 10)).damage

    asyncio.run(run())


def test_a_source_that_serves_nothing_good_is_looked_at_and_marked() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A])
        await repair(harness)
        save = await mirrored(harness, 20, [A])
        blob = await blob_of(harness, save)
        harness.nodes.hashes[(A, (blob.id, 0))] = "rotten"
        harness.nodes.verdicts_at[(A, blob.id)] = Verdict.CORRUPT
        for _ in range(2):
            await repair(harness)
            await harness.pass_time(20)
        assert "corrupt" in (await save_of(harness, 20)).damage
        assert await on_record(harness, save) == {A}

    asyncio.run(run())


# Out of reach


def test_a_checkpoint_out_of_reach_is_named_until_its_node_returns() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await repair(harness)
        lost = await mirrored(harness, 10, [A, B])
        await mirrored(harness, 20, [A, C])
        await go_down(harness, A, B)
        await repair(harness)
        repairer = harness.controller.repairer
        assert [save.step for save in repairer.unavailable.values()] == [10]
        assert repairer.totals.unavailable_count == 1
        assert [stored.value for stored in await harness.controller.losses.unavailable(FAST)] == [lost]
        await come_back(harness, B)
        await repair(harness)
        assert (repairer.unavailable, repairer.totals.unavailable_count) == ({}, 0)
        assert await harness.controller.losses.unavailable(FAST) == []

    asyncio.run(run())


def test_a_good_copy_that_is_on_no_record_is_found_when_all_on_record_are_out_of_reach() -> None:
    """The controller died between the pull and the record, and then the source."""

    async def run() -> None:
        harness = await started_with_mirrors()
        save, lost = await mirrored(harness, 10, [A]), await mirrored(harness, 20, [A])
        blob_id, bad_id = (await blob_of(harness, save)).id, (await blob_of(harness, lost)).id
        await repair(harness)
        for one in (save, lost):
            [shard] = await harness.shards(one)
            await write(harness, replace(shard, blobs=(replace(shard.blobs[0], holders=(holder(A),)),)))
        for node_id in harness.nodes.having(bad_id) - {A}:
            harness.nodes.hashes[(node_id, (bad_id, 0))] = "something else"
        [stray] = harness.nodes.having(blob_id) - {A}
        await go_down(harness, A)
        await repair(harness)
        assert await on_record(harness, save) == {A, stray}
        assert await on_record(harness, lost) == {A}
        assert [save.step for save in harness.controller.repairer.unavailable.values()] == [20]
        asked = len(harness.nodes.looked_up)
        await repair(harness, times=2)
        assert len(await on_record(harness, save)) == 3
        assert len(harness.nodes.looked_up) == asked  # nobody came or went

    asyncio.run(run())


def test_before_a_checkpoint_is_given_up_everybody_is_asked_for_it() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A])
        harness.nodes.put(B, (await blob_of(harness, save)).id, save.save_id, harness.clock.unix_ms())
        await go_down(harness, A)
        assert await harness.controller.losses.unavailable(FAST) == []
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())


def test_a_defect_that_one_blob_brings_out_keeps_no_other() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        bad, good = await mirrored(harness, 10, [A]), await mirrored(harness, 20, [A])
        bad_id = (await blob_of(harness, bad)).id

        async def fail(_: NodeId, blob_id: BlobId) -> None:
            if blob_id == bad_id:
                raise ZeroDivisionError

        harness.nodes.on_pull = fail
        await repair(harness)
        assert (len(await on_record(harness, good)), len(await on_record(harness, bad))) == (2, 1)

    asyncio.run(run())


def test_a_node_that_was_not_heard_yet_makes_a_loss_undecidable() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])
        harness.silent.update({A, B})
        await harness.start()
        with pytest.raises(RefusedError, match="not heard yet"):
            await harness.controller.losses.unavailable(FAST)
        await repair(harness)
        assert harness.controller.repairer.totals.unavailable_count == 0

    asyncio.run(run())


def test_what_is_given_up_lies_in_the_trash_and_can_be_brought_back() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        lost = await mirrored(harness, 10, [A, B])
        await mirrored(harness, 20, [A, C])
        await go_down(harness, A, B)
        losses = harness.controller.losses
        given_up = await losses.give_up(await losses.unavailable(FAST), "the operator accepts the loss")
        assert [save.step for save in given_up] == [10]
        assert await harness.steps() == [20]
        assert [(save.state, save.note) for save in await harness.trash()] == [
            (SaveState.DELETED, "the operator accepts the loss")
        ]
        assert await harness.controller.catalog.undelete(JOB, 10) == lost

    asyncio.run(run())


def test_what_came_into_reach_again_meanwhile_is_not_given_up() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])
        await go_down(harness, A, B)
        losses = harness.controller.losses
        found = await losses.unavailable(FAST)
        await come_back(harness, A)
        assert await losses.give_up(found, "test") == []
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_a_held_checkpoint_is_not_given_up_and_neither_are_the_others_with_it() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        for step in (10, 20):
            await mirrored(harness, step, [A, B])
        await harness.controller.catalog.hold(JOB, 10, held=True)
        await go_down(harness, A, B)
        losses = harness.controller.losses
        with pytest.raises(RefusedError, match="held"):
            await losses.give_up(await losses.unavailable(FAST), "test")
        assert await harness.steps() == [20, 10]

    asyncio.run(run())
