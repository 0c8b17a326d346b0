"""The schedules of rules about who and what leaves: nodes (P7) and fragments (P14)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sdrs_core.checkpoints import Blob
from sdrs_core.codes import Code
from sdrs_core.errors import RefusedError
from sdrs_core.ids import BlobId, NodeId, SaveId, random_id
from sdrs_core.levels import Level
from sdrs_proto import convert
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control import keys
from tests.simulation.ledger import SHARDS
from tests.simulation.people import POOL
from tests.simulation.stage import Stage, coded, holder_of, perform
from tests.simulation.story import until

# P7: nodes that leave


def test_a_receipt_that_names_a_node_which_is_removed_just_before_it_is_stored_does_not_count() -> None:
    """P7: it was checked while the node was a member; then that is drained and removed."""

    async def script(stage: Stage) -> None:
        saving = stage.begin_saving(stage.rank(), 1)
        _, request = await stage.until_asked("register_receipts")
        named = {holder.node_id for blob in request.receipts[0].shard.blobs for holder in blob.holders}
        leaving = NodeId(min(named - {request.node_id}))

        async def leave() -> None:
            await stage.drain(leaving)
            await stage.remove(leaving)
            assert leaving not in stage.world.checks.nodes
            stage.world.retire_node(leaving)

        stage.at_next(SHARDS, before=leave)
        save = await saving
        assert leaving not in stage.world.node_names
        assert leaving not in stage.world.checks.holders_by_name(save)
        await stage.check_restored(1)

    perform(script, coded(Code(2, 1), 5))


def test_a_node_with_shards_of_a_save_under_way_is_not_removed() -> None:
    """P7: one rank is in and names it; the other one comes later, and the commit names only nodes that are there."""

    async def script(stage: Stage) -> None:
        first = stage.begin_saving(stage.rank(0, world_size=2), 1)
        await until(lambda: any(stage.world.checks.shards.values()), "the first rank is in")
        [(_, shards)] = stage.world.checks.shards.items()
        leaving = min(holder.node_id for holder in shards[0].blobs[0].holders)
        await stage.drain(leaving)
        with pytest.raises(RefusedError, match="saves under way"):
            await stage.remove(leaving)
        save = await stage.begin_saving(stage.rank(1, world_size=2), 1)
        assert (await first).save_id == save.save_id
        await until(lambda: not stage.world.checks.on_record(leaving), "what it holds has moved")
        await stage.remove(leaving)

    perform(script, coded(Code(2, 1), 5))


def test_a_drain_goes_on_when_its_controller_dies() -> None:
    """P7: the groups leave and the layout rises; the data moves; the layout rises again, all is looked at once more,
    and only then the node goes.
    """

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        leaving = holder_of(stage.coded_blob(save), 0).node_id
        layouts = [stage.layout()]
        leader = stage.leader

        async def die() -> None:
            leader.process.kill()

        stage.at_next(keys.NODES, after=die, holds=lambda: stage.world.checks.nodes[leaving].draining)
        await stage.drain(leaving)
        assert not leader.process.is_alive
        assert not any(leaving in group.members for group in stage.groups().values())
        layouts.append(stage.layout())
        await until(lambda: not stage.world.checks.on_record(leaving), "what it holds has moved")
        await stage.until_full()
        await stage.remove(leaving)
        layouts.append(stage.layout())
        assert layouts == sorted(set(layouts))
        stage.world.retire_node(leaving)
        await stage.check_restored(1)
        await stage.save(2)

    perform(script, coded(Code(2, 1), 5))


def test_a_fragment_that_is_made_on_a_node_which_is_removed_meanwhile_is_not_recorded() -> None:
    """P7: the order was given before; the answer comes when the node is no more."""

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        lost = holder_of(stage.coded_blob(save), 0).node_id
        stage.world.nodes[lost].process.kill()
        target, _ = await stage.until_asked("pull_fragment")
        made_on, leader = NodeId(target), stage.leader.process.name
        stage.world.network.cut(target, leader)
        await stage.drain(made_on)
        await stage.remove(made_on)
        stage.world.network.join(target, leader, is_kept=True)
        await until(lambda: bool(stage.world.platters[made_on].fragments), "it was made all the same")
        stage.world.retire_node(made_on)
        await stage.until_full()
        assert made_on not in stage.world.checks.holders_by_name(save)
        await stage.check_restored(1)

    perform(script, coded(Code(2, 1), 6))


def test_a_lost_node_is_removed_though_a_mirror_on_it_is_on_its_way_out() -> None:
    """P7, P14: the mirror is not wanted any more, and its last holder cannot be told to drop it."""

    async def script(stage: Stage) -> None:
        old = await stage.save(1)
        await until(lambda: bool(stage.record(old).mirror_pool), "the checkpoint is mirrored")
        [shard] = stage.world.checks.shards[old.save_id].values()
        lost = shard.mirrors[0].holders[0].node_id
        stage.world.wreck_node(lost)
        await stage.save(2)
        await until(
            lambda: any(
                holder.dropping and holder.node_id == lost
                for shard in stage.world.checks.shards[old.save_id].values()
                for mirror in shard.mirrors
                for holder in mirror.holders
            ),
            "its mirror is let go",
        )
        await stage.until_full()
        await stage.remove(lost)
        [shard] = stage.world.checks.shards[old.save_id].values()
        await until(lambda: not stage.world.checks.on_record(lost), "nothing names it")

    perform(script, coded(Code(2, 1), 6, mirror_ratio=0.3))


def test_a_node_that_is_removed_while_it_is_scanned_for_orphans_is_left_alone() -> None:
    """P7: what it has was found to be nobody's; when the order to drop it is made out, the node is no more."""

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        holder = holder_of(stage.coded_blob(save), 0)
        [held] = stage.world.platters[holder.node_id].find(stage.coded_blob(save).id, 0)
        leaving = next(name for name in stage.world.node_names if not stage.world.platters[name].fragments)
        [disk_id] = stage.world.platters[leaving].disks
        orphan = replace(held.stored, blob_id=BlobId(random_id()), save_id=SaveId(random_id()), disk_id=disk_id)
        stage.world.platters[leaving].put(replace(held, stored=replace(orphan, created_unix_seconds=0.0)))
        production, looks = stage.store._range, 0

        async def look(request: tuple[str, str, int]) -> Any:
            nonlocal looks
            is_meant = request[0] == keys.shards(orphan.save_id)
            looks += is_meant
            if is_meant and looks == 3:
                # Once in each of two scans, and once more just before it would go.
                await stage.drain(leaving)
                await stage.remove(leaving)
                stage.world.retire_node(leaving)
            return await production(request)

        stage.store._range = look  # type: ignore[method-assign]
        await until(lambda: leaving not in stage.world.node_names, "the node is removed")
        await asyncio.sleep(5.0)

    perform(script, coded(Code(2, 1), 5))


