"""Scrubs: all that is stored is looked at, by schedule and on demand; what is bad is found, told, and replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sdrs_core.checkpoints import Blob, Holder, Save, Verdict
from sdrs_core.errors import NotFoundError, RefusedError, UnavailableError
from sdrs_core.ids import BlobId, JobName, SaveId, random_id
from sdrs_core.scrub import Depth
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.control import keys
from sdrs_storaged.control.events import Event
from sdrs_storaged.control.looks import FragmentCheck
from sdrs_storaged.control.records import put
from sdrs_storaged.control.scrub_record import Scrub, Stage
from tests.support.coded_saves import (
    SIX,
    SIZE_BYTES,
    LookedAtNodes,
    coded_save,
    indexes,
    looked_at,
    shard_of,
    started_with_code,
)
from tests.support.control import JOB, Harness
from tests.support.mirrors import save_of, write

DAY = 86_400.0


async def scrub(harness: Harness, depth: Depth = Depth.DEEP, job: str = "") -> Scrub:
    """One, to its end."""
    harness.beat()
    begun = await harness.controller.scrubber.start(depth, job, trigger="a test")
    await harness.controller.scrubber.pass_once()
    found = (await harness.controller.scrubber.status()).scrub
    assert found
    assert (found.id, found.is_under_way) == (begun.id, False)
    return found


def quicken(harness: Harness) -> list[float]:
    """Rests take no time but the clock's; they are kept."""
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        harness.clock.advance(seconds)
        harness.beat()

    scrubber = harness.controller.scrubber
    scrubber._tools = replace(scrubber._tools, sleep=sleep)
    return rests


def mend_by_hand(harness: Harness, save: Save, whole: Sequence[Holder]) -> None:
    """As repair would: each time the scrub rests, what is lacking is put back, and it is good."""

    async def sleep(seconds: float) -> None:
        harness.clock.advance(seconds)
        harness.beat()
        nodes, shard = looked_at(harness), await shard_of(harness, save)
        blob = shard.blobs[0]
        lacking = [holder for holder in whole if holder.fragment_index not in indexes(blob)]
        for holder in lacking:
            place = (holder.node_id, blob.id, holder.fragment_index)
            nodes.found.pop(place, None)
            nodes.wrong_parity.discard(place)
            nodes.place(holder.node_id, blob, holder.fragment_index, save, harness.clock.unix_ms())
        await write(harness, replace(shard, blobs=(replace(blob, holders=(*blob.holders, *lacking)),)))

    scrubber = harness.controller.scrubber
    scrubber._tools = replace(scrubber._tools, sleep=sleep, bytes_per_second=0)


async def mended_save(harness: Harness, step: int) -> tuple[Save, Blob]:
    save = await coded_save(harness, step)
    blob = (await shard_of(harness, save)).blobs[0]
    mend_by_hand(harness, save, blob.holders)
    return save, blob


async def events(harness: Harness) -> list[Event]:
    return (await harness.controller.events.page(group_id="", node_id="", after="", limit=50))[0]


# What is found


@pytest.mark.parametrize("depth", list(Depth))
def test_a_sound_cluster_has_nothing_to_tell_of(depth: Depth) -> None:
    async def run() -> None:
        harness = await started_with_code()
        await coded_save(harness, 10, world_size=2, mirrored_on=SIX[:2])
        await coded_save(harness, 20)
        found = await scrub(harness, depth)
        assert (found.checked_checkpoints, found.total_checkpoints, found.checked_fragments) == (2, 2, 2 * 8 + 6)
        assert not found.has_findings
        assert (found.undecided_fragments, found.unknown_fragments, found.damaged_checkpoints) == (0, 0, 0)
        assert found.problems == []
        assert (found.checked_bytes > 2 * SIZE_BYTES) is (depth is Depth.DEEP)
        assert bool(looked_at(harness).reads) is (depth is Depth.DEEP)

    asyncio.run(run())


@pytest.mark.parametrize("depth", list(Depth))
def test_a_missing_fragment_is_found_taken_off_the_record_and_waited_for_until_it_is_back(depth: Depth) -> None:
    async def run() -> None:
        harness = await started_with_code()
        save, blob = await mended_save(harness, 10)
        looked_at(harness).lose(SIX[3], blob, 3)
        found = await scrub(harness, depth)
        assert (found.missing_fragments, found.bad_fragments, found.repaired_fragments) == (1, 0, 1)
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6))
        [problem] = found.problems
        assert problem.startswith(f"{JOB} step 10, rank 0 on node {SIX[3]}: missing")

    asyncio.run(run())


