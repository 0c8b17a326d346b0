"""The schedules of rules that are about fragments of a code, each as it would break the rule."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sdrs_core.codes import Code
from sdrs_core.erasure import Codec, codec
from sdrs_core.errors import SdrsError, UnavailableError
from sdrs_core.ids import NodeId
from sdrs_core.levels import Level
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control import keys
from sdrs_storaged.rpc import striping
from tests.simulation.ledger import SHARDS
from tests.simulation.stage import JOB, Stage, coded, holder_of, perform
from tests.simulation.standings import survives_any
from tests.simulation.story import until

# P2: names are never used again


def test_a_wiped_node_under_its_old_name_counts_for_nothing() -> None:
    """P2: the machine is lost; another one comes under its name, and what the first one held is made anew."""

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        lost = holder_of(stage.coded_blob(save), 0).node_id
        stage.world.wreck_node(lost)
        stage.world.return_node(lost, is_wiped=True)
        await stage.until_full()
        assert not stage.world.platters[lost].fragments
        await stage.remove(lost)
        assert lost not in stage.world.checks.holders_by_name(save)
        stage.world.checks.wrecked.discard(lost)
        await until(lambda: lost in stage.world.checks.nodes, "the other one joins, now that the name is free")
        await stage.check_restored(1)

    outcome = perform(script, coded(Code(2, 1), 4))
    assert any("belongs to another node" in line for line in outcome.trace)


def test_an_empty_disk_in_the_place_of_a_full_one_counts_for_nothing() -> None:
    """P2: the node is the same, the disk is not: what it held is made anew, and recorded where it is then."""

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        holder = holder_of(stage.coded_blob(save), 1)
        platter = stage.world.platters[holder.node_id]
        stage.world.nodes[holder.node_id].process.kill()
        stage.world.checks.destroyed |= platter.disks.keys()
        platter.disks = {stage.world.new_disk_id(): {}}
        stage.world.start_node(holder.node_id)
        await stage.until_full()
        held_on = {holder.disk_id for blob in stage.blobs(save) for holder in blob.holders}
        assert held_on <= {disk_id for platter in stage.world.platters.values() for disk_id in platter.disks}
        await stage.check_restored(1)

    perform(script, coded(Code(2, 1), 3))


def test_fragments_of_two_codes_never_mix() -> None:
    """P2: a node sleeps through the change of its pool's code, and wakes up with fragments of the old one."""

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        before = stage.coded_blob(save)
        sleeper = holder_of(before, 3).node_id
        stage.world.nodes[sleeper].process.pause()
        await stage.use_code(Code(2, 1))
        await until(lambda: stage.coded_blob(save).code == "2+1", "the blob is stored in the new code")
        assert stage.coded_blob(save).id != before.id
        stage.world.nodes[sleeper].process.resume()
        await stage.check_restored(1)

        def old() -> list[NodeId]:
            platters = stage.world.platters.values()
            return [p.node_id for p in platters for held in p.fragments.values() if held.stored.code == "4+2"]

        assert sleeper in old()
        await until(lambda: not old(), "what is left of the old code is collected")
        await stage.until_full()
        await stage.check_restored(1)

    perform(script, coded(Code(4, 2), 7))


# P4: every change compares


def test_repair_does_not_bring_back_what_is_taken_off_the_record_meanwhile() -> None:
    """P4: a fragment was made and is about to be recorded; just before that another one is found rotten."""

    async def script(stage: Stage) -> None:
        save = await stage.save(1)
        blob = stage.coded_blob(save)
        gone, rotten = holder_of(blob, 0), holder_of(blob, 1)
        platter = stage.world.platters[rotten.node_id]
        for held in platter.find(blob.id, 1):
            platter.put(held.rotten())

        is_reported = asyncio.Event()

        async def report() -> None:
            named = {"job": JOB, "step": 1, "save_id": save.save_id, "rank": 0, "blob_id": blob.id}
            await stage.ask("report_damage", pb.ReportDamageRequest, node_id=rotten.node_id, **named)
            assert rotten not in stage.coded_blob(save).holders
            is_reported.set()

        stage.at_next(SHARDS, before=report)
        stage.world.nodes[gone.node_id].process.kill()
        await until(is_reported.is_set, "the rotten one is off the record")
        await stage.until_full()
        await stage.check_restored(1)

    perform(script, coded(Code(2, 2), 6))