def test_a_save_outlives_the_change_of_its_pools_level() -> None:
    """P7: the receipt names as many copies as the pool asked for when it was sealed; then all members must have one."""

    async def script(stage: Stage) -> None:
        async def change() -> None:
            await stage.ask("update_pool", pb.UpdatePoolRequest, name=POOL, level=convert.level_to(Level.L2), mirrors=3)

        saving = stage.begin_saving(stage.rank(), 3)
        await stage.until_asked("register_receipts")
        stage.at_next(SHARDS, before=change)
        save = await saving
        assert save.level is Level.L2
        assert all(len(blob.holders) == 3 for blob in stage.blobs(save))
        await stage.check_restored(3)

    perform(script, coded(Code(2, 1), 3))


# P14: drops


async def _held_twice(stage: Stage) -> Blob:
    """A node was away for so long that its fragment was made elsewhere, and is about to return."""
    save = await stage.save(1)
    blob = stage.coded_blob(save)
    away = holder_of(blob, 0).node_id
    stage.world.nodes[away].process.kill()
    await until(
        lambda: sum(holder.fragment_index == 0 for holder in stage.coded_blob(save).holders) == 2,
        "its fragment is made elsewhere",
    )
    stage.world.start_node(away)
    return blob


def _is_dropping(stage: Stage) -> bool:
    shards = [shard for shards in stage.world.checks.shards.values() for shard in shards.values()]
    return any(holder.dropping for shard in shards for blob in shard.blobs for holder in blob.holders)


def test_a_drop_that_was_marked_is_finished_by_the_next_controller() -> None:
    """P14: the mark is on record, the order was never given: the controller dies in between."""

    async def script(stage: Stage) -> None:
        blob = await _held_twice(stage)
        leader = stage.leader

        async def die() -> None:
            leader.process.kill()

        stage.at_next(SHARDS, after=die, holds=lambda: _is_dropping(stage))
        await until(lambda: not leader.process.is_alive, "the controller dies with the mark on record")
        assert _is_dropping(stage)
        await until(lambda: not _is_dropping(stage), "the next one finishes it")
        [save] = stage.committed()
        after = stage.coded_blob(save)
        assert (after.id, len(after.holders)) == (blob.id, 3)
        holding = [p.node_id for p in stage.world.platters.values() if p.find(blob.id, 0)]
        assert holding == [holder_of(after, 0).node_id]
        await stage.check_restored(1)

    perform(script, coded(Code(2, 1), 4))


def test_a_late_drop_does_not_reach_a_fragment_that_was_put_there_again() -> None:
    """P14: the order of a deposed controller comes when the node was dropped from by the next one, and added again."""

    async def script(stage: Stage) -> None:
        blob = await _held_twice(stage)
        old = stage.leader
        address, _ = await stage.until_asked("drop_fragments", where=lambda _, request: _names(request, blob))
        node_id = NodeId(address)
        stage.world.network.cut(old.process.name, address)
        old.process.pause()
        await until(lambda: any(one is not old for one in stage.world.leaders), "the other controller leads")
        await until(lambda: not stage.world.platters[node_id].find(blob.id, 0), "it is dropped by its order")
        await until(lambda: not _is_dropping(stage), "and off the record")
        [save] = stage.committed()
        stage.world.nodes[holder_of(stage.coded_blob(save), 0).node_id].process.kill()
        await until(
            lambda: any((h.node_id, h.fragment_index) == (node_id, 0) for h in stage.coded_blob(save).holders),
            "it is added again, since nobody else is left",
        )
        stage.world.network.join(old.process.name, address, is_kept=True)
        await asyncio.sleep(1.0)
        assert stage.world.platters[node_id].find(blob.id, 0)
        old.process.resume()
        await asyncio.sleep(5.0)
        assert stage.world.platters[node_id].find(blob.id, 0)
        await stage.check_restored(1)

    outcome = perform(script, coded(Code(2, 1), 4))
    assert any("drop_fragments: STALE_TERM" in line for line in outcome.trace)


def _names(request: Any, blob: Blob) -> bool:
    return any(name.blob_id == blob.id for name in request.fragments)