def test_what_has_another_hash_than_on_record_is_found_by_a_shallow_scrub() -> None:
    """As if two files were swapped together with their names."""

    async def run() -> None:
        harness = await started_with_code()
        _, blob = await mended_save(harness, 10)
        looked_at(harness).hashes[(SIX[2], (blob.id, 2))] = "of something else"
        found = await scrub(harness, Depth.SHALLOW)
        assert (found.bad_fragments, found.repaired_fragments) == (1, 1)

    asyncio.run(run())


def test_what_only_reading_tells_is_found_by_a_deep_scrub_alone() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save, blob = await mended_save(harness, 10)
        looked_at(harness).found[(SIX[0], blob.id, 0)] = Verdict.CORRUPT
        assert not (await scrub(harness, Depth.SHALLOW)).has_findings
        found = await scrub(harness, Depth.DEEP)
        assert (found.bad_fragments, found.repaired_fragments) == (1, 1)
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6))

    asyncio.run(run())


def test_parity_that_could_not_be_computed_is_looked_at_again_once_the_data_is_mended() -> None:
    """A bad data fragment hides wrong parity of the same blob: both are found by the same scrub."""

    async def run() -> None:
        harness = await started_with_code()
        save, blob = await mended_save(harness, 10)
        looked_at(harness).found[(SIX[0], blob.id, 0)] = Verdict.CORRUPT
        looked_at(harness).wrong_parity.add((SIX[5], blob.id, 5))
        found = await scrub(harness, Depth.DEEP)
        assert (found.bad_fragments, found.repaired_fragments) == (2, 2)
        assert looked_at(harness).wrong_parity == set()
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6))

    asyncio.run(run())


@pytest.mark.parametrize("depth", list(Depth))
def test_what_cannot_be_brought_back_is_marked_and_told_and_stays_on_record(depth: Depth) -> None:
    async def run() -> None:
        harness = await started_with_code()
        await coded_save(harness, 5)
        save = await coded_save(harness, 10)
        blob = (await shard_of(harness, save)).blobs[0]
        for index in (0, 2, 4):
            looked_at(harness).lose(SIX[index], blob, index)
        found = await scrub(harness, depth)
        assert (found.damaged_checkpoints, found.missing_fragments, found.repaired_fragments) == (1, 3, 0)
        damaged = await save_of(harness, 10)
        assert damaged.damage.startswith("rank 0 is missing")
        assert any(f"checkpoint {damaged.title} is damaged" in text for text in harness.controller.warnings())
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6))
        assert (await save_of(harness, 5)).damage == ""

    asyncio.run(run())


def test_a_deep_scrub_lifts_a_mark_that_does_not_hold_any_more_and_a_shallow_one_does_not() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        await harness.controller.catalog.mark_damage(JOB, 10, save.save_id, "known before")
        await scrub(harness, Depth.SHALLOW)
        assert (await save_of(harness, 10)).damage == "known before"
        await scrub(harness, Depth.DEEP)
        assert (await save_of(harness, 10)).damage == ""

    asyncio.run(run())


def test_nodes_that_are_down_are_undecided_told_of_once_and_take_nothing_off_the_record() -> None:
    async def run(depth: Depth) -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10, world_size=3)
        await harness.controller.catalog.mark_damage(JOB, 10, save.save_id, "known before")
        harness.silent.update(SIX[:2])
        await harness.pass_time(10)
        found = await scrub(harness, depth)
        assert (found.undecided_fragments, found.has_findings) == (6, False)
        assert sum(f"node {SIX[0]} is down, so its fragment" in text for text in found.problems) == 1
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6))
        assert (await save_of(harness, 10)).damage == "known before"

    asyncio.run(run(Depth.SHALLOW))
    asyncio.run(run(Depth.DEEP))


