"""What others refer to is looked after where it is stored, also once it is deleted: repaired, moved, stored in another
form, mirrored, found damaged; and whoever refers to it sees that.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sdrs_core.checkpoints import Save, SaveState, Verdict
from sdrs_core.cluster import Pool
from sdrs_core.codes import Code
from sdrs_core.errors import RefusedError, SaveFailedError
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange
from sdrs_core.redundancy import Standing
from sdrs_storaged.control.node_questions import Question
from tests.support.catalogs import FakeWitnesses, cluster_on, contents, empty_on, exported, imported, rebuilt
from tests.support.control import GRACE_SECONDS, JOB, Harness, attempt, started
from tests.support.deep import DEEP, NODES, SPARE, drain, look, nodes_of, stands, started_deep
from tests.support.interrupts import interrupt_everywhere
from tests.support.mirrors import LONG_SECONDS, come_back, go_down, repair
from tests.support.referring import (
    is_readable,
    referrals,
    referring_receipt,
    register,
    resolved,
    save_referring,
    shared_blob,
)
from tests.unit.test_rules_scrub import scrub

MIB = 1 << 20
POOL = PoolName("plain")
TWO = Pool(POOL, Level.L2, mirrors=2)


async def prepared(pool: Pool = TWO, *, apart: bool = False) -> tuple[Harness, Save]:
    """Step 10 is deleted, and kept because step 20 refers to it. ``apart``: the two are on different nodes."""
    harness = Harness(node_ids=NODES[:8], capacity_bytes=10_000 * MIB)
    await harness.start()
    await harness.controller.pools.create(pool, request_id="plain")
    home = await save_referring(harness, 10, pool=POOL, blob_bytes=16 * MIB)
    avoid = nodes_of(await shared_blob(harness, home)) if apart else set[NodeId]()
    await save_referring(harness, 20, pool=POOL, blob_bytes=16 * MIB, avoid=frozenset(avoid))
    deleted = await harness.controller.catalog.delete(JOB, 10, why="test")
    assert deleted.state is SaveState.RETIRED
    return harness, home


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_a_retired_home_is_repaired(level: str) -> None:
    async def run() -> None:
        pool = TWO if level == "L2" else Pool(POOL, Level.L3, data_fragments=4, parity_fragments=2)
        harness, home = await prepared(pool)
        lost = min(nodes_of(await shared_blob(harness, home)))
        await go_down(harness, lost, seconds=LONG_SECONDS)
        await repair(harness, times=2)
        blob = await shared_blob(harness, home)
        assert stands(harness, blob, POOL) is Standing.FULL
        assert (await resolved(harness, 20)).blobs[1] == blob

    asyncio.run(run())


def test_a_retired_home_is_moved_off_a_node_that_leaves() -> None:
    async def run() -> None:
        harness, home = await prepared()
        leaving = min(nodes_of(await shared_blob(harness, home)))
        await drain(harness, leaving)
        await repair(harness, times=3)
        assert leaving not in nodes_of(await shared_blob(harness, home))
        assert await harness.controller.nodes.remove(leaving, accept_data_loss=False) == []
        assert await is_readable(harness, 20)

    asyncio.run(run())


def test_a_node_that_holds_part_of_a_retired_home_is_not_removed() -> None:
    async def run() -> None:
        harness, home = await prepared(apart=True)
        holding = min(nodes_of(await shared_blob(harness, home)) - nodes_of((await resolved(harness, 20)).blobs[0]))
        with pytest.raises(RefusedError):
            await harness.controller.nodes.remove(holding, accept_data_loss=False)
        assert holding in nodes_of(await shared_blob(harness, home))

    asyncio.run(run())


def test_what_is_lost_with_a_node_is_told_of_all_who_need_it() -> None:
    """I4: an operator who accepts the loss is told every checkpoint that goes with it."""

    async def run() -> None:
        harness = Harness(node_ids=NODES[:3])
        await harness.start()
        await harness.controller.pools.create(Pool(POOL, Level.L1), request_id="plain")
        home = await save_referring(harness, 10, pool=POOL)
        [node_id] = nodes_of(await shared_blob(harness, home))
        # The next one begins elsewhere, and refers to what only that node has.
        await save_referring(harness, 20, pool=POOL, avoid=frozenset({node_id}))
        own = (await harness.shards(await look(harness, 20)))[0].blobs[0]
        assert node_id not in nodes_of(own)
        await harness.kill(node_id)
        await repair(harness)
        assert {save.step for save in harness.controller.repairer.unavailable.values()} == {10, 20}
        lost = await harness.controller.nodes.remove(node_id, accept_data_loss=True)
        assert sorted(save.step for save in lost) == [10, 20]
        # The home is kept while the other could be brought back; by then its loss is accepted, and no trouble any more.
        assert harness.controller.tally.retired_saves == 1
        await repair(harness)
        totals = harness.controller.repairer.totals
        assert (totals.degraded_blobs, totals.awaited_blobs, totals.unavailable_count) == (0, 0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("question", list(Question))
@pytest.mark.parametrize("is_home_deleted", [False, True])
def test_a_node_without_which_what_is_referred_to_is_gone_may_not_go(question: Question, is_home_deleted: bool) -> None:
    """I4, I7: whoever needs it is named, also once the home itself is deleted."""

    async def run() -> None:
        harness = Harness(node_ids=NODES[:3])
        await harness.start()
        await harness.controller.pools.create(Pool(POOL, Level.L1), request_id="plain")
        home = await save_referring(harness, 10, pool=POOL)
        [node_id] = nodes_of(await shared_blob(harness, home))
        await save_referring(harness, 20, pool=POOL, avoid=frozenset({node_id}))
        if is_home_deleted:
            await harness.controller.catalog.delete(JOB, 10, why="test")
        with pytest.raises(RefusedError, match=r"step 20\b"):
            await harness.controller.node_questions.ask(node_id, question)

    asyncio.run(run())


def test_what_lost_some_of_its_redundancy_is_stored_anew() -> None:
    """Else a new checkpoint would be no safer than that, and say otherwise."""

    async def run() -> None:
        harness, home = await prepared()
        blob = await shared_blob(harness, home)
        offered = (await harness.begin(30, may_refer=True, pool=POOL)).offers
        assert blob.blake3 in {offer.blake3 for offer in offered}
        await harness.kill(min(nodes_of(blob)))
        offered = (await harness.begin(31, may_refer=True, pool=POOL)).offers
        assert blob.blake3 not in {offer.blake3 for offer in offered}

    asyncio.run(run())


def test_a_home_that_is_stored_in_another_form_is_found_by_who_refers_to_it() -> None:
    async def run() -> None:
        harness, home = await prepared()
        before = await shared_blob(harness, home)
        await harness.controller.pools.update(POOL, PoolChange(level=Level.L3, code=Code(4, 2)))
        # Until it is converted it is not good enough for the new level, and nothing refers to it.
        assert (await harness.begin(25, may_refer=True, pool=POOL)).offers == ()
        await repair(harness, times=3)
        after = await shared_blob(harness, home)
        assert (after.code, after.blake3) == ("4+2", before.blake3)
        assert after.id != before.id
        assert (await resolved(harness, 20)).blobs[1] == after
        assert ((await look(harness, 20)).level, (await look(harness, 20)).degraded) == (Level.L3, False)
        save = await save_referring(harness, 30, pool=POOL, blob_bytes=16 * MIB)
        assert (save.homes, save.level) == ((home.save_id,), Level.L3)

    asyncio.run(run())


def test_a_checkpoint_is_no_safer_than_what_it_refers_to() -> None:
    async def run() -> None:
        harness, home = await prepared()
        blob = await shared_blob(harness, home)
        await harness.kill(*nodes_of(blob))
        await harness.pass_time(LONG_SECONDS)
        await repair(harness)
        assert {save.step for save in harness.controller.repairer.unavailable.values()} == {20}
        await harness.revive(*nodes_of(blob))
        await harness.wait(10)
        begun = await harness.begin(30, may_refer=True, pool=POOL)
        receipt = referring_receipt(harness, begun, offers=begun.offers, blob_bytes=16 * MIB)
        # One copy is taken off the record: what is left is worth less than the pool promises.
        harness.nodes.take(min(nodes_of(blob)), blob.id)
        harness.nodes.full.update(harness.node_ids)
        await repair(harness)
        assert len((await shared_blob(harness, home)).holders) == 1
        with pytest.raises(SaveFailedError, match="stored at L1, its pool promises L2"):
            await register(harness, receipt)

    asyncio.run(run())


# Damage


@pytest.mark.parametrize("found_by", ["verify", "report", "scrub", "roll call"])
def test_damage_of_a_shared_blob_marks_every_checkpoint_that_needs_it(found_by: str) -> None:
    async def run() -> None:
        harness = await started()
        home = await save_referring(harness, 10)
        await save_referring(harness, 20)
        await save_referring(harness, 30)
        await save_referring(harness, 40, refer=False)
        blob = await shared_blob(harness, home)
        controller = harness.controller
        harness.nodes.verdicts[blob.id] = Verdict.CORRUPT
        if found_by == "verify":
            assert [p async for p in controller.verifier.verify(JOB, 30)][-1].problems
        elif found_by == "report":
            save = await look(harness, 30)
            assert (await controller.verifier.check_reported(JOB, 30, save.save_id, 0, blob.id)).damage
        elif found_by == "scrub":
            await scrub(harness)
        else:
            [node_id] = nodes_of(blob)
            harness.nodes.take(node_id, blob.id)
            await harness.start()
            await harness.controller.repairer.pass_once()
        damaged = {step for step in (10, 20, 30, 40) if (await look(harness, step)).damage}
        assert damaged == {10, 20, 30}

    asyncio.run(run())


def test_a_verification_reads_what_is_referred_to_and_lifts_the_mark() -> None:
    async def run() -> None:
        harness = await started()
        home = await save_referring(harness, 10)
        await save_referring(harness, 20)
        blob = await shared_blob(harness, home)
        harness.nodes.verdicts[blob.id] = Verdict.CORRUPT
        last = [progress async for progress in harness.controller.verifier.verify(JOB, 20)][-1]
        assert (last.checked_blobs, last.checked_bytes) == (2, last.total_bytes)
        assert (await look(harness, 10)).damage
        del harness.nodes.verdicts[blob.id]
        for step in (20, 10):
            assert not [progress async for progress in harness.controller.verifier.verify(JOB, step)][-1].problems
        assert ((await look(harness, 10)).damage, (await look(harness, 20)).damage) == ("", "")

    asyncio.run(run())


def test_a_scrub_lifts_the_mark_of_a_checkpoint_only_once_its_home_is_sound() -> None:
    async def run() -> None:
        harness = await started()
        home = await save_referring(harness, 10)
        await save_referring(harness, 20)
        blob = await shared_blob(harness, home)
        harness.nodes.verdicts[blob.id] = Verdict.CORRUPT
        await scrub(harness)
        await scrub(harness)
        assert (await look(harness, 20)).damage
        del harness.nodes.verdicts[blob.id]
        # The newest is looked at first: its home is not known to be sound before the next one.
        await scrub(harness)
        assert ((await look(harness, 10)).damage, bool((await look(harness, 20)).damage)) == ("", True)
        await scrub(harness)
        assert (await look(harness, 20)).damage == ""

    asyncio.run(run())


# The second pool


def test_a_mirrored_checkpoint_is_whole_in_the_second_pool_with_all_that_it_refers_to() -> None:
    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.01)
        home = await save_referring(harness, 10, pool=DEEP, blob_bytes=16 * MIB)
        harness.clock.advance(1)
        await save_referring(harness, 20, pool=DEEP, blob_bytes=16 * MIB)
        told: list[bool] = []

        async def watch(_: NodeId, __: object) -> None:
            mirrors = {mirror.ordinal for mirror in (await resolved(harness, 20)).mirrors}
            told.append(bool((await look(harness, 20)).mirror_pool) and mirrors != {0, 1})

        harness.nodes.on_pull = watch
        await repair(harness, times=3)
        assert told
        assert not any(told)
        assert (await look(harness, 20)).mirror_pool == SPARE
        assert [mirror.ordinal for mirror in (await resolved(harness, 20)).mirrors] == [0, 1]
        # Deleting the home takes nothing from it; that the mirror is wanted no more does.
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await repair(harness, times=2)
        assert (await look(harness, 20)).mirror_pool == SPARE
        # It is whole there no longer once the mirror of what it refers to is lost.
        mirrors = (await resolved(harness, 20)).mirrors
        assert nodes_of(mirrors[0]) != nodes_of(mirrors[1])
        harness.nodes.full.update(harness.node_ids)
        await go_down(harness, *nodes_of(mirrors[1]))
        await repair(harness)
        assert (await look(harness, 20)).mirror_pool == ""
        harness.nodes.full.clear()
        await come_back(harness, *nodes_of(mirrors[1]))
        await repair(harness, times=2)
        assert (await look(harness, 20)).mirror_pool == SPARE
        await harness.controller.pools.update(DEEP, PoolChange(mirror_pool="", mirror_ratio=0.0))
        await repair(harness, times=3)
        assert [shard.mirrors for shard in await harness.shards(home)] == [()]

    asyncio.run(run())


# The catalog elsewhere


def test_references_are_exported_and_imported(tmp_path: Path) -> None:
    async def run() -> None:
        source = await cluster_on()
        home = await save_referring(source, 10)
        await save_referring(source, 20)
        await source.controller.catalog.delete(JOB, 10, why="test")
        target = await empty_on()
        await imported(target, await exported(source, seal=True), tmp_path)
        kept = {key for key in await contents(source.store) if key.startswith(("reference/", "save/", "shard/"))}
        assert kept <= (await contents(target.store)).keys()
        assert {home_id for home_id, _ in await referrals(target)} == {home.save_id}
        assert (await resolved(target, 20)).blobs[1] == (await resolved(source, 20)).blobs[1]

    asyncio.run(run())


def test_from_fragments_alone_a_checkpoint_that_refers_is_named_and_left_out(tmp_path: Path) -> None:
    async def run() -> None:
        witnesses = FakeWitnesses()
        lost = await cluster_on()
        await save_referring(lost, 10)
        await save_referring(lost, 20)
        await witnesses.meet(lost)
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == [10]
        assert any("step 20" in problem and "incomplete" in problem for problem in last.problems)

    asyncio.run(run())


# Interrupts


async def two_that_share() -> Harness:
    harness = await started()
    await save_referring(harness, 10)
    await save_referring(harness, 20)
    return harness


async def refer_once_more(harness: Harness) -> None:
    await save_referring(harness, 30, world_size=2)


async def delete_both_and_collect(harness: Harness) -> None:
    for step in (10, 20):
        if step in await harness.steps():
            await harness.controller.catalog.delete(JOB, step, why="test")
    for _ in range(3):
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()


async def delete_and_undelete_the_home(harness: Harness) -> None:
    if 10 in await harness.steps():
        await harness.controller.catalog.delete(JOB, 10, why="test")
    await harness.collect()
    await harness.controller.catalog.undelete(JOB, 10)


async def delete_the_home_and_trim_it(harness: Harness) -> None:
    if 10 in await harness.steps():
        await harness.controller.catalog.delete(JOB, 10, why="test")
    await harness.pass_time(GRACE_SECONDS + 1)
    await harness.collect(2)
    assert [save.trimmed for save in await harness.listed(all_states=True)] == ["", "1:1"]


async def all_that_is_visible_can_be_read_and_nothing_leaks(harness: Harness) -> None:
    harness.beat()
    for step in await harness.steps():
        assert await is_readable(harness, step)
    await harness.collect()
    kept = [save for save in await harness.listed(all_states=True) if save.state.is_kept]
    tally = harness.controller.tally
    assert tally.bytes_by_pool["default"] == sum(save.stored_bytes for save in kept)  # type: ignore[index]
    assert tally.retired_saves == sum(save.state is SaveState.RETIRED for save in kept)
    pairs = {(home_id, save.save_id) for save in kept for home_id in save.homes}
    assert pairs <= await referrals(harness)
    for step in await harness.steps():
        await harness.controller.catalog.delete(JOB, step, why="test")
    begun = await harness.begin(5, by=attempt(9))
    await harness.seal(begun)
    for _ in range(5):
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(2)
    assert [save.step for save in await harness.listed(all_states=True)] == [5]
    assert (await harness.trash(), await referrals(harness)) == ([], set())
    assert len(harness.nodes.names()) == 1


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize(
    "story",
    [refer_once_more, delete_and_undelete_the_home, delete_the_home_and_trim_it, delete_both_and_collect],
    ids=lambda story: str(story.__name__),
)
def test_an_interrupt_at_any_transaction_loses_no_shared_blob_and_leaks_none(
    story: object, lost: bool, restart: bool
) -> None:
    check = all_that_is_visible_can_be_read_and_nothing_leaks
    interrupt_everywhere(two_that_share, story, check, lost=lost, restart=restart)  # type: ignore[arg-type]
