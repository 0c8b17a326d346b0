"""What readers see: pages, steps with several generations, verification."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.checkpoints import SaveState, Verdict
from sdrs_core.cluster import Authority
from sdrs_core.errors import CorruptDataError, NotFoundError, PermissionDeniedError, RefusedError
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Put
from sdrs_storaged.control.verifier import Progress
from tests.support.control import JOB, NODE, Harness, attempt, node, started


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
def test_every_page_size_shows_each_step_once_and_by_its_newest_generation(limit: int) -> None:
    async def run() -> None:
        harness = await started()
        expected = {}
        for number in range(4):
            for step in range(number, 6):
                expected[step] = (await harness.save(step, by=attempt(number))).save_id
        await harness.begin(3, by=attempt(4), world_size=2)  # pending: hides nothing
        found, token, more = [], "", True
        while more:
            page, token = await harness.controller.catalog.page(JOB, all_states=False, after=token, limit=limit)
            found += page
            more = bool(token)
        assert [save.step for save in found] == [5, 4, 3, 2, 1, 0]
        assert {save.step: save.save_id for save in found} == expected

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_with_all_states_what_was_replaced_is_shown_as_set_aside_on_every_page(limit: int) -> None:
    async def run() -> None:
        harness = await started()
        for number in range(3):
            await harness.save(1, by=attempt(number))
            await harness.save(2, by=attempt(number))
        found, token, more = [], "", True
        while more:
            page, token = await harness.controller.catalog.page(JOB, all_states=True, after=token, limit=limit)
            found += page
            more = bool(token)
        aside, committed = SaveState.SET_ASIDE, SaveState.COMMITTED
        assert [(save.step, save.attempt, save.state) for save in found] == [
            (step, number, committed if number == 3 else aside) for step in (2, 1) for number in (3, 2, 1)
        ]

    asyncio.run(run())


def test_a_missing_step_names_those_that_exist_however_many_saves_are_pending() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(1)
        for step in range(10, 30):
            await harness.begin(step, world_size=2)
        with pytest.raises(NotFoundError, match="the newest are 1"):
            await harness.controller.catalog.get(JOB, 5)

    asyncio.run(run())


def test_a_record_that_cannot_be_read_is_an_error_that_names_it() -> None:
    async def run() -> None:
        harness = await started()
        await harness.store.txn([], [Put(keys.save(JOB, 7, 1), b"{}")])
        with pytest.raises(CorruptDataError, match="save/llm-7b"):
            await harness.controller.catalog.get(JOB, 7)

    asyncio.run(run())


async def verify(harness: Harness, step: int) -> Progress:
    last = [progress async for progress in harness.controller.verifier.verify(JOB, step)][-1]
    assert last.checkpoint
    return last


def test_verification_marks_damage_and_lifts_the_mark() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        [shard] = await harness.shards(save)
        harness.nodes.verdicts[shard.blobs[0].id] = Verdict.CORRUPT
        progress = await verify(harness, 10)
        assert progress.checkpoint
        summary, _, rest = progress.checkpoint.damage.partition(": ")
        assert summary == f"rank 0 is corrupt on node {NODE}"
        assert rest.count(shard.blobs[0].id) == 1
        assert len(harness.controller.tally.damaged) == 1
        harness.nodes.verdicts.clear()
        progress = await verify(harness, 10)
        assert progress.checkpoint == save
        assert not harness.controller.tally.damaged

    asyncio.run(run())


@pytest.mark.parametrize("why", ["the node breaks off", "the node is down", "there is no verdict"])
def test_what_could_not_be_looked_at_is_undecided_and_neither_good_nor_bad(why: str) -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        await harness.controller.catalog.mark_damage(JOB, 10, save.save_id, "known before")
        [shard] = await harness.shards(save)
        if why == "the node breaks off":
            harness.nodes.broken.add(NODE)
        elif why == "the node is down":
            harness.clock.advance(60)
        else:
            harness.nodes.verdicts[shard.blobs[0].id] = None
        progress = await verify(harness, 10)
        assert [problem.undecided for problem in progress.problems] == [True]
        assert (await harness.controller.catalog.get(JOB, 10)).value.damage == "known before"

    asyncio.run(run())


def test_a_reader_who_says_that_a_blob_is_bad_is_not_believed_without_a_look() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        [shard] = await harness.shards(save)
        blob_id = shard.blobs[0].id
        report = harness.controller.verifier.check_reported
        assert (await report(JOB, 10, save.save_id, 0, blob_id)).damage == ""
        harness.nodes.verdicts[blob_id] = Verdict.MISSING
        assert "missing" in (await report(JOB, 10, save.save_id, 0, blob_id)).damage

    asyncio.run(run())


def test_a_fragment_whose_disk_is_not_there_is_undecided_and_not_damaged() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        [shard] = await harness.shards(save)
        harness.nodes.verdicts[shard.blobs[0].id] = Verdict.MISSING
        harness.controller.members.beat(shard.blobs[0].holders[0].node_id, (), harness)
        progress = await verify(harness, 10)
        assert [problem.undecided for problem in progress.problems] == [True]
        assert (await harness.controller.catalog.get(JOB, 10)).value.damage == ""

    asyncio.run(run())


def test_a_node_that_registers_again_keeps_its_groups_and_its_name() -> None:
    async def run() -> None:
        harness = await started()
        before = harness.controller.members.groups()
        await harness.register()
        assert harness.controller.members.groups() == before
        with pytest.raises(PermissionDeniedError):
            await harness.controller.members.register(node(NODE), "stolen", seen=Authority())
        await harness.save(1)
        with pytest.raises(RefusedError):
            await harness.delete_pool("default")

    asyncio.run(run())