def test_the_totals_follow_a_change_whose_answer_was_lost() -> None:
    """That a checkpoint is mirrored is recorded, and nobody hears of it; the next change of the record finds it so."""

    async def script(stage: Stage) -> None:
        is_lost = asyncio.Event()

        async def lose() -> None:
            is_lost.set()
            raise UnavailableError("the answer was lost")

        stage.at_next(keys.SAVES, after=lose, holds=lambda: any(save.mirror_pool for save in stage.committed()))
        save = await stage.save(1)
        await is_lost.wait()
        # Before the collector has settled the doubt, which it does every so often.
        await stage.ask("hold_checkpoint", pb.HoldCheckpointRequest, job=JOB, step=1)
        assert stage.leader.controller
        tally = stage.leader.controller.tally
        assert (tally.mirrored_saves[save.pool], tally.saves_by_pool[save.pool]) == (1, 1)
        assert tally.mirrored_bytes[save.pool] == save.size_bytes

    perform(script, coded(Code(2, 1), 5, mirror_ratio=0.3))


# P9: parity is checked too


class _FlippingCodec:
    """A bit of the first parity block flips before its checksum is taken."""

    def __init__(self, production: Codec) -> None:
        self._production = production

    def encode(self, data: Sequence[Any], parity: Sequence[memoryview]) -> None:
        self._production.encode(data, parity)
        parity[0][0] ^= 1


def test_wrong_parity_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: its own checksums are right. Readers and repair find out by the source's, a deep scrub by computing it."""
    monkeypatch.setattr(striping, "codec", lambda k, m: _FlippingCodec(codec(k, m)))

    async def script(stage: Stage) -> None:
        stage.world.checks.are_fragments_true = False
        save = await stage.save(1)
        assert "fragment 2" in stage.world.checks.why_untrue()
        lost = holder_of(stage.coded_blob(save), 0).node_id
        stage.world.nodes[lost].process.kill()
        for _ in range(8):
            await stage.check_restored(1)
        await until(lambda: len(stage.coded_blob(save).holders) == 5, "what is lost is made anew")
        made = stage.coded_blob(save).holders[-1]
        assert made.fragment_index == 0
        [held] = stage.world.platters[made.node_id].find(stage.coded_blob(save).id, 0)
        assert stage.world.checks.is_true(held)
        await stage.until_full()  # of the other blobs too: a scrub proves parity by the data that it finds
        await stage.operator.scrub()
        await until(lambda: not stage.world.checks.why_untrue(), "the wrong parity is found and made anew")
        await stage.until_full()

    perform(script, coded(Code(2, 2), 6))


def test_wrong_parity_is_an_error_where_it_would_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9, I5: rather none than wrong bytes."""
    monkeypatch.setattr(striping, "codec", lambda k, m: _FlippingCodec(codec(k, m)))

    async def script(stage: Stage) -> None:
        stage.world.checks.are_fragments_true = False
        save = await stage.save(1)
        lost = holder_of(stage.coded_blob(save), 0).node_id
        stage.world.nodes[lost].process.kill()
        for _ in range(4):
            with pytest.raises(SdrsError):
                await stage.check_restored(1)
        await asyncio.sleep(10.0)
        blob = stage.coded_blob(save)
        made = [p.node_id for p in stage.world.platters.values() if p.find(blob.id, 0)]
        assert made == [lost]
        stage.world.start_node(lost)
        await asyncio.sleep(5.0)
        await stage.check_restored(1)

    perform(script, coded(Code(2, 1), 5))


# P10: fewer domains than fragments


def test_with_two_of_six_domains_lost_saves_go_on_and_are_spread_again_later() -> None:
    """P10: 2+2+1+1 fragments in four domains; any one of them may be lost, and it is recorded as degraded."""

    async def script(stage: Stage) -> None:
        away = stage.world.node_names[:2]
        for node_id in away:
            stage.world.nodes[node_id].process.kill()
        save = await stage.save(1)
        domains, blob = stage.world.checks.domains(), stage.coded_blob(save)
        crowd = Counter(domains[holder.node_id] for holder in blob.holders)
        assert sorted(crowd.values()) == [1, 1, 2, 2]
        assert survives_any(blob, blob.holders, domains)
        assert (save.level, save.degraded) == (Level.L3, True)
        for node_id in away:
            stage.world.start_node(node_id)
        await stage.until_full()
        crowd = Counter(domains[holder.node_id] for holder in stage.coded_blob(save).holders)
        assert set(crowd.values()) == {1}
        assert not stage.record(save).degraded

    perform(script, coded(Code(4, 2), 6))


def test_a_domain_that_may_not_be_lost_is_no_place_for_more() -> None:
    """P10: 4+2 needs three domains at least. With two there is no place that would be safe, and no save."""

    async def script(stage: Stage) -> None:
        for node_id in stage.world.node_names[:4]:
            stage.world.nodes[node_id].process.kill()
        with pytest.raises(SdrsError):
            await stage.save(1)
        assert not stage.committed()
        for node_id in stage.world.node_names[:4]:
            stage.world.start_node(node_id)
        await asyncio.sleep(5.0)
        await stage.save(2)

    perform(script, coded(Code(4, 2), 6))
