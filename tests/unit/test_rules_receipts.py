"""P3, P5, P7, P8: who may say that bytes are durable, in how many transactions, and under which layout."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import DEFAULT_POOL, Authority, Group
from sdrs_core.errors import (
    AlreadyExistsError,
    FullError,
    InvalidArgumentError,
    PermissionDeniedError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    UnavailableError,
)
from sdrs_core.ids import NodeId
from sdrs_storaged.control import keys
from sdrs_storaged.control.saves import Begun
from tests.support.control import NODE, Harness, attempt, started

OTHER = NodeId("node-2")


async def move_epoch(harness: Harness, group: Group) -> None:
    """The group's epoch and its pool's layout rise, in one transaction."""
    async with harness.controller.tables.change():
        await harness.controller.groups.move(replace(group, epoch=group.epoch + 1), "test", "by the test")


async def many(harness: Harness, world_size: int, step: int = 10) -> list[Begun]:
    return [await harness.begin(step, rank=rank, world_size=world_size) for rank in range(world_size)]


def test_a_thousand_ranks_commit_one_checkpoint_in_batches_of_a_hundred() -> None:
    async def run() -> None:
        harness = await started()
        begun = await many(harness, 1000)
        receipts = [harness.receipt(one, rank=rank) for rank, one in enumerate(begun)]
        before = harness.store.txn_count
        outcomes = await harness.register_receipts(*receipts)
        assert set(outcomes[:900]) == {SaveState.PENDING}
        assert set(outcomes[900:]) == {SaveState.COMMITTED}
        assert harness.store.txn_count - before == 11
        assert max(len(then) for _, then in harness.store.txns) <= 100
        [save] = await harness.listed()
        assert (save.world_size, save.size_bytes) == (1000, 10_000)
        assert len(await harness.shards(save)) == 1000

    asyncio.run(run())


def test_receipts_of_many_blobs_are_split_by_their_size_too() -> None:
    async def run() -> None:
        harness = await started()
        begun = await many(harness, 8)
        receipts = [harness.receipt(one, rank=rank, blob_count=1500) for rank, one in enumerate(begun)]
        outcomes = await harness.register_receipts(*receipts)
        assert outcomes[-1] is SaveState.COMMITTED
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_keys_keep_the_limits_of_the_metastore_for_the_longest_names() -> None:
    job, run = "j" * 128, "r" * 5000
    longest = [
        keys.save(job, 0, 1),
        keys.shard("5" * 32, 99_999),
        keys.attempt(job, attempt(10**18 - 1, run=run)),
        keys.group("p" * 128, f"{'p' * 128}.{'n' * 128}"),
    ]
    assert max(len(key.encode()) for key in longest) <= 1024
    assert keys.save("job", 11, 1) < keys.save("job", 10, 1)
    assert keys.save("job", 10, 11) < keys.save("job", 10, 2)


def test_a_receipt_without_the_capability_of_its_save_is_refused() -> None:
    async def run() -> None:
        harness = await started()
        mine, other = await harness.begin(10), await harness.begin(20)
        receipt = replace(harness.receipt(mine), capability=other.capability)
        [outcome] = await harness.register_receipts(receipt)
        assert isinstance(outcome, PermissionDeniedError)
        assert await harness.steps() == []

    asyncio.run(run())


def test_the_capability_outlives_the_controller_that_gave_it() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        await harness.start()
        assert await harness.seal(begun) is SaveState.COMMITTED

    asyncio.run(run())


def test_a_receipt_names_the_members_of_its_group_as_holders_and_nobody_else() -> None:
    """P5: a primary cannot have asked anybody else."""

    async def run() -> None:
        harness = await started(node_ids=(NODE, OTHER))
        begun = await harness.begin(10)
        assert begun.group
        stranger = OTHER if begun.group.primary == NODE else NODE
        receipt = harness.receipt(begun)
        [blob] = receipt.shard.blobs
        named = replace(blob, holders=(replace(blob.holders[0], node_id=stranger),))
        forged = replace(receipt, shard=replace(receipt.shard, blobs=(named,)))
        [outcome] = await harness.register_receipts(forged, node_id=begun.group.primary)
        assert isinstance(outcome, PermissionDeniedError)
        assert await harness.steps() == []

    asyncio.run(run())


def test_only_the_primary_of_a_group_can_vouch_for_it() -> None:
    async def run() -> None:
        harness = await started(node_ids=(NODE, OTHER))
        begun = await harness.begin(10)
        assert begun.group
        speaker = OTHER if begun.group.primary == NODE else NODE
        [outcome] = await harness.register_receipts(harness.receipt(begun), node_id=speaker)
        assert isinstance(outcome, StaleEpochError)
        assert await harness.steps() == []

    asyncio.run(run())


def test_a_node_speaks_under_its_key_and_a_name_belongs_to_who_had_it_first() -> None:
    async def run() -> None:
        harness = await started()
        members = harness.controller.members
        members.authenticate(NODE, f"key of {NODE}")
        with pytest.raises(PermissionDeniedError):
            members.authenticate(NODE, "a guess")
        with pytest.raises(PermissionDeniedError):
            await members.register(members.node(NODE), "another key", seen=Authority())

    asyncio.run(run())


def test_a_receipt_names_blobs_and_their_holders() -> None:
    async def run() -> None:
        harness = await started()
        receipt = harness.receipt(await harness.begin(10))
        blob = replace(receipt.shard.blobs[0], holders=())
        for blobs in ((), (blob,)):
            [outcome] = await harness.register_receipts(replace(receipt, shard=replace(receipt.shard, blobs=blobs)))
            assert isinstance(outcome, InvalidArgumentError)

    asyncio.run(run())


def test_a_receipt_from_a_group_of_another_pool_is_refused() -> None:
    async def run() -> None:
        harness = await started()
        await harness.create_pool("fast")
        [group] = harness.controller.members.groups(pool="fast")
        receipt = replace(harness.receipt(await harness.begin(10)), group_id=group.id)
        [outcome] = await harness.register_receipts(receipt)
        assert isinstance(outcome, InvalidArgumentError)

    asyncio.run(run())


def test_a_rank_beyond_the_world_is_refused() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10, world_size=2)
        for rank in (-1, 2):
            with pytest.raises(InvalidArgumentError):
                await harness.seal(begun, rank=rank)

    asyncio.run(run())


def test_a_bad_receipt_does_not_spoil_the_others_of_its_batch() -> None:
    async def run() -> None:
        harness = await started()
        begun = await many(harness, 2)
        good = [harness.receipt(one, rank=rank) for rank, one in enumerate(begun)]
        bad = replace(good[0], capability="0" * 64)
        outcomes = await harness.register_receipts(good[0], bad, good[1])
        assert outcomes[0] in (SaveState.PENDING, SaveState.COMMITTED)
        assert isinstance(outcomes[1], PermissionDeniedError)
        assert outcomes[2] is SaveState.COMMITTED

    asyncio.run(run())


def test_a_receipt_that_comes_twice_in_a_batch_counts_once_and_harms_nobody() -> None:
    """A client that did not wait for the answer sends again while the first still waits on the node."""

    async def run() -> None:
        harness = await started()
        begun = await many(harness, 2)
        first, second = (harness.receipt(one, rank=rank) for rank, one in enumerate(begun))
        outcomes = await harness.register_receipts(first, first, second)
        assert outcomes == [SaveState.COMMITTED] * 3
        assert (await harness.listed())[0].size_bytes == 20

    asyncio.run(run())


def test_batches_that_overlap_at_the_same_time_all_succeed() -> None:
    async def run() -> None:
        harness = await started()
        begun = await many(harness, 6)
        receipts = [harness.receipt(one, rank=rank) for rank, one in enumerate(begun)]
        batches = [receipts[:4], receipts[2:], receipts[1:5]]
        answers = await asyncio.gather(*(harness.register_receipts(*batch) for batch in batches))
        assert not [outcome for answer in answers for outcome in answer if isinstance(outcome, SdrsError)]
        assert await harness.steps() == [10]
        assert harness.controller.tally.commits_total == 1
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 1
        assert harness.controller.tally.bytes_by_pool[DEFAULT_POOL] == 60

    asyncio.run(run())


def test_a_batch_that_cannot_be_stored_says_why_and_can_be_sent_again() -> None:
    async def run() -> None:
        harness = await started()
        begun = await many(harness, 2)
        receipts = [harness.receipt(one, rank=rank) for rank, one in enumerate(begun)]
        harness.store.fail(1, FullError("no room"))
        assert all(isinstance(outcome, FullError) for outcome in await harness.register_receipts(*receipts))
        assert await harness.register_receipts(*receipts) == [SaveState.COMMITTED] * 2

    asyncio.run(run())


def test_a_receipt_for_a_save_that_was_given_up_says_so() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        with pytest.raises(PermissionDeniedError):
            await harness.controller.commits.abort(begun.save.save_id, "0" * 64, "not mine")
        await harness.controller.commits.abort(begun.save.save_id, begun.capability, "the client gave up")
        with pytest.raises(SaveFailedError, match="the client gave up"):
            await harness.seal(begun)

    asyncio.run(run())


def test_a_receipt_does_not_reach_a_save_that_ends_while_it_is_being_stored() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)

        async def give_up(_: int) -> None:
            harness.store.heal()
            await harness.controller.commits.abort(begun.save.save_id, begun.capability, "the client gave up")

        harness.store.before = give_up
        with pytest.raises(SaveFailedError, match="the client gave up"):
            await harness.seal(begun)
        assert await harness.shards(begun.save) == []

    asyncio.run(run())


def test_of_two_contents_for_one_rank_at_the_same_time_one_is_refused() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10, world_size=2)

        async def overtake(_: int) -> None:
            harness.store.heal()
            await harness.seal(begun, content="overtaking")

        harness.store.before = overtake
        with pytest.raises(AlreadyExistsError):
            await harness.seal(begun, content="overtaken")
        [shard] = await harness.shards(begun.save)
        assert shard.blobs[0].hash == "overtaking"

    asyncio.run(run())


def test_a_receipt_of_an_older_epoch_is_refused() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        assert begun.group
        receipt = harness.receipt(begun)
        await move_epoch(harness, begun.group)
        [outcome] = await harness.register_receipts(receipt)
        assert isinstance(outcome, StaleEpochError)

    asyncio.run(run())


def test_a_receipt_is_refused_if_the_epoch_moves_while_it_is_being_stored() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        group = begun.group
        assert group
        receipt = harness.receipt(begun)

        async def move(_: int) -> None:
            harness.store.heal()
            await move_epoch(harness, group)

        harness.store.before = move
        [outcome] = await harness.register_receipts(receipt)
        assert isinstance(outcome, StaleEpochError)
        assert await harness.steps() == []

    asyncio.run(run())


def test_a_layout_that_moves_between_receipt_and_commit_is_validated_anew() -> None:
    """Another node joins: the commit compares the layout that it looked at, and passes on the second look."""

    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        receipt = harness.receipt(begun)
        at = harness.store.txn_count

        async def another_node_joins(number: int) -> None:
            if number == at + 2:
                harness.store.heal()
                harness.node_ids = (NODE, OTHER)
                await harness.register()

        harness.store.before = another_node_joins
        assert await harness.register_receipts(receipt) == [SaveState.COMMITTED]
        [save] = await harness.listed()
        assert save.layout == harness.controller.members.layout(DEFAULT_POOL).value.number > begun.save.layout

    asyncio.run(run())


def test_a_commit_never_names_a_node_that_left_its_pool() -> None:
    async def run() -> None:
        harness = await started(node_ids=(NODE, OTHER))
        begun = [await harness.begin(10, rank=rank, world_size=2) for rank in range(2)]
        groups = [one.group for one in begun]
        assert groups[0]
        assert groups[1]
        await harness.register_receipts(harness.receipt(begun[0], rank=0), node_id=groups[0].primary)
        tables = harness.controller.tables
        async with tables.change():
            moved = replace(groups[0], members=(groups[1].primary,), primary=groups[1].primary, epoch=2)
            await harness.controller.groups.move(moved, "test", "by the test")
            del tables.nodes[groups[0].primary]
        receipt = harness.receipt(begun[1], rank=1)
        [outcome] = await harness.register_receipts(receipt, node_id=groups[1].primary)
        assert outcome is SaveState.ABORTED
        assert await harness.steps() == []
        assert "left the pool" in (await harness.find(begun[0])).note

    asyncio.run(run())


def test_a_save_finds_no_group_where_no_node_is_up() -> None:
    async def run() -> None:
        harness = await started()
        harness.clock.advance(60)
        with pytest.raises(UnavailableError, match="no node that is up"):
            await harness.begin(10)

    asyncio.run(run())


def test_a_forged_capability_is_refused_alone_p5() -> None:
    async def run() -> None:
        harness = await started()
        begun = await many(harness, 4)
        receipts = [harness.receipt(one, rank=rank) for rank, one in enumerate(begun)]
        # Receipts of strangers share a batch: what one sends must not fail the others.
        for rank, forged in enumerate(["", "é" * 32, "0" * 64]):
            receipts[rank] = replace(receipts[rank], capability=forged)
        *refused, taken = await harness.register_receipts(*receipts)
        assert [type(error) for error in refused] == [PermissionDeniedError] * 3
        assert taken is SaveState.PENDING
        with pytest.raises(PermissionDeniedError):
            await harness.controller.commits.abort(begun[0].save.save_id, "é", "")

    asyncio.run(run())


def test_pools_and_nodes_with_dots_in_their_names_share_no_group() -> None:
    async def run() -> None:
        harness = await started(node_ids=(NodeId("c"), NodeId("b.c")))
        await harness.create_pool("a")
        await harness.create_pool("a.b")
        for pool in ("a", "a.b"):
            assert {g.primary for g in harness.controller.members.groups(pool=pool)} == {"c", "b.c"}
        saved = await harness.save(1, pool="a", avoid=frozenset({NodeId("c")}))
        assert saved.state is SaveState.COMMITTED

    asyncio.run(run())
