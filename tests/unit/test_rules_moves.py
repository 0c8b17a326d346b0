"""What operators do by hand, and what is refused to them, on the real controller over a store in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.cluster import Authority
from sdrs_core.errors import InvalidArgumentError, NotFoundError, RefusedError, UnavailableError
from sdrs_core.ids import GroupId
from tests.support.control import Harness, node
from tests.unit.test_rules_failover import FAST, OF_A, A, B, C, D, begin_at_a, events_of, on_four_nodes

GROUP = GroupId(OF_A)


def test_a_switchover_moves_the_primary_and_it_stays_there() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group(OF_A)
        moved = await harness.controller.moves.switchover(GROUP, "", 0)
        assert moved.primary == before.members[1]
        assert moved.epoch == before.epoch + 1
        await harness.wait(20)
        assert harness.group(OF_A).primary == moved.primary
        assert "switchover" in await events_of(harness)

    on_four_nodes(test)


def test_a_switchover_can_name_a_node_that_is_not_a_member_yet() -> None:
    async def test(harness: Harness) -> None:
        before = harness.group(OF_A)
        stranger = next(node for node in harness.node_ids if node not in before.members)
        moved = await harness.controller.moves.switchover(GROUP, stranger, 0)
        assert moved.primary == stranger
        assert len(moved.members) == 2

    on_four_nodes(test)


def test_a_node_that_is_moved_in_takes_the_place_of_one_that_is_lost() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.moves.set_automatic("maintenance")
        primary, replica = harness.group(OF_A).members
        stranger = next(node for node in harness.node_ids if node not in (primary, replica))
        await harness.kill(primary)
        moved = await harness.controller.moves.switchover(GROUP, stranger, 0)
        assert (moved.primary, moved.members) == (stranger, (replica, stranger))

    on_four_nodes(test)


def test_a_node_that_is_moved_in_takes_the_place_of_one_in_its_own_domain() -> None:
    async def test(harness: Harness) -> None:
        primary, replica = harness.group(OF_A).members
        stranger = next(node for node in harness.node_ids if node not in (primary, replica))
        moved_in = replace(node(stranger), domain=primary)
        await harness.controller.members.register(moved_in, f"key of {stranger}", seen=Authority())
        moved = await harness.controller.moves.switchover(GROUP, stranger, 0)
        assert (moved.primary, moved.members) == (stranger, (replica, stranger))
        assert set(moved.home) == {replica, stranger}

    on_four_nodes(test)


def test_a_node_that_its_group_does_without_leads_it_once_an_operator_says_so() -> None:
    async def test(harness: Harness) -> None:
        replica = harness.group(OF_A).members[1]
        harness.controller.groups.shun(GROUP, replica, by=A)
        moved = await harness.controller.moves.switchover(GROUP, replica, 0)
        await harness.wait(1)
        assert harness.group(OF_A).primary == moved.primary == replica
        assert replica in harness.group(OF_A).members

    on_four_nodes(test)


def test_a_switchover_waits_for_saves_under_way_and_keeps_new_ones_away() -> None:
    async def test(harness: Harness) -> None:
        begun = await begin_at_a(harness)
        moving = asyncio.ensure_future(harness.controller.moves.switchover(GROUP, "", 60))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not moving.done()
        other = await harness.begin(20, pool=FAST)
        assert other.group
        assert other.group.id != OF_A
        await harness.seal(begun)
        assert (await moving).primary != A
        assert await harness.steps() == [10]

    on_four_nodes(test)


def test_a_save_waits_for_switchovers_if_no_other_group_takes_it() -> None:
    async def test(harness: Harness) -> None:
        groups = {group.id for group in harness.controller.members.groups(pool=FAST)}
        harness.controller.groups.moving |= groups
        with pytest.raises(UnavailableError, match="is being moved"):
            await harness.begin(10, pool=FAST)
        harness.controller.groups.moving -= groups
        assert (await harness.begin(10, pool=FAST)).group

    on_four_nodes(test)


def test_a_switchover_does_not_wait_for_a_rank_that_goes_elsewhere_by_now() -> None:
    async def test(harness: Harness) -> None:
        await begin_at_a(harness)
        moving = asyncio.ensure_future(harness.controller.moves.switchover(GROUP, "", 60))
        await asyncio.sleep(0)
        elsewhere = await harness.begin(10, pool=FAST)
        assert elsewhere.group
        assert elsewhere.group.id != OF_A
        assert (await asyncio.wait_for(moving, 20)).primary != A

    on_four_nodes(test)


def test_a_switchover_to_a_node_that_is_down_or_cordoned_is_refused() -> None:
    async def test(harness: Harness) -> None:
        await harness.kill(D)
        with pytest.raises(RefusedError, match="down"):
            await harness.controller.moves.switchover(GROUP, D, 0)
        await harness.controller.moves.set_cordon(C, cordoned=True)
        with pytest.raises(RefusedError, match="cordoned"):
            await harness.controller.moves.switchover(GROUP, C, 0)
        with pytest.raises(NotFoundError):
            await harness.controller.moves.switchover(GROUP, "node-x", 0)

    on_four_nodes(test)


def test_an_l1_group_is_not_switched_over() -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(RefusedError, match="L1"):
            await harness.controller.moves.switchover(GroupId("default:node-a"), B, 0)

    on_four_nodes(test)


def test_while_paused_nothing_fails_over_but_an_operator_still_can() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.moves.set_automatic("maintenance")
        before = harness.group(OF_A)
        await harness.kill(A)
        await harness.wait(5)
        assert harness.group(OF_A) == before
        group, lost = await harness.controller.moves.failover(GROUP, "", accept_data_loss=False)
        assert group.primary == before.members[1]
        assert A not in group.members
        assert lost == []
        groups, _ = harness.controller.members.groups_taking_saves(FAST)
        [taking] = [g for g in groups if g.id == OF_A]
        assert taking.problem == ""
        await harness.start()
        assert harness.controller.members.paused_because() == "maintenance"
        await harness.controller.moves.set_automatic("")
        await harness.wait(5)
        assert A not in harness.group(OF_A).members

    on_four_nodes(test)


def test_only_what_lies_on_nodes_of_the_group_is_given_up_with_it() -> None:
    async def test(harness: Harness) -> None:
        for step, primary in ((10, A), (20, B)):
            await harness.save(step, avoid=frozenset(harness.node_ids) - {primary})
        await harness.kill(A, B)
        await harness.wait(5)
        group_id = GroupId("default:node-a")
        with pytest.raises(RefusedError, match="1 checkpoints on nodes of group"):
            await harness.controller.moves.failover(group_id, "", accept_data_loss=False)
        group, lost = await harness.controller.moves.failover(group_id, "", accept_data_loss=True)
        assert [save.step for save in lost] == [10]
        assert await harness.steps() == [20]
        assert (group.members, group.home) == ((C,), (C,))

    on_four_nodes(test)


def test_nothing_is_given_up_for_a_failover_that_is_refused() -> None:
    async def test(harness: Harness) -> None:
        await harness.save(10, pool=FAST)
        [holders] = [
            blob.holders for shard in await harness.shards((await harness.listed())[0]) for blob in shard.blobs
        ]
        await harness.controller.moves.set_automatic("maintenance")
        await harness.kill(*(holder.node_id for holder in holders))
        await harness.wait(5)
        with pytest.raises(RefusedError, match="down"):
            await harness.controller.moves.failover(GROUP, holders[0].node_id, accept_data_loss=True)
        assert await harness.steps() == [10]

    on_four_nodes(test)


def test_a_cordoned_node_is_replaced_and_a_cordon_that_leaves_too_few_is_refused() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.moves.set_cordon(A, cordoned=True)
        await harness.wait(1)
        assert all(A not in group.members for group in harness.controller.members.groups(pool=FAST))
        begun = await harness.begin(10)
        assert begun.group
        assert begun.group.primary != A
        await harness.controller.moves.set_cordon(B, cordoned=True)
        with pytest.raises(RefusedError, match="needs 2 nodes"):
            await harness.controller.moves.set_cordon(C, cordoned=True)
        await harness.controller.moves.set_cordon(A, cordoned=False)
        await harness.wait(10)
        assert harness.group(OF_A).primary == A

    on_four_nodes(test)


def test_the_cordon_of_a_node_survives_its_return_and_a_new_controller() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.moves.set_cordon(A, cordoned=True, because="new fan")
        await harness.start()
        node = harness.controller.members.node(A)
        assert (node.cordoned, node.cordoned_because) == (True, "new fan")

    on_four_nodes(test)


def test_the_reason_of_a_cordon_is_in_the_history_can_be_changed_and_goes_with_it() -> None:
    async def test(harness: Harness) -> None:
        controller = harness.controller
        await controller.moves.set_cordon(A, cordoned=True, because="new fan")
        await controller.moves.set_cordon(A, cordoned=True)  # said again, without one: it stays
        assert controller.members.node(A).cordoned_because == "new fan"
        await controller.moves.set_cordon(A, cordoned=True, because="new disks")
        assert controller.members.node(A).cordoned_because == "new disks"
        events, _ = await controller.events.page(group_id="", node_id=A, after="", limit=10)
        told = [event.text for event in events if event.kind == "cordoned"]
        assert [text.partition("operator: ")[2] for text in told] == ["new disks", "new fan"]
        await controller.moves.set_cordon(A, cordoned=False)
        assert controller.members.node(A).cordoned_because == ""
        with pytest.raises(InvalidArgumentError, match="one line"):
            await controller.moves.set_cordon(A, cordoned=True, because="a\nb")

    on_four_nodes(test)


def test_a_pool_with_more_mirrors_than_failure_domains_is_refused() -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(RefusedError, match="needs 5 failure domains"):
            await harness.create_pool("wide", mirrors=5)

    on_four_nodes(test)


def test_history_is_newest_first_and_can_be_asked_for_one_group() -> None:
    async def test(harness: Harness) -> None:
        await harness.kill(A)
        await harness.controller.moves.switchover(GroupId("fast:node-b"), C, 0)
        kinds = await events_of(harness)
        assert kinds[0] == "switchover"
        page, token = await harness.controller.events.page(group_id="fast:node-b", node_id="", after="", limit=1)
        assert [event.kind for event in page] == ["switchover"]
        rest, _ = await harness.controller.events.page(group_id="fast:node-b", node_id="", after=token, limit=100)
        assert all(event.group_id == "fast:node-b" for event in rest)

    on_four_nodes(test)


def test_two_cordons_at_once_leave_enough_nodes() -> None:
    async def test(harness: Harness) -> None:
        moves = harness.controller.moves
        cordons = [moves.set_cordon(node_id, cordoned=True) for node_id in (A, B, C)]
        outcomes = await asyncio.gather(*cordons, return_exceptions=True)
        assert sum(isinstance(outcome, RefusedError) for outcome in outcomes) == 1
        assert sum(node.cordoned for node in harness.controller.members.nodes()) == 2

    on_four_nodes(test)
