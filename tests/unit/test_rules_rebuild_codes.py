"""A lost catalog comes back from fragments of codes (P19): any k of a blob tell enough, mirrors and new forms too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sdrs_core.checkpoints import Blob, Save, SaveState
from sdrs_core.cluster import Pool
from sdrs_core.codes import MIRROR, Code, parse_code
from sdrs_core.ids import BlobId, NodeId, PoolName, SaveId, random_id
from sdrs_core.levels import Level
from sdrs_storaged.control.snapshots import Snapshots
from sdrs_storaged.control.witnesses import WitnessedFragment
from tests.support.catalogs import Cluster, FakeWitnesses, cluster_on, rebuilt, witnessed
from tests.support.control import GRACE_SECONDS, JOB

NODES = tuple(f"node-{number}" for number in range(8))
POOL = PoolName("deep")
SPARE = PoolName("spare")
SIZE_BYTES = 9 << 20


def play(test: Callable[[Cluster, FakeWitnesses], Awaitable[None]]) -> None:
    async def run() -> None:
        witnesses = FakeWitnesses()
        lost = await cluster_on(node_ids=NODES)
        await witnesses.meet(lost)
        await test(lost, witnesses)

    asyncio.run(run())


async def coded_save(cluster: Cluster, step: int, *, world_size: int = 1) -> Save:
    """The record that it would have had; only fragments tell of it."""
    save = await cluster.save(1000 + step)
    return replace(save, save_id=SaveId(random_id()), step=step, world_size=world_size, pool=POOL, level=Level.L3)


def fragments(
    save: Save,
    code: str = "4+2",
    indexes: Iterable[int] | None = None,
    *,
    blob_id: str = "",
    content: str = "content",
    seconds_later: int = 0,
    rank: int = 0,
    pool: str = "",
    ordinal: int = 0,
    blob_count: int = 1,
) -> dict[int, WitnessedFragment]:
    """By index; those of whole copies by their number. ``pool``: it is a mirror there."""
    parsed = parse_code(code)
    whole = witnessed(save, BlobId(blob_id or random_id()), rank, ordinal, blob_count)
    found = {}
    for index in range(parsed.total if parsed else 2) if indexes is None else indexes:
        found[index] = replace(
            whole,
            fragment_index=index if parsed else 0,
            size_bytes=parsed.fragment_bytes(SIZE_BYTES, index) if parsed else SIZE_BYTES,
            hash=f"{code} {index} of {content}" if parsed else content,
            code=code,
            source_size_bytes=SIZE_BYTES,
            source_hash=content,
            created_unix_ms=whole.created_unix_ms + 1000 * seconds_later,
            pool=pool or save.pool,
            save_pool=save.pool if pool else "",
        )
    return found


def spread(witnesses: FakeWitnesses, found: Mapping[int, WitnessedFragment], *, first: int = 0) -> None:
    """Each on a node of its own."""
    for number, fragment in found.items():
        witnesses[NODES[(first + number) % len(NODES)]].fragments.append(fragment)


def clear(witnesses: FakeWitnesses) -> None:
    for witness in witnesses.by_address.values():
        witness.fragments = []


async def blobs_of(cluster: Cluster, step: int = 10) -> tuple[Save, tuple[Blob, ...], tuple[Blob, ...]]:
    save = (await cluster.controller.catalog.get(JOB, step)).value
    [shard] = await cluster.shards(save)
    return save, shard.blobs, shard.mirrors


def test_a_coded_checkpoint_comes_back_with_its_holders_its_level_and_its_pool(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        save = await coded_save(lost, 10)
        spread(witnesses, fragments(save))
        cluster, last = await rebuilt(witnesses, tmp_path)
        back, [blob], mirrors = await blobs_of(cluster)
        assert (back.pool, back.level, back.degraded, back.size_bytes) == (POOL, Level.L3, False, SIZE_BYTES)
        assert (blob.code, blob.size_bytes, blob.hash) == ("4+2", SIZE_BYTES, "content")
        assert [(holder.node_id, holder.fragment_index) for holder in blob.holders] == [(NODES[n], n) for n in range(6)]
        assert blob.holders[5].fragment_hash == "4+2 5 of content"
        assert mirrors == ()
        pool = cluster.controller.members.pool(POOL)
        assert (pool.level, pool.code) == (Level.L3, Code(4, 2))
        assert any('pool "deep" is made anew at L3' in problem for problem in last.problems)

    play(run)


@pytest.mark.parametrize(
    ("left", "level", "degraded"),
    [((0, 1, 2, 3, 4, 5), Level.L3, False), ((0, 1, 2, 4, 5), Level.L3, True), ((0, 2, 4, 5), Level.L1, True)],
)
def test_any_k_fragments_bring_it_back_at_what_they_are_worth(
    tmp_path: Path, left: tuple[int, ...], level: Level, degraded: bool
) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        spread(witnesses, fragments(await coded_save(lost, 10), indexes=left))
        cluster, _ = await rebuilt(witnesses, tmp_path)
        save, [blob], _ = await blobs_of(cluster)
        assert (save.state, save.level, save.degraded) == (SaveState.COMMITTED, level, degraded)
        assert [holder.fragment_index for holder in blob.holders] == list(left)

    play(run)


def test_fewer_than_k_are_told_of_and_kept_for_the_grace_period(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        save = await coded_save(lost, 10)
        spread(witnesses, fragments(save, indexes=(0, 1, 5)))
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == []
        assert any("fewer than the 4 fragments that it needs" in problem for problem in last.problems)
        [trashed] = await cluster.trash()
        assert trashed.save_id == save.save_id
        await cluster.pass_time(GRACE_SECONDS - 1)
        await cluster.collect(2)
        assert len(await cluster.trash()) == 1

    play(run)


@pytest.mark.parametrize("differing", ["source_hash", "source_size_bytes", "code", "hash"])
def test_fragments_of_a_blob_that_do_not_agree_are_no_checkpoint(tmp_path: Path, differing: str) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        found = fragments(await coded_save(lost, 10))
        other = {"source_hash": "other", "source_size_bytes": 1, "code": "3+3", "hash": "other"}[differing]
        # One that is there twice is compared, too.
        strange = replace(found[5], **{differing: other})  # type: ignore[arg-type]
        spread(witnesses, found)
        witnesses[NODES[7]].fragments.append(strange)
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == []
        assert any("is not the same on its nodes" in problem for problem in last.problems)

    play(run)


def test_small_blobs_of_a_coded_pool_are_judged_as_its_copies(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        save = await coded_save(lost, 10)
        spread(witnesses, fragments(save, ordinal=0, blob_count=2))
        small = replace(witnessed(save, BlobId(random_id()), 0, 1, 2), source_size_bytes=10, source_hash="content")
        for name in NODES[:3]:
            witnesses[name].fragments.append(small)
        cluster, _ = await rebuilt(witnesses, tmp_path)
        back, blobs, _ = await blobs_of(cluster)
        assert [blob.code for blob in blobs] == ["4+2", MIRROR]
        assert (back.level, back.degraded) == (Level.L3, False)

    play(run)


def test_a_pool_gets_the_code_that_most_of_its_blobs_are_in(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        for step, code in ((10, "2+1"), (20, "4+2"), (30, "4+2")):
            spread(witnesses, fragments(await coded_save(lost, step), code))
        cluster, _ = await rebuilt(witnesses, tmp_path)
        assert cluster.controller.members.pool(POOL).code == Code(4, 2)
        assert (await blobs_of(cluster, 10))[0].degraded, "it is not in the form that its pool has now"

    play(run)


# Mirrors in another pool


def test_mirrors_in_another_pool_come_back_as_mirrors_and_their_pool_too(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        for step in (10, 20, 30, 40):
            save = await coded_save(lost, step)
            spread(witnesses, fragments(save))
            if step == 40:
                spread(witnesses, fragments(save, MIRROR, pool=SPARE), first=6)
        cluster, _ = await rebuilt(witnesses, tmp_path)
        save, [blob], [mirror] = await blobs_of(cluster, 40)
        assert (save.pool, blob.code, mirror.code) == (POOL, "4+2", MIRROR)
        assert (mirror.ordinal, mirror.size_bytes, mirror.hash) == (blob.ordinal, blob.size_bytes, blob.hash)
        assert [holder.node_id for holder in mirror.holders] == list(NODES[6:])
        spare = cluster.controller.members.pool(SPARE)
        assert (spare.level, spare.mirrors) == (Level.L2, 2)
        deep = cluster.controller.members.pool(POOL)
        assert (deep.mirror_pool, deep.mirror_ratio) == (SPARE, 0.25)

    play(run)


def test_a_mirror_brings_back_what_has_too_few_fragments_of_its_own(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        short, gone, whole = [await coded_save(lost, step) for step in (10, 20, 30)]
        spread(witnesses, fragments(short, indexes=(0, 1)))
        for save in (short, gone):
            spread(witnesses, fragments(save, MIRROR, pool=SPARE), first=6)
        spread(witnesses, fragments(whole))
        cluster, _ = await rebuilt(witnesses, tmp_path)
        save, [blob], [mirror] = await blobs_of(cluster, 10)
        assert (blob.code, len(blob.holders), mirror.code) == ("4+2", 2, MIRROR)
        assert (save.state, save.level, save.degraded) == (SaveState.COMMITTED, Level.L1, True)
        # Of the other nothing else is left: the mirror takes its place.
        save, [blob], mirrors = await blobs_of(cluster, 20)
        assert (save.pool, blob.code, mirrors, save.degraded) == (POOL, MIRROR, (), True)

    play(run)


# Blobs that were stored in another form


@pytest.mark.parametrize(
    ("old_left", "new_left", "kept"),
    [
        (range(6), range(6), "new"),  # as good: the newer
        (range(6), range(4), "old"),  # it was not done yet
        (range(5), range(6), "new"),
    ],
)
def test_of_two_forms_of_a_blob_the_better_stored_is_kept_and_else_the_newer(
    tmp_path: Path, old_left: range, new_left: range, kept: str
) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        clear(witnesses)
        save = await coded_save(lost, 10)
        # As their ids sort, the old one would win.
        old = fragments(save, "4+2", old_left, blob_id="f" * 32)
        new = fragments(save, "4+2", new_left, blob_id="0" * 32, seconds_later=60)
        spread(witnesses, old)
        spread(witnesses, new)
        cluster, _ = await rebuilt(witnesses, tmp_path)
        _, [blob], _ = await blobs_of(cluster)
        assert blob.id == {"old": "f", "new": "0"}[kept] * 32

    play(run)


async def snapshot_of(cluster: Cluster, witnesses: FakeWitnesses, folder: Path) -> None:
    cluster.beat()
    await Snapshots(cluster.records, cluster.controller.members, witnesses, cluster.clock, folder).pass_once()


async def in_a_copy(lost: Cluster, witnesses: FakeWitnesses, folder: Path) -> tuple[Save, Blob]:
    """A checkpoint of one blob, with a copy of the catalog that knows it; its fragments are on no node."""
    await lost.controller.pools.create(Pool(POOL, Level.L3, data_fragments=4, parity_fragments=2), request_id="deep")
    save = await lost.save(10)
    [shard] = await lost.shards(save)
    await snapshot_of(lost, witnesses, folder)
    clear(witnesses)
    return save, shard.blobs[0]


def test_a_form_that_was_made_since_the_copy_takes_the_place_of_the_one_it_knows(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save, old = await in_a_copy(lost, witnesses, tmp_path)
        new = {
            index: replace(fragment, source_size_bytes=old.size_bytes, pool=save.pool, save_pool="")
            for index, fragment in fragments(save, content=old.hash).items()
        }
        spread(witnesses, new)
        other = replace(new[0], blob_id=BlobId(random_id()), source_hash="of something else")
        witnesses[NODES[7]].fragments.append(other)
        cluster, last = await rebuilt(witnesses, tmp_path)
        _, [blob], mirrors = await blobs_of(cluster)
        assert (blob.id, blob.code, len(blob.holders)) == (new[0].blob_id, "4+2", 6)
        assert (mirrors, last.problems) == ((), ())

    play(run)


def test_a_mirror_that_was_made_since_the_copy_is_on_record_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save, blob = await in_a_copy(lost, witnesses, tmp_path)
        mirror = {
            number: replace(fragment, source_size_bytes=blob.size_bytes, pool=SPARE, save_pool=save.pool)
            for number, fragment in fragments(save, MIRROR, content=blob.hash).items()
        }
        spread(witnesses, mirror)
        cluster, last = await rebuilt(witnesses, tmp_path)
        _, [kept], [made] = await blobs_of(cluster)
        assert (kept.id, kept.holders) == (blob.id, ())
        assert (made.id, len(made.holders)) == (mirror[0].blob_id, 2)
        assert last.problems == ('pool "spare" is made anew at L2: its settings were lost, set them again',)

        await witnesses.meet(cluster)
        await snapshot_of(cluster, witnesses, tmp_path)
        clear(witnesses)
        copy = witnessed(save, blob.id, blob_hash=blob.hash)
        witnesses[NODES[0]].fragments.append(replace(copy, source_size_bytes=blob.size_bytes, source_hash=blob.hash))
        again, _ = await rebuilt(witnesses, tmp_path)
        _, [kept], mirrors = await blobs_of(again)
        assert ([holder.node_id for holder in kept.holders], mirrors) == ([NodeId(NODES[0])], ())

    play(run)
