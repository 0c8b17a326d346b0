"""Pools are changed online: groups follow at once, saves wait for a moment at most, nothing is half there (P7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import Pool
from sdrs_core.codes import Code
from sdrs_core.errors import (
    FullError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    UnavailableError,
)
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange
from tests.support.control import JOB, Harness, attempt
from tests.support.deep import DEEP, MIB, NODES, SPARE, look, save_deep, started_deep
from tests.support.interrupts import interrupt_everywhere
from tests.unit.test_rules_failover import events_of

Test = Callable[[Harness], Awaitable[None]]
TO_L3 = PoolChange(level=Level.L3, code=Code(4, 2))


def on_nodes(test: Test, count: int = 8) -> None:
    async def run() -> None:
        harness = await started_deep(count)
        await harness.wait(1)
        await test(harness)

    asyncio.run(run())


def members_of(harness: Harness, pool: PoolName) -> list[tuple[NodeId, ...]]:
    return [group.members for group in harness.controller.members.groups(pool=pool)]


async def update(harness: Harness, change: PoolChange, pool: PoolName = SPARE) -> Pool:
    return await harness.controller.pools.update(pool, change)


# Level and redundancy


def test_a_pool_raised_to_l3_takes_saves_in_full_at_once() -> None:
    async def test(harness: Harness) -> None:
        epochs = {group.id: group.epoch for group in harness.controller.members.groups(pool=SPARE)}
        await update(harness, TO_L3)
        groups = harness.controller.members.groups(pool=SPARE)
        assert all(len(set(group.members)) == 6 and set(group.home) == set(group.members) for group in groups)
        assert all(group.epoch > epochs[group.id] for group in groups)
        save = await harness.save(10, pool=SPARE, blob_bytes=16 * MIB)
        assert (save.level, save.degraded) == (Level.L3, False)
        assert "pool_changed" in await events_of(harness)

    on_nodes(test)


@pytest.mark.parametrize(("change", "size"), [(PoolChange(level=Level.L2), 2), (PoolChange(level=Level.L1), 1)])
def test_a_pool_that_is_lowered_has_groups_of_its_new_size_at_once(change: PoolChange, size: int) -> None:
    async def test(harness: Harness) -> None:
        await update(harness, change, DEEP)
        assert {len(members) for members in members_of(harness, DEEP)} == {size}
        assert all(group.primary == group.home[0] for group in harness.controller.members.groups(pool=DEEP))
        assert (await harness.save(10, pool=DEEP)).state is SaveState.COMMITTED

    on_nodes(test)


def test_fewer_mirrors_are_possible() -> None:
    async def test(harness: Harness) -> None:
        await update(harness, PoolChange(mirrors=3))
        assert {len(members) for members in members_of(harness, SPARE)} == {3}
        await update(harness, PoolChange(mirrors=2))
        assert {len(members) for members in members_of(harness, SPARE)} == {2}

    on_nodes(test)


def test_a_save_that_is_under_way_when_its_pool_is_raised_goes_on_at_the_new_epoch() -> None:
    async def test(harness: Harness) -> None:
        begun = await harness.begin(10, pool=SPARE)
        stale = harness.receipt(begun)
        await update(harness, TO_L3)
        [outcome] = await harness.register_receipts(stale, node_id=stale.shard.blobs[0].holders[0].node_id)
        assert isinstance(outcome, SdrsError), "what it vouched for was checked against another layout"
        again = await harness.begin(10, pool=SPARE)
        assert again.save.save_id == begun.save.save_id
        await harness.seal(again)
        assert await harness.steps() == [10]

    on_nodes(test)


def test_a_save_that_begins_in_the_middle_of_a_change_waits_and_is_not_refused() -> None:
    async def test(harness: Harness) -> None:
        outcomes: list[type[BaseException] | None] = []

        async def begin(_: int) -> None:
            harness.store.before = None
            try:
                await harness.begin(10 + len(outcomes), pool=SPARE)
                outcomes.append(None)
            except SdrsError as error:
                outcomes.append(type(error))
            harness.store.before = begin

        harness.store.before = begin
        await update(harness, TO_L3)
        harness.store.heal()
        assert set(outcomes[1:]) == {UnavailableError}
        assert (await harness.begin(99, pool=SPARE)).group

    on_nodes(test)


def test_a_change_that_groups_follow_while_failover_is_paused_is_an_operators_word() -> None:
    async def test(harness: Harness) -> None:
        await harness.controller.moves.set_automatic("maintenance")
        await update(harness, TO_L3)
        assert {len(members) for members in members_of(harness, SPARE)} == {6}

    on_nodes(test)


def test_too_few_failure_domains_are_refused_and_nothing_is_changed() -> None:
    async def test(harness: Harness) -> None:
        words = r'pool "spare" needs 11 failure domains for 8\+3, it has 8: add 3 nodes or use --ec 4\+2'
        with pytest.raises(RefusedError, match=words):
            await update(harness, PoolChange(level=Level.L3, code=Code(8, 3)))
        assert harness.controller.members.pool(SPARE).level is Level.L2
        with pytest.raises(InvalidArgumentError, match=r"--ec 4\+2"):
            await update(harness, PoolChange(level=Level.L3))

    on_nodes(test)


def test_every_change_is_in_the_history_and_none_is_not() -> None:
    async def test(harness: Harness) -> None:
        await update(harness, PoolChange(quota_bytes=1 << 30, mirror_pool=SPARE, mirror_ratio=0.25), DEEP)
        [told, *_], _ = await harness.controller.events.page(group_id="", node_id="", after="", limit=10)
        assert (told.kind, told.pool) == ("pool_changed", DEEP)
        for words in ("newest 25 % are mirrored to spare", "its quota is 1.0 GiB"):
            assert words in told.text
        count = len(await events_of(harness))
        await update(harness, PoolChange(quota_bytes=1 << 30), DEEP)
        assert len(await events_of(harness)) == count

    on_nodes(test)


# Nodes


def test_a_pool_shrinks_off_a_node_and_others_are_not_touched() -> None:
    async def test(harness: Harness) -> None:
        leaving = NODES[7]
        spare = members_of(harness, SPARE)
        layout = harness.controller.members.layout(DEEP).value.number
        changed = await update(harness, PoolChange(remove_nodes=(leaving,)), DEEP)
        assert changed.node_ids == NODES[:7]
        assert all(leaving not in members for members in members_of(harness, DEEP))
        assert len(members_of(harness, DEEP)) == 7, "its own group is no more"
        assert harness.controller.members.layout(DEEP).value.number > layout
        assert members_of(harness, SPARE) == spare
        await harness.wait(10)
        assert all(leaving not in members for members in members_of(harness, DEEP))
        # One that joins the cluster later is not in it.
        harness.node_ids = (*harness.node_ids, NODES[8])
        await harness.register()
        await harness.wait(10)
        assert all(NODES[8] not in members for members in members_of(harness, DEEP))
        assert any(NODES[8] in members for members in members_of(harness, SPARE))

    on_nodes(test)


def test_a_node_that_comes_back_to_a_pool_leads_a_group_above_the_epochs_that_it_remembers() -> None:
    async def test(harness: Harness) -> None:
        leaving = NODES[7]
        await harness.kill(NODES[0])  # raises epochs
        await harness.revive(NODES[0])
        await harness.wait(10)
        before = harness.group(f"{DEEP}:{leaving}").epoch
        await update(harness, PoolChange(remove_nodes=(leaving,)), DEEP)
        await harness.start()
        await harness.wait(1)
        await update(harness, PoolChange(add_nodes=(leaving,)), DEEP)
        group = harness.group(f"{DEEP}:{leaving}")
        assert group.primary == leaving
        assert group.epoch > before

    on_nodes(test)


def test_a_pool_does_not_shrink_below_the_failure_domains_that_it_needs() -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(RefusedError, match="needs 6 failure domains for 4"):
            await update(harness, PoolChange(remove_nodes=NODES[:3]), DEEP)
        await harness.kill(NODES[0])
        with pytest.raises(RefusedError, match="without n1, n2 it has 5"):
            await update(harness, PoolChange(remove_nodes=NODES[1:3]), DEEP)
        assert harness.controller.members.pool(DEEP).node_ids == ()
        with pytest.raises(NotFoundError, match="nx"):
            await update(harness, PoolChange(remove_nodes=(NodeId("nx"),)), DEEP)

    on_nodes(test)


def test_a_pool_of_some_nodes_uses_no_others() -> None:
    async def test(harness: Harness) -> None:
        few = Pool(PoolName("few"), Level.L2, mirrors=2, node_ids=NODES[:3])
        await harness.controller.pools.create(few, request_id="few")
        await harness.kill(NODES[0])
        await harness.wait(5)
        assert {node_id for members in members_of(harness, few.name) for node_id in members} == set(NODES[1:3])
        with pytest.raises(NotFoundError):
            await harness.controller.pools.create(replace(few, name=PoolName("x"), node_ids=(NodeId("nx"),)), "x")

    on_nodes(test)


# Mirrors in another pool


def test_a_pool_that_mirrors_another_exists_leads_nowhere_back_and_stays() -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(NotFoundError):
            await update(harness, PoolChange(mirror_pool="gone", mirror_ratio=0.5), DEEP)
        await update(harness, PoolChange(mirror_pool=SPARE, mirror_ratio=0.5), DEEP)
        await update(harness, TO_L3)
        with pytest.raises(InvalidArgumentError, match="would mirror itself"):
            await update(harness, PoolChange(mirror_pool=DEEP, mirror_ratio=0.5))
        with pytest.raises(RefusedError, match=r"mirrors pool .deep.*--mirror-ratio 0"):
            await harness.delete_pool(SPARE)
        await update(harness, PoolChange(mirror_ratio=0.0), DEEP)
        await harness.delete_pool(SPARE)

    on_nodes(test)


def test_a_pool_that_still_holds_mirrors_is_not_deleted() -> None:
    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.5)
        await save_deep(harness, 10)
        for _ in range(3):
            harness.beat()
            await harness.controller.repairer.pass_once()
        assert (await look(harness, 10)).mirror_pool == SPARE
        tally = harness.controller.tally
        assert (tally.mirrored_saves[DEEP], tally.mirrors_in[SPARE]) == (1, 1)
        assert tally.mirrored_bytes[DEEP] == (await look(harness, 10)).size_bytes
        await update(harness, PoolChange(mirror_ratio=0.0), DEEP)
        with pytest.raises(RefusedError, match="still holds mirrors of 1"):
            await harness.controller.pools.delete(SPARE, checkpoint_count=0, mirror_count=tally.mirrors_in[SPARE])

    asyncio.run(run())


# Quota and room


def test_a_save_beyond_the_quota_is_refused_and_leaves_no_record() -> None:
    async def test(harness: Harness) -> None:
        await update(harness, PoolChange(quota_bytes=25), SPARE)
        for step in (1, 2):
            await harness.save(step, pool=SPARE, size_bytes=10)
        records = len(await harness.states())
        with pytest.raises(FullError, match="at its quota"):
            await harness.begin(3, pool=SPARE, size_bytes=10)
        assert len(await harness.states()) == records
        assert len(harness.controller.commits) == 0
        assert await harness.trash() == []
        # Smaller ones get in, others' pools are free, and what is deleted makes room.
        await harness.save(4, pool=DEEP, size_bytes=10)
        await harness.controller.catalog.delete(JOB, 1, why="test")
        await harness.save(5, pool=SPARE, size_bytes=10)
        await update(harness, PoolChange(quota_bytes=0), SPARE)
        await harness.save(6, pool=SPARE, size_bytes=10)

    on_nodes(test)


def test_saves_under_way_count_and_a_rank_that_begins_again_counts_once() -> None:
    async def test(harness: Harness) -> None:
        await update(harness, PoolChange(quota_bytes=25), SPARE)
        first = await harness.begin(1, pool=SPARE, size_bytes=20)
        with pytest.raises(FullError, match="are being saved"):
            await harness.begin(2, pool=SPARE, size_bytes=10)
        again = await harness.begin(1, pool=SPARE, size_bytes=20)
        assert again.save.save_id == first.save.save_id
        await harness.controller.commits.abort(first.save.save_id, first.capability, "test")
        assert (await harness.begin(2, pool=SPARE, size_bytes=10)).group

    on_nodes(test)


def test_two_saves_that_begin_at_once_do_not_both_take_the_last_room() -> None:
    async def test(harness: Harness) -> None:
        await update(harness, PoolChange(quota_bytes=25), SPARE)
        begins = (harness.begin(step, pool=SPARE, size_bytes=20) for step in (1, 2))
        outcomes = await asyncio.gather(*begins, return_exceptions=True)
        assert sorted(isinstance(outcome, FullError) for outcome in outcomes) == [False, True]
        assert harness.controller.commits.reserved_bytes(SPARE) == 20

    on_nodes(test)


def test_a_rank_that_does_not_fit_ends_the_save_for_all_and_the_reason_is_told() -> None:
    async def test(harness: Harness) -> None:
        await update(harness, PoolChange(quota_bytes=25), SPARE)
        by = attempt(1)
        begun = await harness.begin(1, rank=0, world_size=3, by=by, pool=SPARE, size_bytes=10)
        await harness.seal(begun, rank=0)
        second = await harness.begin(1, rank=1, world_size=3, by=by, pool=SPARE, size_bytes=10)
        with pytest.raises(FullError):
            await harness.begin(1, rank=2, world_size=3, by=by, pool=SPARE, size_bytes=10)
        ended = await harness.find(begun)
        assert ended.state is SaveState.ABORTED
        assert "at its quota" in ended.note
        with pytest.raises(SaveFailedError, match="at its quota"):
            await harness.seal(second, rank=1)
        # It is known by now how large it is: the rank that was on its way does not begin it anew.
        with pytest.raises(FullError):
            await harness.begin(1, rank=1, world_size=3, by=by, pool=SPARE, size_bytes=10)
        assert await harness.steps() == []
        assert len(harness.controller.commits) == 0
        await update(harness, PoolChange(quota_bytes=30), SPARE)
        assert (await harness.save(1, world_size=3, by=by, pool=SPARE, size_bytes=10)).state is SaveState.COMMITTED

    on_nodes(test)


def test_what_no_disk_of_a_pool_can_take_is_refused_before_anything_is_sent() -> None:
    async def test(harness: Harness) -> None:
        room = harness.capacity_bytes
        with pytest.raises(FullError, match="has no room for"):
            await harness.begin(1, pool=SPARE, size_bytes=room + 1)
        assert await harness.states() == []
        assert (await harness.begin(1, pool=SPARE, size_bytes=room)).group
        # Each member gets a quarter of it.
        assert (await harness.begin(2, pool=DEEP, size_bytes=4 * room)).group
        with pytest.raises(FullError, match="has no room for"):
            await harness.begin(3, pool=DEEP, size_bytes=4 * room + 8)

    on_nodes(test)


def test_a_rank_that_no_disk_can_take_ends_the_save_for_all() -> None:
    async def test(harness: Harness) -> None:
        by = attempt(1)
        begun = await harness.begin(1, rank=0, world_size=2, by=by, pool=SPARE, size_bytes=10)
        await harness.seal(begun, rank=0)
        with pytest.raises(FullError, match="has no room for"):
            await harness.begin(1, rank=1, world_size=2, by=by, pool=SPARE, size_bytes=2 * harness.capacity_bytes)
        ended = await harness.find(begun)
        assert (ended.state, "has no room for" in ended.note) == (SaveState.ABORTED, True)

    on_nodes(test)


# Interrupted


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize("story", ["raise", "lower", "shrink"])
def test_a_change_may_be_interrupted_at_any_transaction(story: str, lost: bool, restart: bool) -> None:
    changes = {
        "raise": (SPARE, TO_L3),
        "lower": (DEEP, PoolChange(level=Level.L2)),
        "shrink": (DEEP, PoolChange(remove_nodes=(NODES[7],))),
    }
    pool, change = changes[story]

    async def prepare() -> Harness:
        harness = await started_deep()
        await harness.wait(1)
        await harness.save(1, pool=pool)
        return harness

    async def carry_out(harness: Harness) -> None:
        await update(harness, change, pool)

    async def check(harness: Harness) -> None:
        """The pool is as before or as after, and its groups with it; saves go on."""
        await harness.wait(8)
        known = harness.controller.members.pool(pool)
        groups = harness.controller.members.groups(pool=pool)
        assert {len(group.members) for group in groups} == {known.member_count}
        assert all(known.has_node(node_id) for group in groups for node_id in group.members)
        assert len(groups) == len(known.node_ids or NODES[:8])
        assert (await harness.save(100, pool=pool, by=attempt(9))).state is SaveState.COMMITTED
        if not restart:
            assert known == await harness.controller.pools.update(pool, change)

    interrupt_everywhere(prepare, carry_out, check, lost=lost, restart=restart)
