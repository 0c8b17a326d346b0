"""Disks leave a node that stays: drained while they work, given up when they are gone for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Holder, SaveState, Shard
from sdrs_core.cluster import Disk, DiskState
from sdrs_core.codes import Code
from sdrs_core.errors import InvalidArgumentError, NotFoundError, RefusedError
from sdrs_core.ids import DiskId
from sdrs_core.redundancy import Standing
from sdrs_storaged.control import keys
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.collector import Fragment
from sdrs_storaged.control.records import put
from tests.support.control import JOB, Harness
from tests.support.deep import MIB, NODES, blob_at, look, save_deep, stands, started_deep
from tests.support.interrupts import interrupt_everywhere
from tests.unit.test_rules_failover import events_of

Test = Callable[[Harness], Awaitable[None]]
NODE = NODES[0]
AWAY: dict[DiskId, dict[FragmentName, Fragment]] = {}
FIRST, SECOND = DiskId("a1" * 16), DiskId("a2" * 16)


def disks_of(number: int) -> tuple[Disk, ...]:
    """Two for each node."""
    letter = "abcdefgh"[number]
    return tuple(
        Disk(DiskId(f"{letter}{place}" * 16), f"/disk-{place}", DiskState.OK, 10_000 * MIB, 0, 0) for place in (1, 2)
    )


async def prepared() -> Harness:
    harness = await started_deep()
    for number, node_id in enumerate(harness.node_ids):
        harness.disks[node_id] = disks_of(number)
        harness.nodes.writes_to[node_id] = disks_of(number)[0].id
    harness.beat()
    await harness.wait(1)
    for step in (10, 20):
        await save_deep(harness, step)
    await repair(harness, 1)
    return harness


def on_nodes(test: Test) -> None:
    async def run() -> None:
        await test(await prepared())

    asyncio.run(run())


async def repair(harness: Harness, times: int = 3) -> None:
    for _ in range(times):
        harness.beat()
        await harness.controller.repairer.pass_once()


async def two_plus_one(*, hold: bool = False) -> tuple[Harness, list[Holder]]:
    """Three nodes that hold all of a checkpoint, each on a disk of its own; two of these disks are not there any more,
    with all that was on them. The holders that had it.
    """
    harness = await started_deep(4, code=Code(2, 1))
    for number, node_id in enumerate(harness.node_ids):
        harness.disks[node_id] = disks_of(number)
        harness.nodes.writes_to[node_id] = disks_of(number)[0].id
    harness.beat()
    await harness.wait(1)
    await save_deep(harness, 10)
    if hold:
        await harness.controller.catalog.hold(JOB, 10, held=True)
    await repair(harness, 1)
    holders = list((await blob_at(harness, 10)).holders[:2])
    for holder in holders:
        move_away(harness, holder)
    await repair(harness, 2)
    return harness, holders


def move_away(harness: Harness, holder: Holder) -> None:
    kept = tuple(disk for disk in harness.disks[holder.node_id] if disk.id != holder.disk_id)
    harness.disks[holder.node_id] = kept
    harness.nodes.writes_to[holder.node_id] = kept[0].id
    away = harness.nodes.fragments[holder.node_id]
    AWAY[holder.disk_id] = dict(away)
    away.clear()
    harness.beat()


def put_back(harness: Harness, holder: Holder) -> None:
    harness.disks[holder.node_id] = disks_of(harness.node_ids.index(holder.node_id))
    harness.nodes.fragments[holder.node_id] |= AWAY[holder.disk_id]
    harness.beat()


async def disks_on_record(harness: Harness) -> set[DiskId]:
    blobs = [await blob_at(harness, step) for step in (10, 20)]
    return {holder.disk_id for blob in blobs for holder in blob.holders}


def take_out(harness: Harness, disk_id: DiskId, *, reported: tuple[Disk, ...] = ()) -> None:
    """Its node has nothing of what was on it, and reports it no more, or as ``reported``."""
    harness.disks[NODE] = (*reported, *(disk for disk in harness.disks[NODE] if disk.id != disk_id))
    harness.nodes.writes_to[NODE] = SECOND
    held = harness.nodes.fragments.get(NODE, {})
    for name in list(held):
        if harness.nodes.disk_of.get((NODE, name)) == disk_id:
            del held[name]
    harness.beat()


def test_disks_are_listed_with_what_is_on_record_there() -> None:
    async def test(harness: Harness) -> None:
        disks = harness.controller.disks
        assert len(disks.all()) == 16
        found = {disk.disk.id: disk for disk in disks.all(NODE)}
        assert set(found) == {FIRST, SECOND}
        assert (found[FIRST].held_count, found[FIRST].held_bytes) == (2, 2 * 4 * MIB)
        assert found[SECOND].held_count == 0
        assert not found[FIRST].is_absent
        take_out(harness, FIRST)
        absent = next(disk for disk in disks.all(NODE) if disk.disk.id == FIRST)
        assert (absent.is_absent, absent.held_count, absent.disk.detail) == (True, 2, "its node does not report it")
        with pytest.raises(NotFoundError):
            disks.all("nx")

    on_nodes(test)


def test_a_disk_that_is_drained_is_found_again_while_its_node_is_not_heard() -> None:
    """By a controller that leads since a moment, and though nothing is on record there any more."""

    async def test(harness: Harness) -> None:
        await harness.controller.disks.drain(SECOND)
        harness.freeze(NODE)
        await harness.start()
        disks = harness.controller.disks
        [found] = [disk for disk in disks.all(NODE) if disk.disk.id == SECOND]
        assert (found.is_absent, found.disk.state, found.held_count) == (True, DiskState.DRAINING, 0)
        await disks.cancel_drain(SECOND)
        assert harness.controller.members.draining_disks(NODE) == ()
        assert SECOND not in {disk.disk.id for disk in disks.all(NODE)}

    on_nodes(test)


def test_the_beginning_of_an_id_names_a_disk_if_no_other_begins_like_that() -> None:
    async def test(harness: Harness) -> None:
        disks = harness.controller.disks
        assert disks.find("a1").disk.id == FIRST
        with pytest.raises(InvalidArgumentError, match="several disks begin"):
            disks.find("a")
        for name in ("", "zz"):
            with pytest.raises(NotFoundError, match="sdrs disk list"):
                disks.find(name)

    on_nodes(test)


def test_a_drained_disk_is_emptied_and_gets_nothing_new() -> None:
    async def test(harness: Harness) -> None:
        disks = harness.controller.disks
        found = await disks.drain("a1")
        assert (found.disk.id, found.disk.state, found.held_count) == (FIRST, DiskState.DRAINING, 2)
        assert harness.controller.members.draining_disks(NODE) == (FIRST,)
        harness.nodes.writes_to[NODE] = SECOND  # as a node does that was told
        await repair(harness)
        assert FIRST not in await disks_on_record(harness)
        for step in (10, 20):
            assert stands(harness, await blob_at(harness, step)) is Standing.FULL
        assert (await disks.drain("a1")).held_count == 0, "said again, it tells how much is left"
        assert "disk_draining" in await events_of(harness)

    on_nodes(test)


def test_a_drain_of_a_disk_survives_a_new_controller_and_can_be_cancelled() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.disks.drain("a1")
        await harness.start()
        assert harness.controller.members.draining_disks(NODE) == (FIRST,)
        found = await harness.controller.disks.cancel_drain("a1")
        assert found.disk.state is DiskState.OK
        await repair(harness)
        assert FIRST in await disks_on_record(harness)

    on_nodes(test)


def test_the_last_disk_of_a_node_is_not_drained_if_its_node_is_needed() -> None:
    async def run() -> None:
        harness = await started_deep(6)
        harness.disks = {node_id: disks_of(number)[:1] for number, node_id in enumerate(harness.node_ids)}
        await harness.wait(1)
        with pytest.raises(RefusedError, match=r"n0 has no other disk that takes writes, and pool .deep. needs 6"):
            await harness.controller.disks.drain("a1")

    asyncio.run(run())


def test_a_disk_that_works_is_not_given_up() -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(RefusedError, match=r"is there and works.*sdrs disk drain a1a1"):
            await harness.controller.disks.give_up("a1")
        await harness.kill(NODE)
        with pytest.raises(RefusedError, match="node n0 is down"):
            await harness.controller.disks.give_up("a1")
        assert harness.controller.members.retired_disks(NODE) == frozenset()

    on_nodes(test)


@pytest.mark.parametrize("how", ["gone", "failed"])
def test_what_a_dead_disk_held_is_made_anew_as_soon_as_it_is_given_up(how: str) -> None:
    async def test(harness: Harness) -> None:
        failed = replace(harness.disks[NODE][0], state=DiskState.FAILED)
        take_out(harness, FIRST, reported=(failed,) if how == "failed" else ())
        assert (await harness.controller.disks.give_up("a1")).fragment_count == 2
        await repair(harness)
        assert FIRST not in await disks_on_record(harness)
        for step in (10, 20):
            assert stands(harness, await blob_at(harness, step)) is Standing.FULL
        assert "disk_replaced" in await events_of(harness)

    on_nodes(test)


def test_a_disk_that_was_given_up_gets_nothing_new_if_it_comes_back_until_it_is_taken_in_again() -> None:
    async def test(harness: Harness) -> None:
        take_out(harness, FIRST)
        await harness.controller.disks.give_up("a1")
        harness.disks[NODE] = disks_of(0)
        harness.beat()
        assert harness.controller.members.retired_disks(NODE) == {FIRST}
        await harness.controller.disks.cancel_drain("a1")
        assert harness.controller.members.retired_disks(NODE) == frozenset()

    on_nodes(test)


def test_a_disk_without_which_a_checkpoint_cannot_be_read_is_not_given_up_silently() -> None:
    """I4. With the first one given up the second may still bring it back; with both nothing can."""

    async def run() -> None:
        harness, (one, other) = await two_plus_one()
        disks = harness.controller.disks
        assert (await disks.give_up(one.disk_id)).lost == []
        await repair(harness)
        with pytest.raises(RefusedError, match=rf"1 checkpoints: {JOB} step 10.*--accept-data-loss"):
            await disks.give_up(other.disk_id)
        assert not harness.controller.members.retired_disks(other.node_id)
        given_up = await disks.give_up(other.disk_id, accept_data_loss=True)
        assert [save.step for save in given_up.lost] == [10]
        assert given_up.lost[0].state is SaveState.DELETED

    asyncio.run(run())


def test_what_is_held_is_not_given_up_with_a_disk() -> None:
    async def run() -> None:
        harness, (one, other) = await two_plus_one(hold=True)
        await harness.controller.disks.give_up(one.disk_id)
        with pytest.raises(RefusedError, match="is held"):
            await harness.controller.disks.give_up(other.disk_id, accept_data_loss=True)
        assert not harness.controller.members.retired_disks(other.node_id), "a refusal changes nothing"

    asyncio.run(run())


def test_a_copy_on_a_disk_that_was_given_up_is_not_counted_on_when_its_node_leaves() -> None:
    async def run() -> None:
        harness, (one, other) = await two_plus_one()
        await harness.controller.disks.give_up(one.disk_id)
        last = next(h for h in (await blob_at(harness, 10)).holders if h not in (one, other))
        await harness.kill(last.node_id)
        with pytest.raises(RefusedError, match="alone"):
            await harness.controller.nodes.remove(last.node_id, accept_data_loss=False)

    asyncio.run(run())


def test_what_was_given_up_stays_on_record_while_it_may_be_needed_and_counts_when_it_is_back() -> None:
    async def run() -> None:
        harness, (one, other) = await two_plus_one()
        await harness.controller.disks.give_up(one.disk_id)
        await repair(harness)
        assert {one, other} <= set((await blob_at(harness, 10)).holders), "I4: never forgotten"
        assert list(harness.controller.repairer.unavailable.values())
        put_back(harness, one)
        await harness.controller.disks.cancel_drain(one.disk_id)
        await repair(harness)
        assert not harness.controller.repairer.unavailable
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL

    asyncio.run(run())


def test_strays_on_a_disk_that_comes_back_to_a_node_which_stayed_up_are_found() -> None:
    """Whoever is up is asked again when a disk came, not only when a node did."""

    async def run() -> None:
        harness, (one, other) = await two_plus_one()
        shard = (await harness.shards(await look(harness, 10)))[0]
        record = await harness.controller.records.get(keys.shard(shard.save_id, shard.rank), Shard)
        assert record
        left = tuple(holder for holder in record.value.blobs[0].holders if holder not in (one, other))
        forgotten = replace(record.value, blobs=(replace(record.value.blobs[0], holders=left),))
        await harness.controller.records.commit([record.unchanged()], [put(record.key, forgotten)])
        await repair(harness)
        assert harness.controller.repairer.unavailable
        put_back(harness, one)
        await repair(harness)
        assert not harness.controller.repairer.unavailable

    asyncio.run(run())


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
def test_a_drain_of_a_disk_may_be_interrupted_at_any_transaction(lost: bool, restart: bool) -> None:
    async def carry_out(harness: Harness) -> None:
        await harness.controller.disks.drain("a1")
        harness.nodes.writes_to[NODE] = SECOND
        await repair(harness)

    async def check(harness: Harness) -> None:
        await harness.pass_time(100)  # what failed is tried again after a while
        await repair(harness)
        for step in (10, 20):
            assert stands(harness, await blob_at(harness, step)) is Standing.FULL
        if not restart:
            assert FIRST not in await disks_on_record(harness)

    interrupt_everywhere(prepared, carry_out, check, lost=lost, restart=restart)