def test_the_nodes_lists_are_compared_with_the_records_too() -> None:
    """Both ways: what a record names and nobody has is missing, what a node has and no record names is unknown."""

    async def run() -> None:
        harness = await started_with_code()
        quicken(harness)
        save = await coded_save(harness, 10)
        blob = (await shard_of(harness, save)).blobs[0]
        nodes = looked_at(harness)
        nodes.lose(SIX[0], blob, 0)
        nodes.place(SIX[1], blob, 0, save, harness.clock.unix_ms())  # on another node than the record says
        nodes.put(SIX[2], BlobId(random_id()), SaveId(random_id()), harness.clock.unix_ms())
        pending = await harness.begin(30, world_size=2)
        nodes.put(SIX[3], BlobId(random_id()), pending.save.save_id, harness.clock.unix_ms())
        harness.clock.advance(1)
        found = await scrub(harness, Depth.SHALLOW)
        assert (found.missing_fragments, found.unknown_fragments) == (1, 2)
        assert (blob.id, 0) in nodes.names(SIX[1]), "it is left to the collector"
        assert any(text.startswith(f"node {SIX[2]} has 1 fragment") for text in found.problems)
        nodes.broken.add(SIX[4])
        nodes.fragments[SIX[4]] |= {(BlobId(f"{n:032x}"), 0): nodes.fragments[SIX[4]][(blob.id, 4)] for n in range(3)}
        nodes.page_size = 1
        again = await scrub(harness, Depth.SHALLOW)
        assert any(f"what node {SIX[4]} holds could not be compared" in text for text in again.problems)

    asyncio.run(run())


def test_one_jobs_checkpoints_can_be_looked_at_alone_and_that_counts_for_no_schedule() -> None:
    async def run() -> None:
        harness = await started_with_code()
        await coded_save(harness, 10)
        other = JobName("other")
        await harness.controller.saves.begin(replace(harness.request(1), job=other))
        found = await scrub(harness, Depth.DEEP, JOB)
        assert (found.job, found.checked_checkpoints) == (JOB, 1)
        assert (await harness.controller.scrubber.status()).deep_done_unix_ms == 0
        with pytest.raises(NotFoundError, match="nobody"):
            await harness.controller.scrubber.start(Depth.DEEP, "nobody", trigger="a test")

    asyncio.run(run())


# One at a time, and over controllers


def test_one_at_a_time_and_the_same_one_is_joined() -> None:
    async def run() -> None:
        harness = await started_with_code()
        await coded_save(harness, 10)
        start = harness.controller.scrubber.start
        first = await start(Depth.DEEP, trigger="a test", request_id="r1")
        assert (await start(Depth.DEEP, trigger="another")).id == first.id
        with pytest.raises(RefusedError, match="deep scrub of all checkpoints is under way \\(0 of 1"):
            await start(Depth.SHALLOW, trigger="a test")
        with pytest.raises(RefusedError, match="under way"):
            await start(Depth.DEEP, JOB, trigger="a test")
        await harness.controller.scrubber.pass_once()
        # Its answer was lost, and it is through by now.
        assert (await start(Depth.DEEP, trigger="a test", request_id="r1")).id == first.id
        assert (await start(Depth.DEEP, trigger="a test", request_id="r2")).id != first.id

    asyncio.run(run())


def test_one_that_is_stopped_ends_says_what_it_covered_and_is_not_due_again_at_once() -> None:
    class Stopping(LookedAtNodes):
        """An operator stops the scrub in the midst of the second checkpoint."""

        harness: Harness
        stops: list[asyncio.Task[Scrub]]

        async def verify_fragment(self, *args: Any, **kwargs: Any) -> AsyncIterator[FragmentCheck]:
            if len(self.reads) == 8 and not self.stops:
                self.stops.append(asyncio.create_task(self.harness.controller.scrubber.stop()))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            async for check in super().verify_fragment(*args, **kwargs):
                yield check

    async def run() -> None:
        nodes = Stopping()
        harness = await started_with_code(nodes=nodes)
        nodes.harness, nodes.stops = harness, []
        quicken(harness)
        scrubber = harness.controller.scrubber
        with pytest.raises(NotFoundError, match="no scrub to stop"):
            await scrubber.stop()
        for step in (10, 20, 30):
            await coded_save(harness, step)
        await scrubber.pass_once()
        await harness.pass_time(7 * DAY + 1)
        assert await scrubber.pass_once() == 0
        stopped = await nodes.stops[0]
        assert (stopped.depth, stopped.trigger) == (Depth.DEEP, "schedule")
        assert (stopped.is_stopped, stopped.is_under_way, stopped.checked_checkpoints) == (True, False, 1)
        assert await scrubber.stop() == stopped, "stopping twice is stopping"
        [event, *_] = await events(harness)
        assert (event.kind, "stopped: 1 of 3 checkpoints" in event.text) == ("scrub_stopped", True)
        assert (await scrubber.status()).deep_done_unix_ms == 0
        # It is not begun again by itself before its interval is over, nor after a change of controllers.
        await harness.start()
        quicken(harness)
        assert await harness.controller.scrubber.pass_once() > 0
        # One that is asked for begins anew.
        done = await scrub(harness, Depth.DEEP)
        assert (done.is_stopped, done.checked_checkpoints) == (False, 3)

    asyncio.run(run())


