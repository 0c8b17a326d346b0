"""The schedules of PROTOCOL.md's rules that need exact timing, each as it would break the rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import StaleAttemptError, UnavailableError
from sdrs_core.ids import NodeId, random_id
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control import keys
from tests.simulation.client import contents_of
from tests.simulation.ledger import SHARDS
from tests.simulation.stage import FIRST, JOB, Stage, perform
from tests.simulation.story import until


def test_a_frozen_primary_wakes_up_and_commits_nothing() -> None:
    """I3: SIGSTOP in the middle of a seal, for longer than the others wait; then SIGCONT."""

    async def script(stage: Stage) -> None:
        saving = stage.begin_saving(stage.rank(), 1)
        primary, request = await stage.until_asked("seal_shard")
        frozen = stage.world.nodes[NodeId(primary)].process
        frozen.pause()
        await until(lambda: stage.groups()[request.group_id].epoch > request.epoch, "the group is re-formed")
        frozen.resume()
        save = await saving
        await asyncio.sleep(20.0)
        assert [found.save_id for found in stage.committed()] == [save.save_id]
        assert NodeId(primary) not in stage.world.checks.holders_by_name(save)

    perform(script)


def test_a_commit_whose_answer_was_lost_is_found_again() -> None:
    """P6: the store commits, the controller never hears of it; the client asks on."""

    async def script(stage: Stage) -> None:
        _lose_answer_of_commit(stage)
        save = await stage.save(1)
        assert save.state is SaveState.COMMITTED
        assert stage.world.checks.commit_count == 1

    perform(script)


def test_a_commit_whose_controller_died_before_it_heard_is_found_by_the_next_one() -> None:
    """P6: as above, and the process that asked for it is gone, too."""

    async def script(stage: Stage) -> None:
        leader = stage.leader
        _lose_answer_of_commit(stage, then=leader.process.kill)
        save = await stage.save(1)
        assert stage.leader is not leader
        assert save.state is SaveState.COMMITTED
        assert stage.world.checks.commit_count == 1

    perform(script)


def _lose_answer_of_commit(stage: Stage, then: Callable[[], None] = lambda: None) -> None:
    async def lose() -> None:
        then()
        raise UnavailableError("the answer was lost")

    stage.at_next(keys.SAVES, after=lose, holds=lambda: bool(stage.committed()))


def test_a_layout_that_moves_just_before_the_commit_does_not_stop_it() -> None:
    """P7: the commit compares the layout that it was validated against; when that moved, it is looked at again."""

    async def script(stage: Stage) -> None:
        async def move() -> None:
            group = next(iter(stage.groups().values()))
            request = pb.SwitchoverRequest(request_id=random_id(), group_id=group.id, drain_ms=100)
            await stage.operator.control.call("switchover", request)

        saving = stage.begin_saving(stage.rank(), 1)
        await stage.until_asked("register_receipts")
        layout = stage.layout()
        stage.at_next(keys.SAVES, before=move)
        await saving
        assert stage.layout() > layout
        assert [save.layout for save in stage.committed()] == [stage.layout()]
        assert stage.world.checks.commit_count == 1

    perform(script)


def test_a_receipt_whose_group_moves_just_before_it_is_stored_does_not_count() -> None:
    """I3, P7: it was checked while its sender was the primary; the transaction finds that it no longer is."""

    async def script(stage: Stage) -> None:
        saving = stage.begin_saving(stage.rank(), 1)
        primary, request = await stage.until_asked("seal_shard")

        async def move() -> None:
            other = next(
                name for name in stage.world.node_names if name not in stage.groups()[request.group_id].members
            )
            failover = pb.FailoverRequest(request_id=random_id(), group_id=request.group_id, to_node_id=other)
            await stage.operator.control.call("failover", failover)

        stage.at_next(SHARDS, before=move)
        save = await saving
        assert stage.groups()[request.group_id].primary != primary
        assert stage.world.checks.holders_by_name(save) == set(stage.groups()[request.group_id].members)

    perform(script)


def test_late_bytes_for_a_former_member_leave_nothing_behind() -> None:
    """P8: a copy is on its way for so long that its receiver is out of the group when it ends."""

    async def script(stage: Stage) -> None:
        for node in stage.world.nodes.values():
            node.transfer_seconds = lambda: 2.0
        saving = stage.begin_saving(stage.rank(), 1)
        primary, _ = await stage.until_asked("write_blob", "open_write")
        member, _ = await stage.until_asked("open_write", where=lambda address, _: address != primary)
        [group] = [g for g in stage.groups().values() if g.primary == primary and member in g.members]
        spare = next(name for name in stage.world.node_names if name not in group.members)
        await asyncio.sleep(0.5)
        move = pb.FailoverRequest(request_id=random_id(), group_id=group.id, to_node_id=spare)
        await stage.operator.control.call("failover", move)
        assert member not in stage.groups()[group.id].members
        late = stage.world.platters[NodeId(member)]
        await asyncio.sleep(4.0)
        assert not late.fragments
        for node in stage.world.nodes.values():
            node.transfer_seconds = lambda: 0.001
        save = await saving
        assert stage.world.checks.holders_by_name(save) == set(stage.groups()[group.id].members)

    perform(script)


def test_fragments_of_a_pending_save_are_not_collected_however_old_they_seem() -> None:
    """P13: clocks jump beyond every grace period while a save is under way."""

    async def script(stage: Stage) -> None:
        saving = stage.begin_saving(stage.rank(), 1)
        primary, _ = await stage.until_asked("seal_shard")
        stage.world.network.cut("rank-0", primary)
        for clock in stage.world.clocks.values():
            clock.ahead_seconds += 1e6 if clock is stage.world.clocks[stage.leader.process.name] else -1e6
        await asyncio.sleep(6.5)
        assert sum(len(platter.fragments) for platter in stage.world.platters.values()) >= 2
        stage.world.network.join("rank-0", primary, is_kept=True)
        assert (await saving).state is SaveState.COMMITTED

    perform(script)


def test_a_late_drop_of_a_deposed_controller_is_refused() -> None:
    """P14: the order was on its way when its controller was deposed; the node has heard of the next term."""

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        await stage.save(2)
        old = stage.leader
        name = old.process.name
        delete = pb.DeleteCheckpointRequest(request_id=random_id(), job=JOB, step=1)
        stage.world.checks.may_go.add((JOB, 1))
        await stage.operator.control.call("delete_checkpoint", delete)
        node, _ = await stage.until_asked("drop_fragments")
        stage.world.network.cut(name, node)
        old.process.pause()
        await until(lambda: any(one is not old for one in stage.world.leaders), "the other controller leads")
        identity = stage.world.platters[NodeId(node)]
        new_term = stage.leader.controller.records.term.number if stage.leader.controller else 0
        await until(
            lambda: identity.identity is not None and identity.identity.authority.term == new_term, "the node obeys it"
        )
        held_before = NodeId(node) in stage.holding(save)
        stage.world.network.join(name, node, is_kept=True)
        await until(
            lambda: any("drop_fragments: STALE_TERM" in line for line in stage.world.trace), "the late order is refused"
        )
        assert held_before
        assert NodeId(node) in stage.holding(save)

    perform(script)


def test_a_controller_that_stood_still_demotes_nobody() -> None:
    """P20: what its nodes sent meanwhile was still on its way."""

    async def script(stage: Stage) -> None:
        await stage.save(1)
        before, leader = stage.epochs(), stage.leader
        stage.store.lease_seconds = 30.0
        await asyncio.sleep(1.0)
        leader.process.pause()
        late = [(node_id, leader.process.name) for node_id in stage.world.node_names[:2]]
        for pair in late:
            stage.world.network.cut(*pair)
        await asyncio.sleep(4.0)  # longer than nodes may be silent, shorter than its lease
        leader.process.resume()
        await asyncio.sleep(0.6)
        for pair in late:
            stage.world.network.join(*pair, is_kept=True)
        await asyncio.sleep(6.0)
        assert stage.leader is leader
        assert stage.epochs() == before

    perform(script)


def test_a_blip_of_the_whole_network_demotes_nobody() -> None:
    """P20: silence counts only while most nodes are heard."""

    async def script(stage: Stage) -> None:
        await stage.save(1)
        before = stage.epochs()
        pairs = [(node, name) for node in stage.world.node_names for name in stage.world.controller_names]
        for pair in pairs:
            stage.world.network.cut(*pair)
        await asyncio.sleep(4.0)
        for pair in pairs:
            stage.world.network.join(*pair, is_kept=True)
        await asyncio.sleep(6.0)
        assert stage.epochs() == before
        await stage.save(2)

    perform(script)


def test_an_outage_of_the_store_demotes_nobody() -> None:
    """While the MetaStore is out of reach nothing changes; afterwards everything goes on."""

    async def script(stage: Stage) -> None:
        await stage.save(1)
        before, leader = stage.epochs(), stage.leader
        stage.store.is_out = True
        saving = stage.begin_saving(stage.rank(), 2)
        await asyncio.sleep(8.0)
        assert not saving.done()
        stage.store.end_outage()
        await saving
        assert stage.epochs() == before
        assert stage.leader is leader

    perform(script)


def test_half_of_a_dead_attempt_and_half_of_the_next_are_no_checkpoint() -> None:
    """P1: rank 0 of the first attempt is in; then the job starts anew, and rank 1 of the first comes late."""

    async def script(stage: Stage) -> None:
        second = Attempt(FIRST.run, 2, "test")
        late = [stage.rank(rank, world_size=2) for rank in range(2)]
        first_rank = stage.begin_saving(late[0], 1)
        await until(lambda: any(stage.world.checks.shards.values()), "the first rank is in")
        saves = await asyncio.gather(
            *(stage.begin_saving(stage.rank(rank, world_size=2), 1, second) for rank in range(2))
        )
        with pytest.raises(StaleAttemptError):
            await stage.begin_saving(late[1], 1)
        with pytest.raises(StaleAttemptError):
            await first_rank
        [committed] = stage.committed()
        assert {save.save_id for save in saves} == {committed.save_id}
        for rank in range(2):
            found = await stage.begin_restoring(stage.rank(rank, world_size=2))
            assert found is not None
            assert tuple(found[1]) == contents_of(JOB, second, 1, rank)

    perform(script)


def test_a_killed_primary_costs_less_than_two_seconds() -> None:
    """A broken stream is looked at at once: nobody waits for silence."""

    async def script(stage: Stage) -> None:
        saving = stage.begin_saving(stage.rank(), 1)
        primary, request = await stage.until_asked("seal_shard")
        killed_at = stage.world.loop.time()
        stage.world.nodes[NodeId(primary)].process.kill()
        save: Save = await saving
        assert stage.world.loop.time() - killed_at < 2.0
        assert stage.groups()[request.group_id].epoch == request.epoch + 1
        assert NodeId(primary) not in stage.world.checks.holders_by_name(save)

    perform(script)
