"""P2, P4, P7, P10, P14 with erasure codes: fragments are rebuilt, moved, spread and let go by themselves."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.cluster import Disk, DiskState
from sdrs_core.codes import Code
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.levels import Level
from sdrs_core.redundancy import Standing
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Delete
from sdrs_storaged.control.records import put
from tests.support.control import DISK
from tests.support.deep import (
    DEEP,
    MIB,
    NODES,
    blob_at,
    drain,
    look,
    nodes_of,
    nothing_else_is_stored,
    places,
    retire,
    save_deep,
    stands,
    started_deep,
)
from tests.support.mirrors import LONG_SECONDS, come_back, go_down, repair

OTHER_DISK = DiskId("e" * 32)


def test_fragments_lost_with_their_nodes_are_rebuilt_elsewhere() -> None:
    async def run() -> None:
        harness = await started_deep()
        await save_deep(harness, 10, world_size=2)
        await repair(harness)
        assert harness.nodes.pulls == []
        lost = sorted(nodes_of(await blob_at(harness, 10)))[:2]
        await go_down(harness, *lost)
        await repair(harness, times=2)
        for rank in range(2):
            blob = await blob_at(harness, 10, rank)
            assert stands(harness, blob) is Standing.FULL
            # Who was not heard of keeps its place on record, in case it comes back.
            assert set(lost) <= nodes_of(blob)
        totals = harness.controller.repairer.totals
        assert (totals.done_blobs, totals.done_bytes, totals.degraded_blobs) == (4, 4 * 4 * MIB, 0)
        await come_back(harness, *lost)
        await repair(harness, times=2)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_a_reboot_within_the_grace_period_moves_no_data() -> None:
    async def run() -> None:
        harness = await started_deep()
        await save_deep(harness, 10)
        blob = await blob_at(harness, 10)
        [away, *_] = sorted(nodes_of(blob))
        await go_down(harness, away, seconds=59)
        await repair(harness)
        totals = harness.controller.repairer.totals
        assert (totals.degraded_blobs, totals.awaited_blobs) == (1, 1)
        await come_back(harness, away)
        await repair(harness, times=2)
        assert (harness.nodes.pulls, harness.nodes.orders) == ([], [])
        assert await blob_at(harness, 10) == blob

    asyncio.run(run())


def test_a_save_that_was_acknowledged_degraded_is_repaired_first_and_then_is_no_longer() -> None:
    """P10: at least k + 1 fragments, so placed that any one domain may be lost, and then the others at once."""

    async def run() -> None:
        harness = await started_deep(6)
        await harness.controller.repairer.change_settings(concurrency=1)
        full = await save_deep(harness, 10)
        await go_down(harness, NODES[5])
        short = await save_deep(harness, 20)
        assert (full.degraded, short.degraded, short.level) == (False, True, Level.L3)
        assert len(nodes_of(await blob_at(harness, 20))) == 5
        await drain(harness, NODES[4])
        harness.node_ids = NODES[:8]
        await harness.register()
        harness.nodes.pulls.clear()
        await come_back(harness, NODES[5])
        await repair(harness)
        assert harness.nodes.pulls[0][1] == (await blob_at(harness, 20)).id
        await repair(harness, times=3)
        assert (await look(harness, 20)).degraded is False
        assert stands(harness, await blob_at(harness, 20)) is Standing.FULL

    asyncio.run(run())


def test_a_save_below_its_level_rises_once_it_survives_the_loss_of_any_domain() -> None:
    async def run() -> None:
        harness = await started_deep(6, allow_degraded=True)
        save = await save_deep(harness, 10)
        stored = await harness.controller.catalog.get(save.job, 10)
        low = replace(stored.value, level=Level.L1, degraded=True)
        await harness.controller.records.commit([], [put(stored.key, low)])
        [shard] = await harness.shards(save)
        short = replace(shard.blobs[0], holders=shard.blobs[0].holders[:4])
        await harness.controller.records.commit([], [put(keys.shard(shard.save_id, 0), replace(shard, blobs=(short,)))])
        await repair(harness)
        found = await look(harness, 10)
        assert (found.level, found.degraded) == (Level.L3, False)

    asyncio.run(run())


def test_what_a_drained_node_holds_is_moved_first_and_then_trimmed() -> None:
    """P7, P14: at no moment is there less than before."""

    async def run() -> None:
        harness = await started_deep()
        for step in (10, 20):
            await save_deep(harness, step)
        leaving = next(iter(nodes_of(await blob_at(harness, 10))))

        async def still_full(node_id: NodeId, blob_id: BlobId) -> None:
            for step in (10, 20):
                assert stands(harness, await blob_at(harness, step)) is Standing.FULL

        harness.nodes.on_pull = still_full
        await drain(harness, leaving)
        await repair(harness)
        assert harness.controller.repairer.totals.degraded_blobs == 0
        await repair(harness)
        for step in (10, 20):
            blob = await blob_at(harness, step)
            assert leaving not in nodes_of(blob)
            assert stands(harness, blob) is Standing.FULL
        assert harness.nodes.names(leaving) == set()
        assert harness.controller.repairer.held_by(leaving).count == 0
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_a_drained_disk_is_emptied_and_its_node_stays() -> None:
    async def run() -> None:
        harness = await started_deep()
        await save_deep(harness, 10)
        leaving = next(iter(nodes_of(await blob_at(harness, 10))))
        assert harness.controller.repairer.held_on(DISK).count == 0
        harness.disks[leaving] = (
            Disk(DISK, "/disk", DiskState.OK, 10_000 * MIB, 0, 0),
            Disk(OTHER_DISK, "/other", DiskState.OK, 10_000 * MIB, 0, 0),
        )
        await drain(harness, leaving, DISK)
        await repair(harness, times=2)
        blob = await blob_at(harness, 10)
        assert leaving not in nodes_of(blob)
        assert stands(harness, blob) is Standing.FULL

    asyncio.run(run())


def test_what_a_disk_had_that_will_not_come_back_is_rebuilt_and_forgotten() -> None:
    async def run() -> None:
        harness = await started_deep(6)
        await save_deep(harness, 10)
        [victim, *_] = sorted(nodes_of(await blob_at(harness, 10)))
        [name] = harness.nodes.names(victim)
        harness.nodes.take(victim, name[0], index=name[1])
        harness.disks[victim] = (Disk(OTHER_DISK, "/new", DiskState.OK, 10_000 * MIB, 0, 0),)
        harness.nodes.writes_to[victim] = OTHER_DISK
        await retire(harness, victim, DISK)
        await repair(harness, times=3)
        blob = await blob_at(harness, 10)
        assert stands(harness, blob) is Standing.FULL
        assert {h.disk_id for h in blob.holders if h.node_id == victim} == {OTHER_DISK}
        assert harness.controller.repairer.held_on(OTHER_DISK).count == 1

    asyncio.run(run())


def test_a_retired_disk_is_taken_off_the_record_also_where_others_took_over() -> None:
    async def run() -> None:
        harness = await started_deep(7)
        await save_deep(harness, 10)
        [victim, *_] = sorted(nodes_of(await blob_at(harness, 10)))
        await go_down(harness, victim)
        await repair(harness, times=2)
        assert victim in nodes_of(await blob_at(harness, 10))
        await retire(harness, victim, DISK)
        await repair(harness, times=2)
        blob = await blob_at(harness, 10)
        assert victim not in nodes_of(blob)
        assert len(blob.holders) == 6

    asyncio.run(run())


def test_with_too_few_domains_fragments_double_up_and_spread_again_when_nodes_join() -> None:
    """P10: six nodes, 4+2, two lost: 2 + 2 + 1 + 1."""

    async def run() -> None:
        harness = await started_deep(6)
        await save_deep(harness, 10)
        await go_down(harness, NODES[4], NODES[5])
        await repair(harness, times=2)
        blob = await blob_at(harness, 10)
        live = [node_id for node_id, _ in places(blob) if node_id not in harness.silent]
        assert sorted(live.count(node_id) for node_id in set(live)) == [1, 1, 2, 2]
        assert stands(harness, blob) is Standing.SAFE
        assert harness.controller.repairer.totals.degraded_blobs == 1
        harness.node_ids = (*NODES[:4], *NODES[6:8])
        await harness.register()
        await repair(harness, times=3)
        blob = await blob_at(harness, 10)
        assert stands(harness, blob) is Standing.FULL
        assert harness.controller.repairer.totals.degraded_blobs == 0
        live = [node_id for node_id, _ in places(blob) if node_id not in (NODES[4], NODES[5])]
        assert len(live) == len(set(live)) == 6

    asyncio.run(run())


def test_small_blobs_are_copies_on_one_more_than_may_be_lost() -> None:
    async def run() -> None:
        harness = await started_deep()
        await save_deep(harness, 10, blob_bytes=MIB)
        blob = await blob_at(harness, 10)
        assert (blob.code, len(nodes_of(blob))) == ("mirror", 3)
        await go_down(harness, *sorted(nodes_of(blob))[:2])
        await repair(harness, times=2)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL

    asyncio.run(run())


def test_a_target_without_room_is_passed_over_for_another() -> None:
    async def run() -> None:
        harness = await started_deep(9)
        await save_deep(harness, 10)
        blob = await blob_at(harness, 10)
        free = [node_id for node_id in harness.node_ids if node_id not in nodes_of(blob)]
        assert len(free) == 3
        await go_down(harness, next(iter(nodes_of(blob))))
        harness.nodes.full.update(free[:2])
        await repair(harness)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL
        assert harness.controller.repairer.totals.failed_blobs == 0

    asyncio.run(run())


def test_with_no_room_anywhere_it_is_told_and_tried_again_later() -> None:
    async def run() -> None:
        harness = await started_deep(7)
        await save_deep(harness, 10)
        blob = await blob_at(harness, 10)
        await go_down(harness, next(iter(nodes_of(blob))))
        harness.nodes.full.update(harness.node_ids)
        await repair(harness)
        progress = harness.controller.repairer.progress()
        assert progress.failed_blobs == 1
        assert "is full" in progress.failures[-1]
        harness.nodes.full.clear()
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=2)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL

    asyncio.run(run())


def test_a_returning_node_counts_at_once_for_what_it_has_and_not_for_what_it_lost() -> None:
    async def run() -> None:
        harness = await started_deep(6)
        await save_deep(harness, 10)
        blob = await blob_at(harness, 10)
        (back, index), (lost, lost_index), *_ = sorted(places(blob))
        await go_down(harness, back, lost, seconds=5)
        harness.nodes.take(lost, blob.id, index=lost_index)
        await come_back(harness, back, lost)
        harness.controller.repairer.node_returned(back)
        harness.controller.repairer.node_returned(lost)
        await repair(harness, times=2)
        assert [(node_id, blob_id) for node_id, blob_id, _ in harness.nodes.pulls] == [(lost, blob.id)]
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL
        assert (back, index) in places(await blob_at(harness, 10))

    asyncio.run(run())


def test_more_fragments_lost_for_good_than_may_be_are_damage_and_nothing_is_forgotten() -> None:
    async def run() -> None:
        harness = await started_deep(6)
        await save_deep(harness, 10)
        blob = await blob_at(harness, 10)
        for node_id, index in sorted(places(blob))[:3]:
            harness.nodes.take(node_id, blob.id, index=index)
            harness.controller.repairer.node_returned(node_id)
        await repair(harness)
        found = await look(harness, 10)
        assert "brings blob" in found.damage
        assert len((await blob_at(harness, 10)).holders) == 3
        assert harness.controller.repairer.totals.unavailable_count == 1
        assert [s.value.step for s in await harness.controller.losses.unavailable(DEEP)] == [10]

    asyncio.run(run())


def test_fragments_on_no_record_are_found_by_their_index_when_too_few_others_are_left() -> None:
    """The controller died between the pull and the record, and then a source."""

    async def run() -> None:
        harness = await started_deep(9)
        save = await save_deep(harness, 10)
        await repair(harness)
        blob = await blob_at(harness, 10)
        free = [node_id for node_id in harness.node_ids if node_id not in nodes_of(blob)]
        lost = sorted(places(blob))[:3]
        harness.nodes.put(free[0], blob.id, save.save_id, 0, index=lost[0][1])
        await go_down(harness, *(node_id for node_id, _ in lost))
        await repair(harness)
        assert (free[0], lost[0][1]) in places(await blob_at(harness, 10))
        assert harness.controller.repairer.totals.unavailable_count == 0
        await repair(harness, times=2)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL

    asyncio.run(run())


def test_a_node_that_was_removed_while_it_pulled_is_not_put_on_record_p7() -> None:
    async def run() -> None:
        harness = await started_deep(7)
        await save_deep(harness, 10)
        blob = await blob_at(harness, 10)
        [free] = [node_id for node_id in harness.node_ids if node_id not in nodes_of(blob)]
        await go_down(harness, next(iter(nodes_of(blob))))

        async def remove(node_id: NodeId, _: BlobId) -> None:
            harness.nodes.on_pull = None
            assert node_id == free
            await harness.controller.records.commit([], [Delete(keys.node(node_id))])

        harness.nodes.on_pull = remove
        await repair(harness)
        assert free not in nodes_of(await blob_at(harness, 10))

    asyncio.run(run())


def test_a_node_that_joins_gets_its_part_of_what_is_there_and_no_more() -> None:
    async def run() -> None:
        harness = await started_deep(6)
        for step in range(10):
            await save_deep(harness, step, world_size=2)
        await repair(harness, times=2)
        assert harness.nodes.pulls == []
        harness.node_ids = NODES[:7]
        await harness.register()
        await repair(harness, times=4)
        new = NODES[6]
        moved = {(node_id, blob_id) for node_id, blob_id, _ in harness.nodes.pulls}
        assert {node_id for node_id, _ in moved} == {new}
        ideal_bytes = 20 * 6 * 4 * MIB / 7
        assert 0.8 * ideal_bytes <= harness.controller.repairer.held_by(new).size_bytes <= ideal_bytes
        assert len(harness.nodes.pulls) == len(harness.nodes.names(new))
        for step in range(10):
            for rank in range(2):
                assert stands(harness, await blob_at(harness, step, rank)) is Standing.FULL
        done = len(harness.nodes.pulls)
        await repair(harness, times=3)
        assert len(harness.nodes.pulls) == done
        await nothing_else_is_stored(harness)

    asyncio.run(run())


@pytest.mark.parametrize("code", [Code(2, 1), Code(8, 3)])
def test_other_codes_are_repaired_alike(code: Code) -> None:
    async def run() -> None:
        harness = await started_deep(12, code=code)
        await save_deep(harness, 10, blob_bytes=32 * MIB)
        await go_down(harness, *sorted(nodes_of(await blob_at(harness, 10)))[: code.parity])
        await repair(harness, times=3)
        blob = await blob_at(harness, 10)
        spare = 12 - code.total
        assert stands(harness, blob) is (Standing.FULL if spare >= code.parity else Standing.SAFE)

    asyncio.run(run())


def test_what_cannot_be_done_now_is_not_tried_again_and_again() -> None:
    """Each pass that finds something to do is followed by another one at once: it must not find what nobody can do."""

    async def run() -> None:
        harness = await started_deep(6)
        await save_deep(harness, 10)
        await repair(harness)
        blob = await blob_at(harness, 10)
        repairer = harness.controller.repairer

        async def is_quiet() -> None:
            await repair(harness, times=2)
            assert (repairer._woken.is_set(), repairer.totals.waiting_blobs) == (False, 0)

        await is_quiet()
        harness.nodes.full.update(harness.node_ids)
        away = sorted(nodes_of(blob))[0]
        await go_down(harness, away)
        await repair(harness)
        assert repairer.progress().failures
        for _ in range(3):
            await harness.pass_time(10)
            await is_quiet()
        harness.nodes.full.clear()
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=3)
        assert stands(harness, await blob_at(harness, 10)) is Standing.SAFE
        await is_quiet()
        await drain(harness, sorted(nodes_of(blob))[1])
        await repair(harness, times=3)
        await is_quiet()
        await come_back(harness, away)
        await repair(harness, times=3)
        await is_quiet()

    asyncio.run(run())