def test_another_controller_goes_on_where_this_one_stood() -> None:
    class Dying(LookedAtNodes):
        """The controller is gone as soon as so many fragments were read."""

        left = 10**9

        def verify_fragment(self, *args: Any, **kwargs: Any) -> AsyncIterator[FragmentCheck]:
            if self.left == 0:
                raise asyncio.CancelledError
            self.left -= 1
            return super().verify_fragment(*args, **kwargs)

    async def run() -> None:
        harness = await started_with_code(nodes=Dying())
        save = await coded_save(harness, 30, world_size=3)  # the newest comes first
        await coded_save(harness, 20)
        nodes = looked_at(harness)
        assert isinstance(nodes, Dying)
        blob = (await shard_of(harness, save)).blobs[0]
        nodes.found[(SIX[1], blob.id, 1)] = Verdict.CORRUPT
        begun = await harness.controller.scrubber.start(Depth.DEEP, trigger="a test")
        nodes.left = 14  # in the midst of the third rank
        with pytest.raises(asyncio.CancelledError):
            await harness.controller.scrubber.pass_once()
        read_before = len(nodes.reads)
        nodes.left = 10**9
        await harness.start()
        quicken(harness)
        resumed = (await harness.controller.scrubber.status()).scrub
        assert resumed
        assert (resumed.id, resumed.is_under_way, resumed.bad_fragments) == (begun.id, True, 1)
        await harness.controller.scrubber.pass_once()
        done = (await harness.controller.scrubber.status()).scrub
        assert done
        assert (done.id, done.is_under_way, done.checked_checkpoints) == (begun.id, False, 2)
        assert (done.bad_fragments, done.checked_fragments) == (1, 4 * 6)
        first = nodes.reads[:read_before]
        again = [place for place in nodes.reads[read_before:] if place in first[:6]]
        assert not again, "the first rank is not read again"

    asyncio.run(run())


def test_a_controller_that_has_just_begun_hears_its_nodes_before_it_judges_them() -> None:
    async def run() -> None:
        harness = await started_with_code()
        await coded_save(harness, 10)
        begun = await harness.controller.scrubber.start(Depth.DEEP, trigger="a test")
        harness.silent.update(SIX)
        await harness.start()
        rests = 0

        async def sleep(seconds: float) -> None:
            nonlocal rests
            rests += 1
            if rests == 3:
                harness.silent.clear()
            harness.clock.advance(0.1)
            harness.beat()

        scrubber = harness.controller.scrubber
        scrubber._tools = replace(scrubber._tools, sleep=sleep, bytes_per_second=0)
        await scrubber.pass_once()
        done = (await scrubber.status()).scrub
        assert done
        assert (done.id, done.checked_fragments, done.undecided_fragments) == (begun.id, 6, 0)

    asyncio.run(run())


def test_a_scrub_that_the_store_interrupts_goes_on_afterwards() -> None:
    async def run() -> None:
        harness = await started_with_code()
        quicken(harness)
        save = await coded_save(harness, 10)
        blob = (await shard_of(harness, save)).blobs[0]
        looked_at(harness).found[(SIX[1], blob.id, 1)] = Verdict.CORRUPT
        scrubber = harness.controller.scrubber
        begun = await scrubber.start(Depth.DEEP, trigger="a test")
        harness.store.fail(1, UnavailableError("the store is away"))
        with pytest.raises(UnavailableError):
            await scrubber.pass_once()
        harness.store.heal()
        await scrubber.pass_once()
        done = (await scrubber.status()).scrub
        assert done
        assert (done.id, done.stage, done.bad_fragments + done.missing_fragments) == (begun.id, Stage.DONE, 1)

    asyncio.run(run())


