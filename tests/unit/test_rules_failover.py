"""Failover on the real controller over a store in memory: who is judged, what is re-formed and refused (I3, I4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import Authority, Node, NodeState
from sdrs_core.errors import RefusedError, SdrsError, StaleEpochError, UnavailableError
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_storaged.control.saves import Begun
from tests.support.control import Harness, attempt, node, started

A, B, C, D = (NodeId(f"node-{letter}") for letter in "abcd")
FAST = PoolName("fast")
OF_A = "fast:node-a"

Test = Callable[[Harness], Awaitable[None]]


def on_four_nodes(test: Test, *, mirrors: int = 2, allow_degraded: bool = False, node_count: int = 4) -> None:
    async def run() -> None:
        harness = await started(node_ids=(A, B, C, D)[:node_count])
        await harness.create_pool(FAST, mirrors=mirrors, allow_degraded=allow_degraded)
        await harness.wait(1)
        await test(harness)

    asyncio.run(run())


async def begin_at_a(harness: Harness, step: int = 10) -> Begun:
    """A save that goes to the group of node a."""
    others = frozenset(harness.node_ids) - {A}
    begun = await harness.begin(step, pool=FAST, avoid=others)
    assert begun.group
    assert begun.group.id == OF_A
    return begun


async def events_of(harness: Harness) -> list[str]:
    found, _ = await harness.controller.events.page(group_id="", node_id="", after="", limit=100)
    return [event.kind for event in found]


def test_each_node_is_preferred_primary_of_a_group_with_replicas_elsewhere() -> None:
    async def test(harness: Harness) -> None:
        groups = harness.controller.members.groups(pool=FAST)
        assert [group.primary for group in groups] == [A, B, C, D]
        assert all(len(set(group.members)) == 2 and group.members == group.home for group in groups)
        replicas = [group.members[1] for group in groups]
        assert sorted(replicas) == [A, B, C, D]

    on_four_nodes(test)


def test_a_killed_primary_is_replaced_at_once_by_its_replica_and_a_spare_is_taken_in() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group(OF_A)
        await harness.kill(A)
        after = harness.group(OF_A)
        assert after.epoch == before.epoch + 1
        assert after.primary == before.members[1]
        assert len(after.members) == 2
        assert A not in after.members
        assert all(A not in group.members for group in harness.controller.members.groups(pool=FAST))
        assert "primary_promoted" in await events_of(harness)
        assert "node_lost" in await events_of(harness)
        [promoted], _ = await harness.controller.events.page(group_id=OF_A, node_id="", after="", limit=100)
        replica, spare = after.members
        assert promoted.text == f"{replica} leads; node-a is down; {spare} joins"

    on_four_nodes(test)


def test_a_frozen_node_counts_after_suspect_after_and_not_before() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group(OF_A)
        harness.freeze(A)
        await harness.wait(1.5)
        assert harness.group(OF_A) == before
        await harness.wait(1)
        assert harness.group(OF_A).primary == before.members[1]

    on_four_nodes(test)


def test_a_blip_of_the_whole_network_demotes_nobody() -> None:
    """P20: silence counts only while as many nodes are heard."""

    async def test(harness: Harness) -> None:
        before = harness.controller.members.groups(pool=FAST)
        harness.freeze(A, B, C)
        await harness.wait(10)
        assert harness.controller.members.groups(pool=FAST) == before
        await harness.revive(A, B, C)
        assert harness.controller.members.groups(pool=FAST) == before

    on_four_nodes(test)


def test_a_controller_that_stood_still_judges_nobody_by_what_it_could_not_hear() -> None:
    async def test(harness: Harness) -> None:
        before = harness.controller.members.groups(pool=FAST)
        running = asyncio.ensure_future(harness.controller.failover.run())
        await asyncio.sleep(0)
        harness.clock.advance(60)
        harness.controller.failover.wake()
        for _ in range(10):
            await asyncio.sleep(0)
        assert harness.controller.members.groups(pool=FAST) == before
        assert all(harness.controller.detector.liveness(node) is Liveness.UP for node in harness.node_ids)
        running.cancel()

    on_four_nodes(test)


def test_nodes_that_gave_up_on_a_controller_that_stood_still_may_link_again_before_they_are_judged() -> None:
    """P20: the end of their streams is heard in the same instant as what the others sent."""

    async def test(harness: Harness) -> None:
        before = harness.controller.members.groups(pool=FAST)
        harness.clock.advance(60)
        harness.controller.members.stream_ended(A, harness)
        harness.controller.detector.restart_timers()
        await harness.settle()
        assert harness.controller.members.groups(pool=FAST) == before
        harness.freeze(A)
        await harness.wait(3)
        assert A not in harness.group(OF_A).members

    on_four_nodes(test)


def test_a_node_that_was_never_heard_is_not_judged_by_a_controller_that_stood_still_since_it_began() -> None:
    async def test(harness: Harness) -> None:
        before = harness.controller.members.groups(pool=FAST)
        harness.silent.add(A)
        await harness.start()
        harness.clock.advance(60)
        harness.controller.detector.restart_timers()
        await harness.settle()
        assert harness.controller.members.groups(pool=FAST) == before

    on_four_nodes(test)


def test_a_node_is_probed_once_at_a_time_and_once_more_for_who_asked_meanwhile() -> None:
    async def test(harness: Harness) -> None:
        probed: list[NodeId] = []

        async def is_refused(node: Node) -> bool:
            probed.append(node.id)
            await asyncio.sleep(0)
            return False

        harness.nodes.is_refused = is_refused  # type: ignore[method-assign]
        for _ in range(100):
            harness.controller.detector.look_at(harness.controller.members.node(A))
        await harness.settle()
        assert probed == [A, A]
        harness.controller.detector.look_at(harness.controller.members.node(A))
        await harness.controller.detector.close()
        harness.controller.detector.look_at(harness.controller.members.node(A))
        await harness.settle()
        assert len(probed) <= 3

    on_four_nodes(test)


def test_a_killed_node_whose_port_closes_a_moment_after_its_stream_is_looked_at_again() -> None:
    async def test(harness: Harness) -> None:
        answers = [False, False, True]

        async def is_refused(node: Node) -> bool:
            return answers.pop(0) if answers else True

        harness.nodes.is_refused = is_refused  # type: ignore[method-assign]
        harness.silent.add(A)
        harness.controller.members.stream_ended(A, harness)
        async with asyncio.timeout(20):
            while harness.controller.detector.liveness(A) is not Liveness.DOWN:
                await asyncio.sleep(0.01)
                await harness.controller.failover.pass_once()
        assert answers == []

    on_four_nodes(test)


def test_who_registers_again_as_before_costs_no_transaction_and_no_new_map() -> None:
    async def test(harness: Harness) -> None:
        await harness.start()
        number, txn_count = harness.controller.map.number, harness.store.txn_count
        await harness.register()
        assert (harness.controller.map.number, harness.store.txn_count) == (number, txn_count)

    on_four_nodes(test)


def test_a_node_that_moved_to_another_domain_is_planned_for_also_if_the_answer_was_lost() -> None:
    async def test(harness: Harness) -> None:
        replica = harness.group(OF_A).home[1]
        moved = replace(node(replica), domain=A)
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await harness.controller.members.register(moved, f"key of {replica}", seen=Authority())
        await harness.controller.members.register(moved, f"key of {replica}", seen=Authority())
        assert replica not in harness.group(OF_A).home

    on_four_nodes(test)


def test_the_history_tells_of_a_loss_also_if_the_store_was_out_of_reach_then() -> None:
    async def test(harness: Harness) -> None:
        harness.store.fail(1, UnavailableError("the store is out of reach"))
        with pytest.raises(UnavailableError):
            await harness.kill(A)
        await harness.settle()
        assert (await events_of(harness)).count("node_lost") == 1

    on_four_nodes(test)


def test_whoever_follows_the_map_hears_of_a_failover_whose_answer_was_lost() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group(OF_A)
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await harness.kill(A)
        number = harness.controller.map.number
        # By whoever looks first; the next round of failover then finds nothing left to do.
        await harness.controller.members.settle_doubt()
        assert harness.group(OF_A).epoch == before.epoch + 1
        assert harness.controller.map.number > number

    on_four_nodes(test)


def test_while_the_store_is_out_of_reach_nobody_is_demoted_and_afterwards_failover_goes_on() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group(OF_A)

        async def outage(_: int) -> None:
            raise UnavailableError("the store is out of reach")

        harness.store.before = outage
        with pytest.raises(UnavailableError):
            await harness.kill(A)
        assert harness.group(OF_A) == before
        harness.store.heal()
        await harness.settle()
        assert harness.group(OF_A).epoch == before.epoch + 1

    on_four_nodes(test)


def test_a_failover_whose_answer_was_lost_is_found_and_not_done_twice() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group(OF_A)
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await harness.kill(A)
        harness.store.heal()
        await harness.settle()
        await harness.settle()
        assert harness.group(OF_A).epoch == before.epoch + 1

    on_four_nodes(test)


def test_a_new_controller_does_not_take_nodes_for_dead_that_it_has_not_heard_yet() -> None:
    async def test(harness: Harness) -> None:
        before = harness.controller.members.groups(pool=FAST)
        harness.silent.update(harness.node_ids)
        await harness.start()
        harness.silent.discard(D)
        await harness.wait(3)
        assert harness.controller.members.groups(pool=FAST) == before

    on_four_nodes(test)


def test_a_new_controller_that_has_not_heard_enough_nodes_yet_asks_for_patience_instead_of_refusing() -> None:
    async def test(harness: Harness) -> None:
        harness.silent.update((A, B, C))
        await harness.start()
        with pytest.raises(UnavailableError, match="not heard yet"):
            await harness.begin(10, pool=FAST)
        await harness.revive(A, B, C)
        assert (await harness.begin(10, pool=FAST)).group

    on_four_nodes(test)


def test_a_returning_node_gets_its_group_back_after_it_has_settled() -> None:
    async def test(harness: Harness) -> None:
        home = harness.group(OF_A).home
        await harness.kill(A)
        await harness.revive(A)
        assert harness.group(OF_A).primary != A
        await harness.wait(harness.controller.config.settle_seconds + 1)
        after = harness.group(OF_A)
        assert after.primary == A
        assert set(after.members) == set(home)
        assert "group_restored" in await events_of(harness)

    on_four_nodes(test)


def test_a_flapping_node_is_not_given_its_groups_back() -> None:
    async def test(harness: Harness) -> None:
        for _ in range(3):
            await harness.kill(A)
            await harness.revive(A)
        await harness.wait(20)
        assert harness.controller.members.node(A).flapping
        assert harness.group(OF_A).primary != A
        await harness.wait(310)
        assert harness.group(OF_A).primary == A

    on_four_nodes(test)


def test_an_l1_group_is_never_moved() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group("default:node-a")
        await harness.kill(A)
        await harness.wait(20)
        assert harness.group("default:node-a") == before

    on_four_nodes(test)


def test_a_stale_primary_cannot_commit() -> None:
    """I3: the receipt of a primary that was replaced meanwhile is refused, and tells the new epoch."""

    async def test(harness: Harness) -> None:
        begun = await begin_at_a(harness)
        receipt = harness.receipt(begun)
        await harness.kill(A)
        [outcome] = await harness.register_receipts(receipt, node_id=A)
        assert isinstance(outcome, StaleEpochError)
        assert outcome.facts["epoch"] == str(harness.group(OF_A).epoch)
        assert outcome.facts["primary"] == harness.group(OF_A).primary
        assert await harness.steps() == []

    on_four_nodes(test)


def test_what_was_sealed_before_the_primary_died_becomes_a_checkpoint_with_the_other_ranks() -> None:
    """P7: a holder that is down has not left; its copy was durable when it was counted."""

    async def test(harness: Harness) -> None:
        first = await harness.begin(10, world_size=2, pool=FAST, avoid=frozenset({B, C, D}))
        await harness.seal(first)
        await harness.kill(A)
        second = await harness.begin(10, rank=1, world_size=2, pool=FAST)
        assert await harness.seal(second, rank=1) is SaveState.COMMITTED
        [save] = await harness.listed()
        assert save.level is Level.L2

    on_four_nodes(test)


def test_without_a_spare_a_group_refuses_saves_and_says_what_to_do() -> None:
    async def test(harness: Harness) -> None:
        await harness.kill(A)
        with pytest.raises(RefusedError, match=r"needs 2 nodes that take saves, 1 of 2 do.*--allow-degraded"):
            await harness.begin(10, pool=FAST)
        assert len(harness.controller.commits) == 0  # and nothing is left behind by it
        await harness.revive(A)
        await harness.wait(10)
        assert (await harness.begin(10, pool=FAST)).group

    on_four_nodes(test, node_count=2)


def test_a_pool_that_allows_it_goes_on_with_fewer_copies_and_the_level_says_so() -> None:
    """I6."""

    async def test(harness: Harness) -> None:
        await harness.kill(A)
        save = await harness.save(10, pool=FAST)
        assert save.state is SaveState.COMMITTED
        assert save.level is Level.L1

    on_four_nodes(test, node_count=2, allow_degraded=True)


def test_a_receipt_must_name_every_member() -> None:
    """I1: acknowledged means durable on all of them."""

    async def test(harness: Harness) -> None:
        begun = await begin_at_a(harness)
        receipt = harness.receipt(begun)
        [blob] = receipt.shard.blobs
        alone = replace(receipt, shard=replace(receipt.shard, blobs=(replace(blob, holders=blob.holders[:1]),)))
        [outcome] = await harness.register_receipts(alone, node_id=A)
        assert isinstance(outcome, SdrsError)
        assert await harness.steps() == []

    on_four_nodes(test)


def test_a_member_that_its_primary_finds_slow_is_replaced_in_that_group_only() -> None:
    async def test(harness: Harness) -> None:
        group = harness.group(OF_A)
        slow = group.members[1]
        harness.controller.failover.report(A, group.id, group.epoch, slow, slow=True, why="no progress")
        await harness.settle()
        assert slow not in harness.group(OF_A).members
        assert len(harness.group(OF_A).members) == 2
        assert harness.controller.members.node(slow).state is NodeState.UP
        assert any(slow in other.members for other in harness.controller.members.groups(pool=FAST))

    on_four_nodes(test)


def test_a_primary_that_finds_fault_with_one_member_after_the_other_is_the_one_to_go() -> None:
    async def test(harness: Harness) -> None:
        for _ in range(2):
            group = harness.group(OF_A)
            assert group.primary == A
            member = next(node for node in group.members if node != A)
            harness.controller.failover.report(A, group.id, group.epoch, member, slow=True, why="it takes nothing")
            await harness.settle()
        after = harness.group(OF_A)
        assert A not in after.members
        assert len(after.members) == 2
        await harness.wait(60 + harness.controller.config.settle_seconds + 1)
        assert harness.group(OF_A).primary == A

    on_four_nodes(test)


def test_only_the_primary_of_the_current_epoch_is_believed_about_its_members() -> None:
    async def test(harness: Harness) -> None:
        group = harness.group(OF_A)
        member = group.members[1]
        for reporter, epoch in ((member, group.epoch), (A, group.epoch - 1), (A, group.epoch + 1)):
            harness.controller.failover.report(reporter, group.id, epoch, member, slow=True, why="a lie")
            await harness.settle()
        assert harness.group(OF_A) == group

    on_four_nodes(test)


def test_two_in_a_row_leave_groups_of_the_living() -> None:
    async def test(harness: Harness) -> None:
        await harness.kill(A)
        await harness.kill(B)
        assert all(set(group.members) == {C, D} for group in harness.controller.members.groups(pool=FAST))
        assert (await harness.save(10, pool=FAST)).level is Level.L2

    on_four_nodes(test)


def test_a_deposed_controller_fails_nobody_over() -> None:
    """I2: each change of a group compares the term."""

    async def test(harness: Harness) -> None:
        old = harness.controller
        await harness.start()
        await harness.wait(1)
        harness.silent.add(A)
        harness.nodes.refusing.add(A)
        old.members.stream_ended(A, harness)
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(SdrsError):
            await old.failover.pass_once()
        assert harness.group(OF_A).primary == A

    on_four_nodes(test)


def test_epochs_of_a_pool_that_is_made_again_begin_above_those_that_nodes_remember() -> None:
    async def test(harness: Harness) -> None:
        await harness.kill(A)
        highest = max(group.epoch for group in harness.controller.members.groups(pool=FAST))
        await harness.delete_pool(FAST)
        await harness.create_pool(FAST, mirrors=2)
        assert min(group.epoch for group in harness.controller.members.groups(pool=FAST)) > highest

    on_four_nodes(test)


def test_a_joining_node_gets_a_group_and_takes_its_share_of_replicas() -> None:
    async def test(harness: Harness) -> None:
        harness.node_ids = (A, B, C, D)
        await harness.register()
        await harness.wait(10)
        groups = harness.controller.members.groups(pool=FAST)
        assert [group.primary for group in groups] == [A, B, C, D]
        assert sum(D in group.members for group in groups) == 2

    on_four_nodes(test, node_count=3)


def test_a_newer_attempt_takes_over_across_a_failover() -> None:
    """P1: ranks of different attempts never join, also when the group moved between them."""

    async def test(harness: Harness) -> None:
        first = await harness.begin(10, world_size=2, pool=FAST, avoid=frozenset({B, C, D}))
        await harness.seal(first)
        await harness.kill(A)
        second = await harness.begin(10, rank=1, world_size=2, pool=FAST, by=attempt(1))
        assert second.save.save_id != first.save.save_id
        await harness.seal(second, rank=1)
        assert await harness.steps() == []

    on_four_nodes(test)


def test_a_member_that_was_reported_because_it_had_died_is_welcome_when_it_is_back() -> None:
    async def test(harness: Harness) -> None:
        group = harness.group(OF_A)
        member = group.members[1]
        harness.controller.failover.report(A, group.id, group.epoch, member, slow=False, why="it does not answer")
        await harness.kill(member)
        await harness.revive(member)
        await harness.wait(harness.controller.config.settle_seconds + 1)
        assert set(harness.group(OF_A).members) == set(group.home)

    on_four_nodes(test)
