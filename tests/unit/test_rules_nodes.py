"""Nodes leave without anybody noticing (P7): drained, removed, and no checkpoint ever names one that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Holder, SaveState, Shard
from sdrs_core.cluster import Authority, Pool
from sdrs_core.codes import Code
from sdrs_core.errors import NotFoundError, RefusedError, SdrsError, UnavailableError
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange
from sdrs_core.redundancy import Standing
from sdrs_storaged.control import keys
from sdrs_storaged.control.fresh_look import FreshLook
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.meta.store import Delete, Put
from sdrs_storaged.control.node_questions import NodeQuestions, Question
from tests.support.control import DISK, GRACE_SECONDS, JOB, Harness, attempt, node
from tests.support.deep import DEEP, MIB, NODES, SPARE, blob_at, look, nodes_of, save_deep, stands, started_deep
from tests.support.interrupts import interrupt_everywhere
from tests.unit.test_rules_failover import events_of

Test = Callable[[Harness], Awaitable[None]]
LEAVING = NODES[0]
SINGLE = PoolName("single")


async def prepared(count: int = 8) -> Harness:
    """A checkpoint that has a fragment on each of six nodes, one of them the leaving one."""
    harness = await started_deep(count)
    await harness.wait(1)
    for step in (10, 20):
        await save_deep(harness, step)
    return harness


def on_nodes(test: Test, count: int = 8) -> None:
    async def run() -> None:
        await test(await prepared(count))

    asyncio.run(run())


async def repair(harness: Harness, times: int = 3) -> None:
    for _ in range(times):
        harness.beat()
        await harness.controller.repairer.pass_once()


async def drained(harness: Harness, node_id: NodeId = LEAVING) -> None:
    await harness.controller.nodes.drain(node_id)
    await repair(harness)


async def remove(harness: Harness, node_id: NodeId = LEAVING, *, accept_data_loss: bool = False) -> list[str]:
    lost = await harness.controller.nodes.remove(node_id, accept_data_loss=accept_data_loss)
    harness.node_ids = tuple(known for known in harness.node_ids if known != node_id)
    return [save.title for save in lost]


async def shards(harness: Harness) -> list[Shard]:
    return [stored.value async for stored in harness.controller.records.all(keys.SHARDS, Shard)]


async def nobody_unknown_is_on_record(harness: Harness) -> None:
    known = set(harness.controller.members.node_ids())
    named = {h.node_id for shard in await shards(harness) for blob in shard.all_blobs for h in blob.holders}
    assert named <= known
    groups = harness.controller.members.groups()
    assert {node_id for group in groups for node_id in (*group.members, *group.home)} <= known
    assert {group.id.removeprefix(f"{group.pool}:") for group in groups} <= known


# Draining


def test_a_drained_node_leads_nothing_holds_nothing_and_can_be_removed() -> None:
    async def test(harness: Harness) -> None:
        before = await blob_at(harness, 10)
        assert LEAVING in nodes_of(before)
        await harness.controller.nodes.drain(LEAVING)
        groups = harness.controller.members.groups(pool=DEEP)
        assert all(LEAVING not in (*group.members, *group.home) for group in groups)
        await harness.save(30, pool=DEEP, blob_bytes=16 * MIB)
        await repair(harness)
        for step in (10, 20, 30):
            blob = await blob_at(harness, step)
            assert LEAVING not in {holder.node_id for holder in blob.holders}
            assert stands(harness, blob) is Standing.FULL
        assert harness.controller.repairer.held_by(LEAVING).count == 0
        assert await remove(harness) == []
        await nobody_unknown_is_on_record(harness)
        assert LEAVING not in harness.controller.members.node_ids()
        assert (await harness.save(40, pool=DEEP)).state is SaveState.COMMITTED
        assert {"draining", "node_removed", "drained_member_replaced"} <= set(await events_of(harness))

    on_nodes(test)


def test_a_drain_is_refused_if_a_pool_would_be_left_with_too_few_nodes() -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(RefusedError, match=r'pool "deep" needs 6 failure domains for 4\+2, without n0 it has 5'):
            await harness.controller.nodes.drain(LEAVING)
        assert not harness.controller.members.node(LEAVING).draining
        with pytest.raises(NotFoundError):
            await harness.controller.nodes.drain(NodeId("nx"))

    on_nodes(test, count=6)


def test_two_drains_at_once_leave_enough_nodes() -> None:
    async def test(harness: Harness) -> None:
        drains = (harness.controller.nodes.drain(node_id) for node_id in NODES[:2])
        outcomes = await asyncio.gather(*drains, return_exceptions=True)
        assert sum(isinstance(outcome, RefusedError) for outcome in outcomes) == 1

    on_nodes(test, count=7)


def test_a_drain_survives_a_new_controller_and_goes_on_while_failover_is_paused() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.moves.set_automatic("maintenance")
        await harness.controller.nodes.drain(LEAVING)
        assert all(LEAVING not in group.members for group in harness.controller.members.groups(pool=DEEP))
        await harness.start()
        await harness.wait(3)
        assert harness.controller.members.node(LEAVING).draining
        await repair(harness)
        assert LEAVING not in nodes_of(await blob_at(harness, 10))

    on_nodes(test)


def test_a_drain_that_is_cancelled_gives_the_node_its_groups_back() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.nodes.drain(LEAVING)
        await harness.controller.nodes.cancel_drain(LEAVING)
        await harness.wait(10)
        group = harness.group(f"{DEEP}:{LEAVING}")
        assert group.primary == group.home[0] == LEAVING
        assert not harness.controller.members.node(LEAVING).draining
        assert "drain_ended" in await events_of(harness)

    on_nodes(test)


def test_a_drained_node_does_not_lead_by_a_switchover() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.nodes.drain(LEAVING)
        group = harness.controller.members.groups(pool=DEEP)[3]
        with pytest.raises(RefusedError, match="being drained"):
            await harness.controller.moves.switchover(group.id, LEAVING, 0)

    on_nodes(test)


# Removing


def test_a_node_that_holds_something_is_not_removed_and_nothing_changes() -> None:
    async def test(harness: Harness) -> None:
        before = harness.controller.members.groups()
        with pytest.raises(RefusedError, match=r"still holds fragments of 2 blobs.*sdrs node drain n0"):
            await remove(harness)
        assert harness.controller.members.groups() == before
        assert not harness.controller.members.node(LEAVING).draining

    on_nodes(test)


def test_a_new_node_that_holds_nothing_is_removed_at_once() -> None:
    async def test(harness: Harness) -> None:
        harness.node_ids = (*harness.node_ids, NODES[8])
        await harness.register()
        await harness.wait(10)
        assert await remove(harness, NODES[8]) == []
        await nobody_unknown_is_on_record(harness)
        await harness.wait(5)
        assert (await harness.save(30, pool=DEEP)).state is SaveState.COMMITTED

    on_nodes(test)


def test_a_removed_node_is_turned_away_while_its_daemon_still_runs_and_later_joins_as_a_new_one() -> None:
    async def test(harness: Harness) -> None:
        await drained(harness)
        epoch = max(group.epoch for group in harness.controller.members.groups(pool=DEEP))
        await remove(harness)
        with pytest.raises(RefusedError, match="was removed"):
            await harness.controller.members.register(node(LEAVING), f"key of {LEAVING}", seen=Authority())
        with pytest.raises(NotFoundError):
            harness.controller.members.authenticate(LEAVING, f"key of {LEAVING}")
        await harness.pass_time(61)
        harness.node_ids = (*harness.node_ids, LEAVING)
        await harness.register()
        found = harness.controller.members.node(LEAVING)
        assert (found.draining, found.cordoned) == (False, False)
        # I3: above whatever it may remember of groups of that name.
        assert harness.group(f"{DEEP}:{LEAVING}").epoch > epoch

    on_nodes(test)


def test_another_node_may_take_the_name_at_once() -> None:
    async def test(harness: Harness) -> None:
        await drained(harness)
        await remove(harness)
        await harness.controller.members.register(node(LEAVING), "another key", seen=Authority())
        assert LEAVING in harness.controller.members.node_ids()

    on_nodes(test)


def test_a_dead_node_goes_once_all_that_it_had_is_made_anew() -> None:
    async def test(harness: Harness) -> None:
        await harness.kill(LEAVING)
        with pytest.raises(RefusedError, match="less redundancy than their pools ask for: llm-7b step"):
            await remove(harness)
        await harness.pass_time(61)
        await repair(harness)
        assert await remove(harness) == []
        await nobody_unknown_is_on_record(harness)
        for step in (10, 20):
            assert stands(harness, await blob_at(harness, step)) is Standing.FULL

    on_nodes(test)


def test_a_dead_node_that_no_other_can_replace_is_not_removed() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.pools.delete(DEEP, checkpoint_count=0)
        await harness.kill(LEAVING)
        await harness.wait(3)
        with pytest.raises(RefusedError, match="has no other node to take the place of n0"):
            await remove(harness)
        # Nothing is left half done.
        assert not harness.controller.members.node(LEAVING).draining

    async def run() -> None:
        harness = await started_deep(2, code=Code(1, 1))
        await harness.wait(1)
        await test(harness)

    asyncio.run(run())


async def with_single_pool() -> Harness:
    harness = await started_deep()
    await harness.controller.pools.create(Pool(SINGLE, Level.L1), request_id="single")
    await harness.wait(1)
    others = frozenset(harness.node_ids) - {LEAVING}
    for step in (1, 2):
        await harness.save(step, pool=SINGLE, avoid=others)
    await harness.save(3, pool=SINGLE, avoid=frozenset({LEAVING}))
    return harness


def test_what_only_a_dead_node_has_is_named_and_given_up_in_so_many_words() -> None:
    async def run() -> None:
        harness = await with_single_pool()
        await harness.kill(LEAVING)
        with pytest.raises(RefusedError, match=r"2 checkpoints are on node n0 alone.*step 1.*--accept-data-loss"):
            await remove(harness)
        assert await harness.steps() == [3, 2, 1]
        assert await remove(harness, accept_data_loss=True) == [f"{JOB} step 2", f"{JOB} step 1"]
        assert await harness.steps() == [3]
        assert LEAVING not in harness.controller.members.node_ids()
        # What lies in the trash of a node that is gone is collected, and keeps nobody.
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert await harness.trash() == []
        await nobody_unknown_is_on_record(harness)

    asyncio.run(run())


@pytest.mark.parametrize("is_home_up", [True, False], ids=["home is up", "home is down"])
def test_a_dead_node_that_leads_the_group_of_another_is_removed_and_the_group_handed_over(is_home_up: bool) -> None:
    async def run() -> None:
        harness = await with_single_pool()
        home = harness.node_ids[1]
        group_id = GroupId(f"{SINGLE}:{home}")
        await harness.kill(home)
        await harness.controller.moves.failover(group_id, LEAVING, accept_data_loss=True)
        assert harness.controller.members.group(group_id).members == (LEAVING,)
        if is_home_up:
            await harness.revive(home)
        await harness.kill(LEAVING)
        await remove(harness, accept_data_loss=True)
        assert LEAVING not in harness.controller.members.node_ids()
        group = harness.controller.members.group(group_id)
        assert (group.primary == home) is is_home_up
        assert group.members == (group.primary,)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        await nobody_unknown_is_on_record(harness)

    asyncio.run(run())


def test_a_live_nodes_only_copies_are_never_given_up_but_moved() -> None:
    async def run() -> None:
        harness = await with_single_pool()
        with pytest.raises(RefusedError, match="drain"):
            await remove(harness, accept_data_loss=True)
        await drained(harness)
        assert await remove(harness) == []
        assert await harness.steps() == [3, 2, 1]
        await nobody_unknown_is_on_record(harness)

    asyncio.run(run())


def test_a_deleted_checkpoint_that_could_still_be_brought_back_counts() -> None:
    async def run() -> None:
        harness = await with_single_pool()
        for step in (1, 2):
            await harness.controller.catalog.delete(JOB, step, why="test")
        await drained(harness)
        with pytest.raises(RefusedError, match=r"step 1 \(deleted\)"):
            await remove(harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert await remove(harness) == []

    asyncio.run(run())


def test_a_node_that_another_down_node_also_has_everything_of_gives_up_nothing() -> None:
    """Two copies on two dead nodes: with one removed, the other still has it, and it comes back with that one."""

    async def test(harness: Harness) -> None:
        begun = await harness.begin(30, pool=SPARE)
        assert begun.group
        first, second = begun.group.members
        await harness.seal(begun)
        await harness.kill(first, second)
        assert await remove(harness, first, accept_data_loss=True) == []
        assert 30 in await harness.steps()
        await harness.revive(second)
        await repair(harness)
        assert stands(harness, await blob_at(harness, 30), SPARE) is Standing.FULL

    on_nodes(test)


def test_what_nobody_else_has_stays_on_record_whatever_is_forgotten() -> None:
    """I4: it was to be given up, and came into reach again in between."""

    async def run() -> None:
        harness = await with_single_pool()
        controller = harness.controller
        await FreshLook(controller.records, controller.members, dict).forget(LEAVING)
        for step in (1, 2):
            assert nodes_of(await blob_at(harness, step)) == {LEAVING}

    asyncio.run(run())


def test_who_was_not_heard_yet_is_not_removed() -> None:
    async def test(harness: Harness) -> None:
        await drained(harness)
        harness.silent.add(LEAVING)
        await harness.start()
        with pytest.raises(RefusedError, match="not heard yet"):
            await remove(harness)

    on_nodes(test)


# P7: a commit names a node that was just removed


def test_a_save_with_a_shard_on_the_node_keeps_it_until_the_save_has_ended() -> None:
    async def test(harness: Harness) -> None:
        by = attempt(5)
        begun = await harness.begin(30, rank=0, world_size=2, by=by, pool=DEEP)
        await harness.seal(begun, rank=0)
        named = {h.node_id for shard in await harness.shards(begun.save) for b in shard.blobs for h in b.holders}
        leaving = sorted(named)[0]
        with pytest.raises(RefusedError, match="saves under way have shards on node"):
            await remove(harness, leaving)
        await harness.controller.nodes.drain(leaving)
        await harness.seal(await harness.begin(30, rank=1, world_size=2, by=by, pool=DEEP), rank=1)
        assert 30 in await harness.steps()
        await repair(harness)
        assert await remove(harness, leaving) == []
        await nobody_unknown_is_on_record(harness)

    on_nodes(test)


def _interleaved(other: Callable[[Harness], Awaitable[None]]) -> None:
    """``other`` is done before each transaction of a removal in turn; whoever loses is refused."""

    async def count() -> int:
        harness = await prepared()
        await drained(harness)
        before = harness.store.txn_count
        await remove(harness)
        return harness.store.txn_count - before

    async def run(number: int) -> bool:
        harness = await prepared()
        await drained(harness)
        target = harness.store.txn_count + number

        async def hook(current: int) -> None:
            if current == target:
                harness.store.before = None
                await other(harness)

        harness.store.before = hook
        with suppress(RefusedError, UnavailableError):
            await remove(harness)
        harness.store.heal()
        is_removed = LEAVING not in harness.controller.members.node_ids()
        if is_removed:
            await nobody_unknown_is_on_record(harness)
        await harness.wait(3)
        assert (await harness.save(100, pool=DEEP, by=attempt(9))).state is SaveState.COMMITTED
        return is_removed

    transactions = asyncio.run(count())
    assert transactions > 2
    for number in range(1, transactions + 1):
        asyncio.run(run(number))


def test_no_repair_puts_the_node_on_record_while_it_is_removed() -> None:
    """A copy was begun before the drain, and ends at any moment of the removal."""

    async def finish_a_copy(harness: Harness) -> None:
        save = await look(harness, 10)
        [shard] = await harness.shards(save)
        holder = Holder(LEAVING, DISK, 0, shard.blobs[0].holders[0].fragment_hash)
        with suppress(SdrsError):
            key = keys.shard(save.save_id, 0)
            await HolderRecords(harness.controller.records).add(key, shard.blobs[0].id, holder)

    _interleaved(finish_a_copy)


def test_no_receipt_of_a_former_group_counts_while_the_node_is_removed() -> None:
    async def send_a_receipt(harness: Harness) -> None:
        begun = await harness.begin(50, pool=DEEP, by=attempt(7))
        receipt = harness.receipt(begun)
        [blob] = receipt.shard.blobs
        first = replace(blob.holders[0], node_id=LEAVING)
        shard = replace(receipt.shard, blobs=(replace(blob, holders=(first, *blob.holders[1:])),))
        forged = replace(receipt, shard=shard)
        primary = harness.group(receipt.group_id).primary
        [outcome] = await harness.register_receipts(forged, node_id=primary)
        assert isinstance(outcome, SdrsError)

    _interleaved(send_a_receipt)


def test_a_node_that_registers_in_the_middle_of_its_removal_leaves_no_group_behind() -> None:
    registrations: list[asyncio.Future[None]] = []

    async def register(harness: Harness) -> None:
        """As soon as the removal lets anybody else change something: its turn comes between two of its steps."""
        restarted = replace(node(LEAVING), pid=99)
        joining = harness.controller.members.register(restarted, f"key of {LEAVING}", seen=Authority())
        registrations.append(asyncio.ensure_future(joining))

    _interleaved(register)
    outcomes = [registration.exception() for registration in registrations]
    assert None in outcomes, "it came in time, at least once"


def test_a_save_of_a_group_that_ends_with_its_node_begins_again_elsewhere() -> None:
    async def test(harness: Harness) -> None:
        await drained(harness)
        begun = await harness.begin(30, pool=DEEP, avoid=frozenset(NODES[2:]))
        own = harness.group(f"{DEEP}:{LEAVING}")
        receipt = harness.receipt(begun)
        await remove(harness)
        stale = replace(receipt, group_id=own.id, epoch=own.epoch)
        [outcome] = await harness.register_receipts(stale, node_id=own.primary)
        assert isinstance(outcome, SdrsError)
        assert outcome.reason == "STALE_EPOCH", "its client asks for another group, and does not give up"
        await harness.seal(await harness.begin(30, pool=DEEP))
        assert 30 in await harness.steps()

    on_nodes(test)


# Questions


def test_a_node_is_ok_to_stop_while_all_stays_readable_and_pools_take_saves() -> None:
    async def test(harness: Harness) -> None:
        questions = harness.controller.node_questions
        told = await questions.ask(LEAVING, Question.OK_TO_STOP)
        assert "may be stopped" in told
        await harness.kill(*NODES[1:3])
        await harness.wait(1)
        with pytest.raises(RefusedError, match="cannot be read"):
            await questions.ask(LEAVING, Question.OK_TO_STOP)

    on_nodes(test)


def test_a_node_is_safe_to_destroy_once_it_is_drained() -> None:
    async def test(harness: Harness) -> None:
        questions = harness.controller.node_questions
        with pytest.raises(RefusedError, match="less redundancy"):
            await questions.ask(LEAVING, Question.SAFE_TO_DESTROY)
        await drained(harness)
        assert "may be destroyed" in await questions.ask(LEAVING, Question.SAFE_TO_DESTROY)
        with pytest.raises(NotFoundError):
            await questions.ask(NodeId("nx"), Question.OK_TO_STOP)

    on_nodes(test)


def test_what_cannot_be_told_is_refused() -> None:
    async def test(harness: Harness) -> None:
        questions = harness.controller.node_questions
        assert await questions.ask(NODES[7], Question.OK_TO_STOP)
        [shard] = await harness.shards(await look(harness, 10))
        await harness.store.txn([], [Put(keys.shard(shard.save_id, 1), b"not a record")])
        for question in Question:
            with pytest.raises(RefusedError, match="the catalog cannot be read"):
                await questions.ask(LEAVING, question)
        await harness.store.txn([], [Delete(keys.shard(shard.save_id, 1))])
        harness.silent.add(NODES[1])
        await harness.start()
        for question in Question:
            with pytest.raises(RefusedError, match="not heard yet"):
                await questions_of(harness).ask(LEAVING, question)
        harness.controller.records.frozen_because = "the metadata was rolled back"
        for question in Question:
            with pytest.raises(RefusedError, match="rolled back"):
                await questions_of(harness).ask(LEAVING, question)

    def questions_of(harness: Harness) -> NodeQuestions:
        return harness.controller.node_questions

    on_nodes(test)


# Interrupted


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize("story", ["drain", "cancel", "remove", "remove dead"])
def test_a_departure_may_be_interrupted_at_any_transaction(story: str, lost: bool, restart: bool) -> None:
    async def prepare() -> Harness:
        harness = await prepared()
        if story in ("cancel", "remove"):
            await drained(harness)
        if story == "remove dead":
            await harness.kill(LEAVING)
            await harness.pass_time(61)
            await repair(harness)
        return harness

    async def carry_out(harness: Harness) -> None:
        nodes = harness.controller.nodes
        if story == "drain":
            await nodes.drain(LEAVING)
        elif story == "cancel":
            await nodes.cancel_drain(LEAVING)
        else:
            await nodes.remove(LEAVING, accept_data_loss=False)

    async def check(harness: Harness) -> None:
        """It is there or it is not, and either way everything is whole and goes on."""
        is_there = LEAVING in harness.controller.members.node_ids()
        if not restart and story.startswith("remove"):
            assert not is_there
        await harness.wait(8)
        await repair(harness)
        if not is_there:
            harness.node_ids = tuple(known for known in harness.node_ids if known != LEAVING)
        await nobody_unknown_is_on_record(harness)
        for step in (10, 20):
            assert stands(harness, await blob_at(harness, step)) is Standing.FULL
        assert (await harness.save(100, pool=DEEP, by=attempt(9))).state is SaveState.COMMITTED
        groups = harness.controller.members.groups(pool=DEEP)
        assert {len(group.members) for group in groups} == {6}
        if is_there and harness.controller.members.node(LEAVING).draining:
            # Whoever asks again gets to the end.
            await harness.controller.nodes.remove(LEAVING, accept_data_loss=False)
            await nobody_unknown_is_on_record(harness)

    interrupt_everywhere(prepare, carry_out, check, lost=lost, restart=restart)


def test_a_pool_of_named_nodes_forgets_one_that_is_removed() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.pools.update(SPARE, PoolChange(remove_nodes=(NODES[7],)))
        await drained(harness)
        await remove(harness)
        assert harness.controller.members.pool(SPARE).node_ids == NODES[1:7]

    on_nodes(test)