def test_a_start_whose_answer_the_store_lost_is_found_again() -> None:
    async def run() -> None:
        harness = await started_with_code()
        scrubber = harness.controller.scrubber
        await scrubber.pass_once()
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await scrubber.start(Depth.DEEP, trigger="a test", request_id="r1")
        harness.store.heal()
        again = await scrubber.start(Depth.DEEP, trigger="a test", request_id="r1")
        assert (again.request_id, again.is_under_way) == ("r1", True)
        assert [event.kind for event in (await events(harness))].count("scrub_started") == 1

    asyncio.run(run())


# By schedule


def test_it_is_due_an_interval_after_the_cluster_began_and_again_after_each_one() -> None:
    async def run() -> None:
        harness = await started_with_code()
        quicken(harness)
        await coded_save(harness, 10)
        scrubber = harness.controller.scrubber
        rest_seconds = await scrubber.pass_once()
        assert 0 < rest_seconds <= DAY
        assert (await scrubber.status()).scrub is None
        await harness.pass_time(DAY / 2)
        await harness.start()  # another controller counts on from there
        quicken(harness)
        scrubber = harness.controller.scrubber
        await scrubber.pass_once()
        assert (await scrubber.status()).scrub is None
        depths = []
        for _ in range(15):
            await harness.pass_time(DAY / 2)
            while await scrubber.pass_once() == 0:
                last = (await scrubber.status()).scrub
                assert last
                assert last.trigger == "schedule"
                depths.append(last.depth)
        assert depths == [Depth.SHALLOW] * 6 + [Depth.DEEP] + [Depth.SHALLOW]
        assert [event.kind for event in await events(harness)][:2] == ["scrub_done", "scrub_started"]

    asyncio.run(run())


# How fast


def test_reading_keeps_to_its_pace_and_counts_what_parity_is_compared_with() -> None:
    async def run() -> None:
        harness = await started_with_code()
        rests = quicken(harness)
        scrubber = harness.controller.scrubber
        limit = 1_000_000
        scrubber._tools = replace(scrubber._tools, bytes_per_second=limit)
        save = await coded_save(harness, 10)
        blob = (await shard_of(harness, save)).blobs[0]
        began = harness.clock.monotonic_seconds()
        await scrub(harness, Depth.DEEP)
        took_seconds = harness.clock.monotonic_seconds() - began
        sizes = [fragment_bytes(blob, index) for index in range(6)]
        moved_bytes = sum(sizes[:4]) + 5 * sum(sizes[4:])
        assert took_seconds == pytest.approx(moved_bytes / limit, abs=1.5)
        assert rests
        assert looked_at(harness).limits == [limit] * 4 + [limit // 5] * 2

    asyncio.run(run())


# Telling


def test_a_record_that_cannot_be_read_keeps_no_other_from_being_looked_at() -> None:
    async def run() -> None:
        harness = await started_with_code()
        bad = await coded_save(harness, 20)
        await coded_save(harness, 10)
        await harness.controller.records.commit([], [put(keys.shard(bad.save_id, 0), 7)])
        found = await scrub(harness, Depth.DEEP)
        assert (found.checked_checkpoints, found.checked_fragments) == (2, 6)
        assert any("cannot be read" in text for text in found.problems)

    asyncio.run(run())


def test_problems_are_bounded_and_the_counts_are_not() -> None:
    async def run() -> None:
        harness = await started_with_code()
        quicken(harness)
        save = await coded_save(harness, 10, world_size=70)
        for shard in await harness.shards(save):
            looked_at(harness).lose(SIX[0], shard.blobs[0], 0)
        found = await scrub(harness, Depth.SHALLOW)
        assert (found.missing_fragments, len(found.problems)) == (70, 50)
        totals = harness.controller.scrubber.totals
        assert (totals["missing_fragments"], totals["checked_fragments"]) == (70, 420)

    asyncio.run(run())


def test_repair_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def run() -> None:
        harness = await started_with_code()
        rests = quicken(harness)
        save = await coded_save(harness, 10)
        looked_at(harness).lose(SIX[0], (await shard_of(harness, save)).blobs[0], 0)
        found = await scrub(harness, Depth.SHALLOW)
        assert (found.missing_fragments, found.repaired_fragments) == (1, 0)
        assert 20 < sum(rests) < 60

    asyncio.run(run())
