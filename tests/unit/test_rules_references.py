"""P13: what others refer to is never let go. The reference is on record first; whoever lets a save go compares that
very record, and so has seen the reference or is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Home, Reference, Save, SaveState
from sdrs_core.cluster import DEFAULT_POOL, Retention
from sdrs_core.errors import NotFoundError, SaveFailedError, UnavailableError
from sdrs_core.ids import JobName
from sdrs_core.levels import Level
from sdrs_core.references import offers_of
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Delete
from sdrs_storaged.control.records import put
from sdrs_storaged.control.referrals import Referrals
from tests.support.control import BLOB_BYTES, GRACE_SECONDS, JOB, TTL_SECONDS, Harness, attempt, started
from tests.support.referring import (
    is_readable,
    referrals,
    referring_receipt,
    register,
    resolved,
    save_referring,
    shared_blob,
)

Act = Callable[[], Awaitable[object]]


def before_next_transaction(harness: Harness, act: Act) -> None:
    """Somebody else is faster, once."""

    async def hook(_: int) -> None:
        harness.store.before = None
        await act()

    harness.store.before = hook


async def prepared() -> tuple[Harness, Save]:
    harness = await started()
    return harness, await save_referring(harness, 10)


async def delete(harness: Harness, step: int) -> Save:
    return await harness.controller.catalog.delete(JOB, step, why="test")


async def let_time_pass(harness: Harness) -> None:
    for _ in range(3):
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()


# What is stored


def test_an_unchanged_blob_is_referred_to_at_its_true_home_and_counted_once() -> None:
    async def run() -> None:
        harness, home = await prepared()
        for step in (20, 30):
            save = await save_referring(harness, step)
            assert (save.size_bytes, save.stored_bytes, save.level) == (2 * BLOB_BYTES, BLOB_BYTES, Level.L1)
            [shard] = await harness.shards(save)
            assert [reference.home for reference in shard.references] == [Home(home.save_id, 10, 1)]
            blobs = (await resolved(harness, step)).blobs
            assert [blob.ordinal for blob in blobs] == [0, 1]
            assert blobs[1] == await shared_blob(harness, home)
        assert harness.controller.tally.bytes_by_pool[DEFAULT_POOL] == 4 * BLOB_BYTES
        await harness.start()
        assert harness.controller.tally.bytes_by_pool[DEFAULT_POOL] == 4 * BLOB_BYTES

    asyncio.run(run())


def test_nothing_is_offered_of_what_is_damaged_of_another_pool_kind_or_job_or_to_who_does_not_ask() -> None:
    async def run() -> None:
        harness, home = await prepared()
        await harness.create_pool("other")
        assert (await harness.begin(20)).offers == ()
        assert len((await harness.begin(21, may_refer=True)).offers) == 2
        assert (await harness.begin(22, may_refer=True, pool="other")).offers == ()
        assert (await harness.begin(23, may_refer=True, job=JobName("another"))).offers == ()
        await harness.controller.catalog.mark_damage(JOB, 10, home.save_id, "rank 0 is gone")
        assert (await harness.begin(24, may_refer=True)).offers == ()

    asyncio.run(run())


@pytest.mark.parametrize("lie", ["another job", "content", "twice", "pending", "damaged"])
def test_only_what_the_same_job_has_stored_as_it_says_can_be_referred_to(lie: str) -> None:
    """P5"""

    async def run() -> None:
        harness, home = await prepared()
        begun = await harness.begin(20, may_refer=True)
        receipt = referring_receipt(harness, begun, offers=begun.offers)
        [reference] = receipt.shard.references
        references = (reference,)
        if lie == "another job":
            foreign = await harness.begin(20, job=JobName("another"))
            receipt = replace(referring_receipt(harness, foreign, offers=begun.offers), job=JobName("another"))
        elif lie == "content":
            references = (replace(reference, hash="other"),)
        elif lie == "twice":
            references = (reference, replace(reference, ordinal=2))
        elif lie == "pending":
            other = await harness.begin(15, world_size=2, by=attempt())
            await register(harness, referring_receipt(harness, other))
            references = (replace(reference, home=Home(other.save.save_id, 15, 1)),)
        else:
            await harness.controller.catalog.mark_damage(JOB, 10, home.save_id, "rank 0 is gone")
        with pytest.raises(SaveFailedError, match="store all of it"):
            await register(harness, replace(receipt, shard=replace(receipt.shard, references=references)))
        assert await referrals(harness) == set()

    asyncio.run(run())


# Deleting what others refer to


def test_a_save_that_others_refer_to_is_deleted_out_of_sight_and_collected_once_none_does() -> None:
    async def run() -> None:
        harness, home = await prepared()
        await save_referring(harness, 20)
        assert (await delete(harness, 10)).state is SaveState.RETIRED
        await let_time_pass(harness)
        assert await harness.steps() == [20]
        assert (10, 1, SaveState.RETIRED) in await harness.states()
        with pytest.raises(NotFoundError, match="the newest are 20"):
            await harness.controller.catalog.get(JOB, 10)
        assert await is_readable(harness, 20)
        # The step may be saved again meanwhile, by the same attempt.
        again = await save_referring(harness, 10, refer=False)
        assert again.state is SaveState.COMMITTED
        await delete(harness, 20)
        await let_time_pass(harness)
        assert [save.save_id for save in await harness.listed(all_states=True)] == [again.save_id]
        assert (await harness.trash(), await referrals(harness)) == ([], set())
        assert await harness.shards(home) == []
        assert harness.controller.tally.retired_saves == 0

    asyncio.run(run())


def test_a_delete_that_did_not_see_the_reference_is_refused() -> None:
    async def run() -> None:
        harness, home = await prepared()
        begun = await harness.begin(20, may_refer=True)
        receipt = referring_receipt(harness, begun, offers=begun.offers)
        before_next_transaction(harness, lambda: register(harness, receipt))
        with pytest.raises(UnavailableError, match="changed while it was being deleted"):
            await delete(harness, 10)
        assert (await delete(harness, 10)).state is SaveState.RETIRED
        await let_time_pass(harness)
        assert await is_readable(harness, 20)
        assert await harness.shards(home)

    asyncio.run(run())


def test_a_reference_to_what_was_just_deleted_is_refused_and_leaves_nothing() -> None:
    async def run() -> None:
        harness, home = await prepared()
        begun = await harness.begin(20, may_refer=True)
        receipt = referring_receipt(harness, begun, offers=begun.offers)
        before_next_transaction(harness, lambda: delete(harness, 10))
        with pytest.raises(SaveFailedError, match="store all of it"):
            await register(harness, receipt)
        assert await referrals(harness) == set()
        [trashed] = await harness.trash()
        assert (trashed.state, trashed.save_id) == (SaveState.DELETED, home.save_id)
        # As the client does it: it begins again, is offered nothing, and stores all of it.
        assert (await save_referring(harness, 20)).stored_bytes == 2 * BLOB_BYTES

    asyncio.run(run())


def test_a_retired_save_is_not_let_go_against_a_reference_that_was_just_made() -> None:
    """B is offered the home by A. A goes, the collector sees nobody refer any more; and now B does."""

    async def run() -> None:
        harness, home = await prepared()
        await save_referring(harness, 20)
        begun = await harness.begin(30, may_refer=True)
        receipt = referring_receipt(harness, begun, offers=begun.offers)
        await delete(harness, 10)
        await delete(harness, 20)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        assert await referrals(harness) == set()
        assert (10, 1, SaveState.RETIRED) in await harness.states()
        before_next_transaction(harness, lambda: register(harness, receipt))
        await harness.collect()
        assert await harness.trash() == []
        await let_time_pass(harness)
        assert await harness.steps() == [30]
        assert (10, 1, SaveState.RETIRED) in await harness.states()
        assert await is_readable(harness, 30)
        assert await harness.shards(home)

    asyncio.run(run())


def test_nothing_is_let_go_when_it_cannot_be_told_who_refers() -> None:
    """I7"""

    async def run() -> None:
        harness, home = await prepared()
        await save_referring(harness, 20)
        await delete(harness, 10)
        page = harness.store.range

        async def out_of_reach(prefix: str, **given: object) -> object:
            if prefix.startswith("reference/"):
                raise UnavailableError("the store does not answer")
            return await page(prefix, **given)  # type: ignore[arg-type]

        harness.store.range = out_of_reach  # type: ignore[method-assign,assignment]
        await let_time_pass(harness)
        assert (10, 1, SaveState.RETIRED) in await harness.states()
        with pytest.raises(UnavailableError):
            await harness.controller.catalog.discard(
                replace(await harness.controller.catalog.get(JOB, 20), value=replace(home, referrals=1)), why="test"
            )

    asyncio.run(run())


# Coming back, and ending


def test_a_retired_save_can_be_undeleted_within_its_grace_period() -> None:
    async def run() -> None:
        harness, home = await prepared()
        await save_referring(harness, 20)
        await delete(harness, 10)
        await harness.pass_time(GRACE_SECONDS - 1)
        await harness.collect(2)
        back = await harness.controller.catalog.undelete(JOB, 10)
        assert (back.state, back.save_id, back.note) == (SaveState.COMMITTED, home.save_id, "")
        assert await harness.steps() == [20, 10]
        assert harness.controller.tally.retired_saves == 0
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 2

    asyncio.run(run())


def test_what_refers_keeps_its_home_until_it_can_never_be_undeleted() -> None:
    async def run() -> None:
        harness, home = await prepared()
        await save_referring(harness, 20)
        await delete(harness, 20)
        await delete(harness, 10)
        await harness.pass_time(GRACE_SECONDS / 2)
        await harness.collect(2)
        assert (10, 1, SaveState.RETIRED) in await harness.states()
        await harness.controller.catalog.undelete(JOB, 20)
        await let_time_pass(harness)
        assert await is_readable(harness, 20)
        assert {home_id for home_id, _ in await referrals(harness)} == {home.save_id}

    asyncio.run(run())


def test_a_save_that_ends_before_its_commit_lets_go_of_what_it_referred_to() -> None:
    async def run() -> None:
        harness, home = await prepared()
        begun = await harness.begin(20, may_refer=True, world_size=2)
        await register(harness, referring_receipt(harness, begun, offers=begun.offers))
        assert await referrals(harness) == {(home.save_id, begun.save.save_id)}
        await delete(harness, 10)
        await harness.pass_time(TTL_SECONDS + 1)
        await harness.collect()
        assert [save.state for save in await harness.trash()] == [SaveState.ABORTED]
        assert (10, 1, SaveState.RETIRED) in await harness.states()
        await let_time_pass(harness)
        assert (await harness.listed(all_states=True), await harness.trash(), await referrals(harness)) == (
            [],
            [],
            set(),
        )
        assert harness.nodes.names() == set()

    asyncio.run(run())


def test_an_abort_that_overlaps_with_a_reference_takes_effect() -> None:
    async def run() -> None:
        harness, _ = await prepared()
        begun = await harness.begin(20, may_refer=True, world_size=2)
        receipt = referring_receipt(harness, begun, offers=begun.offers)
        before_next_transaction(harness, lambda: register(harness, receipt))
        await harness.controller.commits.abort(begun.save.save_id, begun.capability, "given up")
        [aborted] = await harness.trash()
        assert (aborted.state, len(aborted.homes)) == (SaveState.ABORTED, 1)

    asyncio.run(run())


# What nobody refers to


def test_of_a_retired_save_only_what_others_refer_to_is_kept_beyond_its_grace_period() -> None:
    async def run() -> None:
        harness, home = await prepared()
        await save_referring(harness, 20)
        shared = await shared_blob(harness, home)
        await delete(harness, 10)
        await let_time_pass(harness)
        assert [blob.ordinal for shard in await harness.shards(home) for blob in shard.blobs] == [1]
        assert harness.controller.tally.bytes_by_pool[DEFAULT_POOL] == 2 * BLOB_BYTES
        own = (await resolved(harness, 20)).blobs[0]
        assert harness.nodes.names() == {(shared.id, 0), (own.id, 0)}
        with pytest.raises(NotFoundError, match="could still be brought back"):
            await harness.controller.catalog.undelete(JOB, 10)
        # Who comes later may refer to what is left.
        assert (await save_referring(harness, 30)).homes == (home.save_id,)
        await delete(harness, 20)
        await let_time_pass(harness)
        assert await is_readable(harness, 30)

    asyncio.run(run())


def test_a_retired_save_that_refers_itself_lets_go_of_that_when_it_is_trimmed() -> None:
    async def run() -> None:
        harness, oldest = await prepared()
        middle = await save_referring(harness, 20)
        assert middle.homes == (oldest.save_id,)
        begun = await harness.begin(30, may_refer=True)
        # The newest refers to the first blob of the one before, which is that one's own.
        receipt = harness.receipt(begun, blob_count=1)
        [shard] = await harness.shards(middle)
        named = replace(shard, blobs=(replace(shard.blobs[0], blake3="blake3"),))
        await harness.controller.records.commit([], [put(keys.shard(middle.save_id, 0), named)])
        blob = named.blobs[0]
        reference = Reference(1, blob.size_bytes, blob.hash, "blake3", Home(middle.save_id, 20, 0))
        await register(harness, replace(receipt, shard=replace(receipt.shard, references=(reference,))))
        for step in (10, 20):
            await delete(harness, step)
        for _ in range(2):
            await let_time_pass(harness)
        assert [(save.step, save.state) for save in await harness.listed(all_states=True)] == [
            (30, SaveState.COMMITTED),
            (20, SaveState.RETIRED),
        ]
        assert await is_readable(harness, 30)
        # It stands where the new shard has it, not where its home has.
        assert [blob.ordinal for blob in (await resolved(harness, 30)).blobs] == [0, 1]

    asyncio.run(run())


def test_nothing_is_trimmed_while_a_save_that_refers_to_it_is_pending() -> None:
    async def run() -> None:
        harness = await started()
        home = await save_referring(harness, 10, world_size=2)
        begun = [await harness.begin(20, rank=rank, world_size=2, may_refer=True) for rank in range(2)]
        await register(harness, referring_receipt(harness, begun[0], offers=begun[0].offers))
        await delete(harness, 10)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(2)
        assert [len(shard.blobs) for shard in await harness.shards(home)] == [2, 2]
        await register(harness, referring_receipt(harness, begun[1], rank=1, offers=begun[1].offers))
        await harness.collect()
        assert [len(shard.blobs) for shard in await harness.shards(home)] == [1, 1]
        assert await is_readable(harness, 20)

    asyncio.run(run())


def test_a_blob_that_was_trimmed_since_the_receipt_was_checked_is_not_referred_to() -> None:
    """Two ranks were offered a blob of the home each. Another save refers to none of them, and the home is trimmed just
    after the receipt was looked at.
    """

    async def run() -> None:
        harness, home = await prepared()
        begun = await harness.begin(30, may_refer=True)
        receipt = referring_receipt(harness, begun, offers=begun.offers)
        keeper = await save_referring(harness, 20)
        # It keeps the home, but by another blob.
        [shard] = await harness.shards(keeper)
        other = replace(shard.references[0], home=Home(home.save_id, 10, 0))
        await harness.controller.records.commit(
            [], [put(keys.shard(keeper.save_id, 0), replace(shard, references=(other,)))]
        )
        await delete(harness, 10)
        await harness.pass_time(GRACE_SECONDS + 1)
        before_next_transaction(harness, harness.collect)
        with pytest.raises(SaveFailedError, match="does not store its blob 1"):
            await register(harness, receipt)
        assert [blob.ordinal for known in await harness.shards(home) for blob in known.blobs] == [0]

    asyncio.run(run())


def test_a_receipt_that_was_checked_before_a_trim_is_looked_at_again_though_another_rank_was_faster() -> None:
    async def run() -> None:
        harness = await started()
        home = await save_referring(harness, 10, world_size=2)
        keeper = await save_referring(harness, 20, world_size=2)
        # Which needs nothing of what rank 1 stored.
        shard = (await harness.shards(keeper))[1]
        await harness.controller.records.commit([], [put(keys.shard(keeper.save_id, 1), replace(shard, references=()))])
        begun = [await harness.begin(30, rank=rank, world_size=2, may_refer=True) for rank in range(2)]
        slow = referring_receipt(harness, begun[1], rank=1, offers=offers_of(home, (await harness.shards(home))[1]))
        assert slow.shard.references
        referrals_of = Referrals(harness.controller.records, harness.controller.members)
        await referrals_of.check(begun[1].save, slow.shard)
        await delete(harness, 10)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        await register(harness, referring_receipt(harness, begun[0], offers=begun[0].offers))
        pending = harness.controller.commits.get(begun[0].save.save_id)
        assert pending
        assert pending.stored.value.homes == (home.save_id,)
        with pytest.raises(SaveFailedError, match="does not store its blob 1"):
            await referrals_of.write(pending, [slow.shard])

    asyncio.run(run())


def test_a_rank_of_which_nothing_is_needed_leaves_no_record_behind() -> None:
    async def run() -> None:
        harness = await started()
        home = await save_referring(harness, 10, world_size=2)
        for rank in range(2):
            begun = await harness.begin(20, rank=rank, world_size=2, may_refer=True)
            offers = begun.offers if rank == 0 else ()
            await register(harness, referring_receipt(harness, begun, rank=rank, offers=offers))
        await delete(harness, 10)
        await let_time_pass(harness)
        assert [len(shard.blobs) for shard in await harness.shards(home)] == [1, 0]
        await delete(harness, 20)
        for _ in range(2):
            await let_time_pass(harness)
        assert (await harness.shards(home), await harness.trash(), harness.nodes.names()) == ([], [], set())

    asyncio.run(run())


def test_what_a_rebuild_put_into_the_trash_is_not_condemned_while_others_refer_to_it() -> None:
    async def run() -> None:
        harness, home = await prepared()
        await save_referring(harness, 20)
        stored = await harness.controller.catalog.get(JOB, 10)
        gone = replace(stored.value, state=SaveState.DELETED, ended_unix_ms=harness.clock.unix_ms())
        await harness.controller.records.commit([], [Delete(stored.key), put(keys.trash(home.save_id), gone)])
        await let_time_pass(harness)
        assert [save.state for save in await harness.trash()] == [SaveState.DELETED]
        assert await is_readable(harness, 20)
        await delete(harness, 20)
        await let_time_pass(harness)
        assert await harness.trash() == []

    asyncio.run(run())


def test_retention_keeps_what_the_kept_refer_to_and_lets_it_go_with_them() -> None:
    async def run() -> None:
        harness, home = await prepared()
        await harness.retain(Retention(keep_last=1))
        for step in (20, 30):
            await save_referring(harness, step)
            await let_time_pass(harness)
        assert [(save.step, save.state) for save in await harness.listed(all_states=True)] == [
            (30, SaveState.COMMITTED),
            (10, SaveState.RETIRED),
        ]
        assert await is_readable(harness, 30)
        await save_referring(harness, 40, refer=False)
        await let_time_pass(harness)
        assert [save.step for save in await harness.listed(all_states=True)] == [40]
        assert await harness.shards(home) == []

    asyncio.run(run())


def test_a_page_of_shards_is_resolved_like_each_of_them() -> None:
    async def run() -> None:
        harness = await started()
        await save_referring(harness, 10, world_size=5)
        save = await save_referring(harness, 20, world_size=5)
        homes = harness.controller.catalog.homes
        shards = await harness.shards(save)
        for page in (shards, shards[2:4], shards[4:]):
            known = await homes.of_page(page)
            assert len(known) == len(page)
            for shard in page:
                assert await homes.resolved(shard, known) == await homes.resolved(shard)

    asyncio.run(run())


def test_all_ranks_of_a_save_refer_with_one_record() -> None:
    async def run() -> None:
        harness = await started()
        home = await save_referring(harness, 10, world_size=3)
        save = await save_referring(harness, 20, world_size=3)
        assert await referrals(harness) == {(home.save_id, save.save_id)}
        assert (await harness.controller.catalog.get(JOB, 10)).value.referrals == 1
        # Three at once: whoever is slower finds it done.
        begun = [await harness.begin(30, rank=rank, world_size=3, may_refer=True) for rank in range(3)]
        receipts = [referring_receipt(harness, each, rank=rank, offers=each.offers) for rank, each in enumerate(begun)]
        await asyncio.gather(*(register(harness, receipt) for receipt in receipts))
        assert (await harness.find(begun[0])).stored_bytes == 3 * BLOB_BYTES
        assert (await harness.controller.catalog.get(JOB, 10)).value.referrals == 2

    asyncio.run(run())
