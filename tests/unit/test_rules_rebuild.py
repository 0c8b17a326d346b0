"""A catalog that was lost comes back from the nodes (P19): from copies of it, from fragments, from both."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.cluster import DEFAULT_POOL, Authority, Retention
from sdrs_core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    PermissionDeniedError,
    RefusedError,
    UnavailableError,
)
from sdrs_core.failover import first_epoch
from sdrs_core.ids import BlobId, ClusterId, NodeId, SaveId, random_id
from sdrs_core.levels import Level
from sdrs_core.snapshots import SnapshotId
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Put
from sdrs_storaged.control.snapshots import Snapshots
from tests.support.catalogs import (
    Cluster,
    FakeWitnesses,
    cluster_on,
    contents,
    empty_on,
    exported,
    fill,
    rebuild,
    rebuilt,
    refusal,
    unpacked,
    witnessed,
)
from tests.support.control import GRACE_SECONDS, JOB, attempt, node

NODES = ("node-1", "node-2", "node-3")


def play(test: Callable[[Cluster, FakeWitnesses], Awaitable[None]]) -> None:
    async def run() -> None:
        witnesses = FakeWitnesses()
        lost = await cluster_on(node_ids=NODES)
        await witnesses.meet(lost)
        await test(lost, witnesses)

    asyncio.run(run())


async def take_snapshot(cluster: Cluster, witnesses: FakeWitnesses, folder: Path) -> list[str]:
    cluster.beat()
    snapshots = Snapshots(cluster.records, cluster.controller.members, witnesses, cluster.clock, folder)
    return [keeper.id for keeper in await snapshots.pass_once()]


async def unknown_save(cluster: Cluster, step: int, *, world_size: int = 1, number: int = 1) -> Save:
    """The record that a save would have had; only fragments tell of it."""
    save = await cluster.save(1000 + step, by=attempt(number - 1))
    return replace(save, save_id=SaveId(random_id()), step=step, world_size=world_size)


# From fragments alone


def test_checkpoints_come_back_from_fragments_alone(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        await lost.create_pool("fast")
        await lost.save(10, world_size=3)
        await lost.save(20, by=attempt(1))
        await lost.save(20, by=attempt(2), pool="fast")
        before = {step: await lost.controller.catalog.get(JOB, step) for step in await lost.steps()}
        shards = {step: await lost.shards(stored.value) for step, stored in before.items()}
        await witnesses.meet(lost)
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == [20, 10]
        for step, stored in before.items():
            after = (await cluster.controller.catalog.get(JOB, step)).value
            assert await cluster.shards(after) == shards[step]
            same = ("save_id", "job", "step", "attempt", "world_size", "pool", "kind", "state", "level", "size_bytes")
            assert [getattr(after, name) for name in same] == [getattr(stored.value, name) for name in same]
        assert last.checkpoint_count == 3  # one is set aside by a later attempt
        assert {pool.name: pool.level for pool in cluster.controller.members.pools()} == {
            "default": Level.L1,
            "fast": Level.L1,
        }
        assert (await cluster.save(30, by=attempt(5))).attempt == 4  # after all that were seen

    play(run)


def test_the_rebuilt_cluster_is_followed_by_nodes_that_have_seen_a_later_revision(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        old = lost.controller.members.cluster
        for witness in witnesses.by_address.values():
            witness.authority = Authority(7, 90, 1_000_000)
        cluster, _ = await rebuilt(witnesses, tmp_path)
        new = cluster.controller.members.cluster
        assert (new.id, new.incarnation) == (old.id, 8)
        assert new.secret not in ("", old.secret)
        members = cluster.controller.members
        await members.register(node(NodeId("node-1")), "key of node-1", seen=Authority(7, 0, 1_000_000))
        assert not cluster.records.frozen_because
        with pytest.raises(PermissionDeniedError):  # the first key that came is the node's own
            await members.register(node(NodeId("node-1")), "another key", seen=Authority(7, 0, 1))

    play(run)


def test_copies_on_several_nodes_are_all_holders_and_make_the_level(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = replace(await unknown_save(lost, 10), pool="mirrored")
        once, twice = witnessed(save, BlobId(random_id())), witnessed(replace(save, step=20), BlobId(random_id()))
        twice = replace(twice, save_id=SaveId(random_id()), pool=DEFAULT_POOL)
        witnesses["node-1"].fragments = [once, twice]
        witnesses["node-2"].fragments = [once]
        cluster, _ = await rebuilt(witnesses, tmp_path)
        mirrored = (await cluster.controller.catalog.get(JOB, 10)).value
        [shard] = await cluster.shards(mirrored)
        assert [holder.node_id for holder in shard.blobs[0].holders] == ["node-1", "node-2"]
        assert (mirrored.level, (await cluster.controller.catalog.get(JOB, 20)).value.level) == (Level.L2, Level.L1)
        pool = cluster.controller.members.pool("mirrored")
        assert (pool.level, pool.mirrors) == (Level.L2, 2)

    play(run)


@pytest.mark.parametrize("missing", ["a rank", "a blob", "agreement", "the same blob", "the same save"])
def test_a_save_that_is_not_whole_is_named_and_its_fragments_are_kept_for_the_grace_period(
    tmp_path: Path, missing: str
) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await unknown_save(lost, 10, world_size=2)
        first = witnessed(save, BlobId(random_id()), rank=0)
        second = witnessed(save, BlobId(random_id()), rank=1)
        other_copy = first
        if missing == "a rank":
            second = first
        elif missing == "a blob":
            second = replace(second, blob_count=2)
        elif missing == "agreement":
            other_copy = replace(first, hash="other")
        elif missing == "the same blob":
            other_copy = replace(first, blob_id=BlobId(random_id()), hash="other")
        else:
            second = replace(second, step=11)
        witnesses["node-1"].fragments = [first, second]
        witnesses["node-2"].fragments = [other_copy]
        witnesses["node-3"].fragments = []
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == []
        assert [problem for problem in last.problems if f"{JOB} step 10 of attempt 1 is incomplete" in problem]
        [trashed] = await cluster.trash()
        assert (trashed.save_id, trashed.state) == (save.save_id, SaveState.ABORTED)
        # They are older than the grace period, but nobody's only since the rebuild (I7).
        for node_id in ("node-1", "node-2"):
            for fragment in witnesses[node_id].fragments:
                cluster.nodes.put(NodeId(node_id), fragment.blob_id, fragment.save_id, 0)
        held = {node_id: cluster.nodes.names(NodeId(node_id)) for node_id in ("node-1", "node-2")}
        await cluster.collect(times=3)
        assert cluster.nodes.names(NodeId("node-1")) == held["node-1"]
        await cluster.pass_time(GRACE_SECONDS + 1)
        await cluster.collect(times=3)
        assert await cluster.trash() == []
        assert cluster.nodes.names(NodeId("node-1")) == set()

    play(run)


def test_a_rank_that_sent_the_same_bytes_twice_is_whole(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await unknown_save(lost, 10)
        first, again = (witnessed(save, BlobId(random_id())) for _ in range(2))
        witnesses["node-1"].fragments = [first, again]
        witnesses["node-2"].fragments = [again]
        cluster, _ = await rebuilt(witnesses, tmp_path)
        [shard] = await cluster.shards((await cluster.controller.catalog.get(JOB, 10)).value)
        assert [blob.id for blob in shard.blobs] == [again.blob_id]

    play(run)


@pytest.mark.parametrize("met_first", ["earlier", "later"])
def test_of_two_saves_of_one_step_and_attempt_the_later_is_the_checkpoint(tmp_path: Path, met_first: str) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await unknown_save(lost, 10)
        ids = sorted((random_id(), random_id()), reverse=met_first == "later")  # they are looked at in this order
        earlier, later = (witnessed(replace(save, save_id=SaveId(i)), BlobId(random_id())) for i in ids)
        later = replace(later, created_unix_ms=earlier.created_unix_ms + 1000)
        witnesses["node-1"].fragments = [earlier, later]
        cluster, _ = await rebuilt(witnesses, tmp_path)
        assert (await cluster.controller.catalog.get(JOB, 10)).value.save_id == later.save_id
        assert [save.save_id for save in await cluster.trash()] == [earlier.save_id]

    play(run)


@pytest.mark.parametrize("untold", [{"world_size": 0, "blob_count": 0, "kind": "", "pool": ""}, {"world_size": 0}])
def test_what_an_earlier_version_wrote_is_kept_for_an_operator_to_decide(
    tmp_path: Path, untold: dict[str, Any]
) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await unknown_save(lost, 10)
        old = replace(witnessed(save, BlobId(random_id())), **untold)
        witnesses["node-1"].fragments = [old]
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == []
        assert await cluster.states() == [(10, 1, SaveState.SET_ASIDE)]
        assert any("earlier version" in problem for problem in last.problems)
        with pytest.raises(RefusedError, match="held"):
            await cluster.controller.catalog.delete(JOB, 10, why="by request")

    play(run)


# From a copy of the catalog


def test_a_snapshot_has_no_secrets_and_goes_to_nodes_of_different_domains(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = await cluster_on(node_ids=("a1", "a2", "b1", "c1", "d1"))
        witnesses = FakeWitnesses()
        await witnesses.meet(cluster)
        members = cluster.controller.members
        for name in cluster.node_ids:
            moved = replace(node(name), domain=name[0])
            await members.register(moved, f"key of {name}", seen=Authority())
        assert await take_snapshot(cluster, witnesses, tmp_path) == ["a1", "b1", "c1"]
        [(snapshot, content)] = witnesses["a1"].snapshots.items()
        text = unpacked(content)
        secrets = [members.cluster.secret] + [(await members.order(name)).secret for name in cluster.node_ids]
        assert not any(secret in text for secret in secrets)
        assert members.cluster.id in text
        assert snapshot.revision <= await cluster.records.store.revision()

    asyncio.run(run())


def test_a_snapshot_is_sent_when_something_changed_or_a_keeper_is_new(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        members = lost.controller.members
        snapshots = Snapshots(lost.records, members, witnesses, lost.clock, tmp_path)
        witnesses.broken.add("node-2")
        assert [keeper.id for keeper in await snapshots.pass_once()] == ["node-1", "node-3"]
        assert len(await snapshots.pass_once()) == 2  # node-2 is still without one
        witnesses.broken.clear()
        assert len(await snapshots.pass_once()) == 3
        assert await snapshots.pass_once() == []
        await lost.save(10)
        assert len(await snapshots.pass_once()) == 3
        assert await snapshots.pass_once() == []
        lost.records.frozen_because = "of the past"
        await lost.store.txn([], [Put("x", b"1")])
        assert await snapshots.pass_once() == []

    play(run)


def test_what_only_the_catalog_knows_comes_back_from_its_copy_and_the_rest_from_fragments(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        await fill(lost)
        assert len(await take_snapshot(lost, witnesses, tmp_path)) == 3
        await lost.save(80, by=attempt(2))
        await lost.save(90, by=attempt(3), world_size=2)
        await lost.controller.catalog.hold(JOB, 30, held=True)  # since the copy: lost
        listed = await lost.states()
        trash = {save.save_id for save in await lost.trash()}
        retention = lost.controller.members.pool(DEFAULT_POOL).retention
        scheduled = {key: value for key, value in (await contents(lost.store)).items() if key.startswith(keys.SCHEDULE)}
        await witnesses.meet(lost)
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert [state for state in await cluster.states() if state[0] != 50] == [s for s in listed if s[0] != 50]
        assert (await cluster.controller.catalog.get(JOB, 20)).value.held
        assert {save.save_id for save in await cluster.trash()} == trash
        assert cluster.controller.members.pool(DEFAULT_POOL).retention == retention == Retention(keep_last=5)
        assert last.checkpoint_count == len([state for state in listed if state[2] is not SaveState.PENDING])
        job = await cluster.records.get(keys.job(JOB), Job)
        assert job
        assert job.value.attempt == 4
        rebuilt_records = await contents(cluster.store)
        assert len(scheduled) == 2
        assert scheduled.items() <= rebuilt_records.items()
        groups = cluster.controller.members.groups()
        assert groups
        assert all(group.epoch == first_epoch(2) for group in groups)  # above all that nodes remember (I3)

    play(run)


def test_a_save_that_was_pending_in_the_copy_is_committed_if_it_is_whole_now(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        begun = await lost.begin(10, world_size=2)
        await lost.seal(begun, rank=1)
        other = await lost.begin(20, world_size=2)
        await lost.seal(other, rank=0)
        await take_snapshot(lost, witnesses, tmp_path)
        await lost.seal(await lost.begin(10, rank=0, world_size=2), rank=0)
        await witnesses.meet(lost)
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.states() == [(20, 1, SaveState.PENDING), (10, 1, SaveState.COMMITTED)]
        assert any("step 20 was being saved and is incomplete (1 of 2 ranks)" in problem for problem in last.problems)
        # Its other rank goes on with it, under the new secret.
        again = await cluster.begin(20, rank=1, world_size=2)
        assert again.capability != other.capability
        assert (await cluster.seal(again, rank=1)).value == "committed"

    play(run)


def test_a_checkpoint_whose_fragments_are_gone_is_kept_and_named(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await lost.save(10)
        [shard] = await lost.shards(save)
        await take_snapshot(lost, witnesses, tmp_path)
        await witnesses.meet(lost)
        for witness in witnesses.by_address.values():
            witness.fragments = []
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == [10]
        [after] = await cluster.shards(save)
        assert after.blobs[0].holders == ()
        assert any(f"step 10 is kept, but blob {shard.blobs[0].id}" in problem for problem in last.problems)

    play(run)


def test_holders_on_a_node_that_was_not_asked_stay_since_it_may_return(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await lost.save(10)
        [shard] = await lost.shards(save)
        [holder] = shard.blobs[0].holders
        await take_snapshot(lost, witnesses, tmp_path)
        await witnesses.meet(lost)
        others = [name for name in NODES if name != holder.node_id]
        cluster, last = await rebuilt(witnesses, tmp_path, asking=others, node_ids=others)
        [after] = await cluster.shards(save)
        assert after == shard
        assert cluster.controller.members.node(holder.node_id).state.value == "down"  # readers can be told where it is
        assert any(f"only on {holder.node_id}, which was not asked" in problem for problem in last.problems)

    play(run)


def test_holders_are_what_nodes_hold_now_and_a_copy_that_differs_does_not_count(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await lost.save(10)
        [shard] = await lost.shards(save)
        [holder] = shard.blobs[0].holders
        await take_snapshot(lost, witnesses, tmp_path)
        await witnesses.meet(lost)
        [fragment] = witnesses[holder.node_id].fragments
        copied, wrong = [name for name in NODES if name != holder.node_id]
        witnesses[copied].fragments = [fragment]
        witnesses[wrong].fragments = [replace(fragment, hash="other")]
        witnesses[holder.node_id].fragments = []
        cluster, last = await rebuilt(witnesses, tmp_path)
        [after] = await cluster.shards(save)
        assert [found.node_id for found in after.blobs[0].holders] == [copied]
        assert any(f"node {wrong} has another blob" in problem for problem in last.problems)

    play(run)


@pytest.mark.parametrize("position", [4, 0.5, 0.99])  # 4 is the time in gzip's header, which only the hash covers
def test_a_damaged_copy_of_the_catalog_is_passed_over_for_an_older_one(tmp_path: Path, position: float) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        await lost.save(10)
        await lost.controller.catalog.hold(JOB, 10, held=True)
        await take_snapshot(lost, witnesses, tmp_path)
        await lost.save(20)
        await lost.create_pool("made-since")
        await take_snapshot(lost, witnesses, tmp_path)
        await witnesses.meet(lost)
        for witness in witnesses.by_address.values():
            newest = max(witness.snapshots, key=lambda snapshot: snapshot.age)
            content = bytearray(witness.snapshots[newest])
            content[int(position * len(content)) if position < 1 else int(position)] ^= 0x10
            witness.snapshots[newest] = bytes(content)
        cluster, last = await rebuilt(witnesses, tmp_path)
        assert await cluster.steps() == [20, 10]
        assert (await cluster.controller.catalog.get(JOB, 10)).value.held
        assert [pool.name for pool in cluster.controller.members.pools()] == [DEFAULT_POOL]
        assert sum("cannot be used" in problem for problem in last.problems) == 3

    play(run)


# From a snapshot that an operator has put away


@pytest.mark.parametrize("nodes_have", ["none", "an older", "a newer"])
def test_a_given_snapshot_is_built_on_unless_a_node_has_a_newer_copy(tmp_path: Path, nodes_have: str) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        await lost.save(10)
        if nodes_have == "an older":
            await take_snapshot(lost, witnesses, tmp_path)
        await lost.controller.catalog.hold(JOB, 10, held=True)
        await lost.create_pool("in-the-given")
        given = gzip.compress(await exported(lost))
        await lost.create_pool("made-since")
        if nodes_have == "a newer":
            await take_snapshot(lost, witnesses, tmp_path)
        await lost.save(20)
        await witnesses.meet(lost)
        old = lost.controller.members.cluster
        cluster, last = await rebuilt(witnesses, tmp_path, given=given)
        since = {"made-since"} if nodes_have == "a newer" else set()
        assert {pool.name for pool in cluster.controller.members.pools()} == {DEFAULT_POOL, "in-the-given", *since}
        assert await cluster.steps() == [20, 10]  # the later one by its fragments
        assert (await cluster.controller.catalog.get(JOB, 10)).value.held
        assert last.problems == ()
        new = cluster.controller.members.cluster
        assert (new.id, new.incarnation) == (old.id, old.incarnation + 1)
        assert new.secret not in ("", old.secret)
        assert not cluster.records.frozen_because
        assert (await cluster.save(30, by=attempt(5))).state is SaveState.COMMITTED

    play(run)


@pytest.mark.parametrize("given", ["damaged", "torn", "not packed", "no catalog", "of another cluster"])
def test_a_given_snapshot_that_cannot_be_used_ends_the_rebuild_and_changes_nothing(tmp_path: Path, given: str) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        await lost.save(10)
        await take_snapshot(lost, witnesses, tmp_path)
        file = await exported(lost)
        content = {
            "damaged": gzip.compress(file.replace(b"node-1", b"node-9", 1)),
            "torn": gzip.compress(file)[:-20],
            "not packed": file,
            "no catalog": gzip.compress(b"a letter\n"),
            "of another cluster": gzip.compress(await exported(await cluster_on())),
        }[given]
        cluster = await empty_on()
        before = await contents(cluster.store)
        error = await refusal(cluster, witnesses, tmp_path, given=content)
        assert isinstance(error, RefusedError if given == "of another cluster" else CorruptDataError)
        assert error.message.startswith("the snapshot ")
        assert await contents(cluster.store) == before
        await rebuild(cluster, witnesses, tmp_path)

    play(run)
    assert list(tmp_path.iterdir()) == []


# Refusals


def test_a_rebuild_is_refused_where_it_could_do_harm_and_changes_nothing(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        await lost.save(10)
        await witnesses.meet(lost)
        assert isinstance(await refusal(lost, witnesses, tmp_path), RefusedError)  # it is not empty
        cluster = await empty_on()
        before = await contents(cluster.store)
        witnesses.broken.add("node-2")
        assert isinstance(await refusal(cluster, witnesses, tmp_path), UnavailableError)
        witnesses.broken.clear()
        assert isinstance(await refusal(cluster, witnesses, tmp_path, asking=["x"] * 10_001), InvalidArgumentError)
        witnesses.by_address["twin"] = witnesses["node-1"]
        assert "named twice" in (await refusal(cluster, witnesses, tmp_path)).message
        del witnesses.by_address["twin"]
        witnesses["node-3"].cluster_id = ClusterId("another")
        assert "not of one cluster" in (await refusal(cluster, witnesses, tmp_path)).message
        assert await contents(cluster.store) == before
        await cluster.create_pool("still-works")

    play(run)
    assert list(tmp_path.iterdir()) == []


def test_problems_are_bounded(tmp_path: Path) -> None:
    async def run(lost: Cluster, witnesses: FakeWitnesses) -> None:
        save = await unknown_save(lost, 10, world_size=2)
        witnesses["node-1"].fragments = [
            witnessed(replace(save, save_id=SaveId(random_id()), step=step), BlobId(random_id())) for step in range(300)
        ]
        _, last = await rebuilt(witnesses, tmp_path)
        assert len(last.problems) == 201
        assert last.problems[-1].startswith("and 1")

    play(run)


def test_later_snapshots_are_told_by_history_and_not_by_clocks() -> None:
    older = SnapshotId(ClusterId("c"), 1, 9, 500, 2_000, 1, "")
    newer = SnapshotId(ClusterId("c"), 2, 1, 3, 1_000, 1, "")
    assert max([newer, older], key=lambda snapshot: snapshot.age) is newer
