"""Coded writes on real nodes: who stores which fragment, what a member that fails costs, and what a new primary finds.

The pool is 2+2 over four nodes: what is durable is safe with three fragments in three domains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import pytest

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.cluster import Group, Pool
from sdrs_core.codes import MIRROR, Code
from sdrs_core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    UnavailableError,
)
from sdrs_core.ids import PoolName, random_id
from sdrs_core.levels import Level
from sdrs_proto.v1 import membership_pb2
from sdrs_proto.v1 import storage_pb2 as pb
from tests.support.blob_sender import intent_of
from tests.support.fragments import cut, fragment_intent, joined, payload_of, relay, summary_of
from tests.support.map_teller import group_of
from tests.support.stores import CODING_POINTS, flip_bit, hash_of, payload
from tests.support.told_nodes import IMPATIENT, ToldNodes, told_nodes
from tests.support.waiting import wait_for

CODE = Code(2, 2)
POOL = Pool(PoolName("prod"), Level.L3, data_fragments=2, parity_fragments=2)
ALL = ["n1", "n2", "n3", "n4"]
MIB = BLOCK_BYTES


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToldNodes]:
    with told_nodes(tmp_path_factory.mktemp("coded")) as nodes:
        nodes.teller.pools[POOL.name] = POOL
        yield nodes


def _form(told: ToldNodes, *members: str) -> Group:
    return told.form(*members, pool=POOL.name)


def _check_on_disk(told: ToldNodes, blob_id: str, data: bytes, indexes: list[int] | None = None) -> None:
    """Every fragment is there once, and any two of them bring the blob back."""
    found = told.fragments(blob_id)
    fragments = {index: payload_of(path) for (_, index), path in found.items()}
    assert sorted(index for _, index in found) == ([0, 1, 2, 3] if indexes is None else indexes)
    for index, fragment in fragments.items():
        assert len(fragment) == CODE.fragment_bytes(len(data), index)
    for some in combinations(fragments, CODE.data):
        assert joined(CODE, {index: fragments[index] for index in some}, len(data)) == data


def _receipt(told: ToldNodes, group: Group) -> membership_pb2.Receipt:
    return told.receipts_of(group)[-1]


def _placed(receipt: membership_pb2.Receipt, number: int = 0) -> dict[int, str]:
    blob = receipt.shard.blobs[number]
    assert len(blob.holders) == len({holder.fragment_index for holder in blob.holders}) or blob.code == MIRROR
    return {holder.fragment_index: holder.node_id for holder in blob.holders}


@pytest.mark.parametrize("way", ["stream", "channel"])
@pytest.mark.parametrize("size_bytes", [2 * MIB, 7 * MIB + 77, 8 * MIB])
def test_every_member_has_its_fragment_when_a_blob_is_acknowledged(told: ToldNodes, way: str, size_bytes: int) -> None:
    group = _form(told, *ALL)
    data = payload(size_bytes)
    intent = intent_of(group, len(data))
    primary = told.calls("n1")
    stored = primary.write(intent, data) if way == "channel" else primary.write_over_grpc(intent, data)
    assert (stored.hash, stored.size_bytes) == (hash_of(data), size_bytes)
    _check_on_disk(told, intent.blob_id, data)
    primary.seal(group, [intent], [data])
    (receipt,) = told.receipts_of(group)
    blob = receipt.shard.blobs[0]
    assert (blob.code, blob.hash, blob.size_bytes) == ("2+2", hash_of(data), size_bytes)
    assert {(name, index) for index, name in _placed(receipt).items()} == set(told.fragments(intent.blob_id))
    assert set(_placed(receipt).values()) == set(ALL)
    for holder in blob.holders:
        path = told.fragments(intent.blob_id)[holder.node_id, holder.fragment_index]
        assert holder.fragment_hash == hash_of(payload_of(path))


@pytest.mark.parametrize("way", ["small", "stream", "channel"])
def test_a_blob_smaller_than_a_stripe_is_copied_to_one_member_more_than_may_be_lost(told: ToldNodes, way: str) -> None:
    group = _form(told, *ALL)
    data = payload(5000 if way == "small" else MIB + 77)
    intent = intent_of(group, len(data))
    primary = told.calls("n1")
    _ = primary.write(intent, data) if way == "channel" else primary.write_over_grpc(intent, data)
    found = told.fragments(intent.blob_id)
    assert len(found) == 3
    assert ("n1", 0) in found
    assert {payload_of(path) for path in found.values()} == {data}
    primary.seal(group, [intent], [data])
    blob = _receipt(told, group).shard.blobs[0]
    assert blob.code == MIRROR
    assert {(holder.node_id, holder.fragment_index) for holder in blob.holders} == set(found)


def test_a_member_that_dies_in_mid_blob_costs_only_its_fragment(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(24 * MIB)
    intent = intent_of(group, len(data))
    with told.calls("n1").writing(intent, data) as sender:
        sender.send_blocks(4)
        told.wait_for_writing("n2", intent.blob_id)
        told.daemons["n2"].kill()
        try:
            sender.send_blocks()
            assert sender.finish().hash == hash_of(data)
            (report,) = wait_for(lambda: told.reports_of(group), "the report", 30)
            assert (report.node_id, report.member_id) == ("n1", "n2")
            # The group need not move: what is there is safe.
            told.calls("n1").seal(group, [intent], [data])
            # The next blob has all of its fragments, two of them with one member (P10).
            following = intent_of(group, len(data))
            told.calls("n1").write(following, data)
            told.calls("n1").seal(group, [following], [data])
        finally:
            told.daemons["n2"].start()
    first, second = told.receipts_of(group)
    assert len(_placed(first)) == 3
    assert "n2" not in _placed(first).values()
    assert sorted(_placed(second)) == [0, 1, 2, 3]
    assert sorted(Counter(_placed(second).values()).values()) == [1, 1, 2]
    _check_on_disk(told, following.blob_id, data)


def test_a_member_that_stalls_in_mid_blob_is_waited_for_no_longer_than_told(told: ToldNodes) -> None:
    group = _form(told, IMPATIENT, "n1", "n2", "n3")
    data = payload(48 * MIB)  # more than fits into sockets on their way
    intent = intent_of(group, len(data))
    with told.calls(IMPATIENT).writing(intent, data) as sender:
        sender.send_blocks(4)
        told.wait_for_writing("n2", intent.blob_id)
        told.daemons["n2"].freeze()
        try:
            sender.send_blocks()
            assert sender.finish().hash == hash_of(data)
            (report,) = wait_for(lambda: told.reports_of(group), "the report", 30)
            assert (report.member_id, report.trouble) == ("n2", membership_pb2.MEMBER_TROUBLE_SLOW)
            told.calls(IMPATIENT).seal(group, [intent], [data])
        finally:
            told.daemons["n2"].thaw()
    assert len(_placed(_receipt(told, group))) == 3


def test_too_many_members_that_die_fail_the_blob_and_the_rest_takes_it_once_the_group_has_moved(
    told: ToldNodes,
) -> None:
    group = _form(told, *ALL)
    data = payload(12 * MIB)
    intent = intent_of(group, len(data))
    with told.calls("n1").writing(intent, data) as sender:
        sender.send_blocks(4)
        for name in ("n2", "n3"):
            told.wait_for_writing(name, intent.blob_id)
            told.daemons[name].kill()
        try:
            with pytest.raises(UnavailableError, match="of 4 fragments"):
                sender.send_rest()
            moved = group_of(group.id, 2, "n1", "n4", pool=POOL.name)
            told.teller.tell(moved, without=["n2", "n3"])
            intent.epoch, intent.resent = 2, True
            told.calls("n1").write(intent, data)
            told.calls("n1").seal(moved, [intent], [data])
        finally:
            for name in ("n2", "n3"):
                told.daemons[name].start()
    assert Counter(_placed(_receipt(told, group)).values()) == {"n1": 2, "n4": 2}


def test_a_group_that_moves_in_mid_blob_keeps_what_its_members_have(told: ToldNodes) -> None:
    """P8, P11."""
    group = _form(told, *ALL)
    data = payload(12 * MIB)
    intent = intent_of(group, len(data))
    with told.calls("n1").writing(intent, data) as sender:
        sender.send_blocks(4)
        for name in ALL:
            told.wait_for_writing(name, intent.blob_id)
        moved = told.reform(group, "n2", "n1", "n3")
        with pytest.raises(StaleEpochError):
            sender.send_rest()
    assert sorted({name for name, _ in told.fragments(intent.blob_id)}) == ["n1", "n2", "n3"]
    intent.epoch, intent.resent = moved.epoch, True
    assert not told.calls("n2").write_unless_stored(intent, data)
    told.calls("n2").seal(moved, [intent], [data])
    assert len(_placed(_receipt(told, group))) == 3


@pytest.mark.parametrize("point", CODING_POINTS)
def test_a_primary_that_dies_at_any_step_leaves_a_shard_that_the_next_one_can_seal(told: ToldNodes, point: str) -> None:
    group = _form(told, *ALL)
    data = payload(6 * MIB)
    intent = intent_of(group, len(data))
    # It may die just after its last word, and nobody sees it fail.
    with told.dying_at("n1", point), suppress(SdrsError, OSError):
        told.calls("n1").write(intent, data)
        told.calls("n1").seal(group, [intent], [data])
    assert [receipt.epoch for receipt in told.receipts_of(group)] == ([1] if point == "seal.registered" else [])
    moved = told.reform(group, "n2", "n3", "n4")
    intent.epoch, intent.resent = moved.epoch, True
    was_sent = told.calls("n2").write_unless_stored(intent, data)
    if point in ("coded.settled", "seal.confirmed", "seal.registered"):
        assert not was_sent  # P11: three others have theirs
    told.calls("n2").seal(moved, [intent], [data])
    receipt = _receipt(told, group)
    assert receipt.epoch == 2
    assert len(_placed(receipt)) >= 3
    assert "n1" not in _placed(receipt).values()
    found = told.fragments(intent.blob_id)
    fragments = {index: payload_of(found[name, index]) for index, name in _placed(receipt).items()}
    for some in combinations(fragments, CODE.data):
        assert joined(CODE, {index: fragments[index] for index in some}, len(data)) == data


def _give_by_hand(told: ToldNodes, intent: pb.WriteIntent, data: bytes, places: dict[int, str]) -> None:
    fragments = cut(CODE, data)
    for index, name in places.items():
        calls, fragment = told.calls(name), fragments[index]
        relay(calls, fragment_intent(intent, CODE, index), fragment, summary_of(data, fragment))


@pytest.mark.parametrize("way", ["stream", "channel"])
def test_on_a_second_try_only_what_is_missing_is_written(told: ToldNodes, way: str) -> None:
    group = _form(told, *ALL)
    data = payload(7 * MIB + 1)
    intent = intent_of(group, len(data))
    _give_by_hand(told, intent, data, {3: "n2", 0: "n3"})
    before = {place: path.stat().st_ino for place, path in told.fragments(intent.blob_id).items()}
    intent.resent = True
    primary = told.calls("n1")
    if way == "channel":
        assert primary.write_unless_stored(intent, data)
    else:
        primary.write_over_grpc(intent, data)
    _check_on_disk(told, intent.blob_id, data)
    after = {place: path.stat().st_ino for place, path in told.fragments(intent.blob_id).items()}
    assert before.items() <= after.items()
    assert {name for name, _ in after} == set(ALL)


def test_a_small_blob_that_two_members_have_is_not_sent_again(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(5000)
    intent = intent_of(group, len(data), relayed=True)
    for name in ("n3", "n4"):
        told.calls(name).write_over_grpc(intent, data)
    intent.relayed, intent.resent = False, True
    assert not told.calls("n1").write_unless_stored(intent, data)
    told.calls("n1").seal(group, [intent], [data])
    assert {holder.node_id for holder in _receipt(told, group).shard.blobs[0].holders} == {"n3", "n4"}
    assert {name for name, _ in told.fragments(intent.blob_id)} == {"n3", "n4"}  # the primary need not have it (I4)


def test_what_is_there_but_not_safe_is_filled_up_when_the_shard_is_sealed(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    large, small = payload(7 * MIB + 1, 1), payload(5000, 2)
    save_id = random_id()
    intents = [intent_of(group, len(data), save_id=save_id) for data in (large, small)]
    _give_by_hand(told, intents[0], large, {3: "n2", 0: "n3"})
    intents[1].relayed = True
    told.calls("n4").write_over_grpc(intents[1], small)
    told.calls("n1").seal(group, intents, [large, small])
    _check_on_disk(told, intents[0].blob_id, large)
    copies = told.fragments(intents[1].blob_id)
    assert len(copies) == 3
    assert {payload_of(path) for path in copies.values()} == {small}
    receipt = _receipt(told, group)
    assert set(_placed(receipt).values()) == set(ALL)
    assert len(receipt.shard.blobs[1].holders) == 3


def test_a_pool_that_may_be_degraded_goes_on_with_a_single_node(told: ToldNodes) -> None:
    told.teller.pools[POOL.name] = replace(POOL, allow_degraded=True)
    try:
        group = _form(told, "n1")
        blobs = [payload(5 * MIB, 1), payload(5000, 2)]
        save_id = random_id()
        intents = [intent_of(group, len(data), save_id=save_id) for data in blobs]
        for intent, data in zip(intents, blobs, strict=True):
            told.calls("n1").write(intent, data)
        told.calls("n1").seal(group, intents, blobs)
    finally:
        told.teller.pools[POOL.name] = POOL
        told.teller.tell()
    _check_on_disk(told, intents[0].blob_id, blobs[0])
    assert [len(blob.holders) for blob in _receipt(told, group).shard.blobs] == [4, 1]


def test_a_frozen_member_that_nothing_is_needed_of_holds_no_seal_up(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(5000)
    first, intent = intent_of(group, len(data)), intent_of(group, len(data))
    for one in (first, intent):
        told.calls("n1").write_over_grpc(one, data)
    told.calls("n1").seal(group, [first], [data])  # it is connected to all
    (idle,) = set(ALL) - {name for name, _ in told.fragments(intent.blob_id)}
    told.daemons[idle].freeze()
    try:
        with ThreadPoolExecutor() as threads:
            threads.submit(told.calls("n1").seal, group, [intent], [data]).result(20)  # it would be waited for for 30
    finally:
        told.daemons[idle].thaw()
    assert len(_receipt(told, group).shard.blobs[0].holders) == 3


def test_what_cannot_be_brought_back_is_not_vouched_for(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(4 * MIB)
    intent = intent_of(group, len(data))
    _give_by_hand(told, intent, data, {1: "n2"})
    with pytest.raises(SaveFailedError, match="send it again"):
        told.calls("n1").seal(group, [intent], [data])
    assert not told.receipts_of(group)


def test_what_silent_members_may_have_is_not_called_lost(told: ToldNodes) -> None:
    """The group moves on without them, and the client with it, under the same names."""
    group = _form(told, *ALL)
    data = payload(4 * MIB)
    intent = intent_of(group, len(data))
    told.calls("n1").write(intent, data)
    silent = ["n2", "n3", "n4"]
    for name in silent:
        told.daemons[name].kill()
    try:
        with ThreadPoolExecutor() as threads:
            sealing = threads.submit(told.calls("n1").seal, group, [intent], [data])
            wait_for(lambda: len(told.reports_of(group)) == 3, "the reports", 30)
            told.teller.tell(group_of(group.id, 2, "n1", pool=POOL.name), without=silent)
            with pytest.raises(StaleEpochError):
                sealing.result(25)
    finally:
        for name in silent:
            told.daemons[name].start()


def test_a_damaged_fragment_is_not_what_others_are_made_of(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(6 * MIB)
    intent = intent_of(group, len(data))
    _give_by_hand(told, intent, data, {3: "n2", 0: "n3"})
    flip_bit(told.fragments(intent.blob_id)["n3", 0], 4096 + MIB)
    with pytest.raises(SaveFailedError, match="send it again"):
        told.calls("n1").seal(group, [intent], [data])
    assert not told.receipts_of(group)
    assert not told.reports_of(group)


def test_a_seal_counts_fragments_of_the_code_that_the_pool_had_a_moment_ago(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(4 * MIB)
    intent = intent_of(group, len(data))
    told.calls("n1").write(intent, data)
    told.teller.pools[POOL.name] = replace(POOL, data_fragments=3, parity_fragments=1)
    try:
        told.teller.tell()
        told.calls("n1").seal(group, [intent], [data])
    finally:
        told.teller.pools[POOL.name] = POOL
        told.teller.tell()
    blob = _receipt(told, group).shard.blobs[0]
    assert (blob.code, len(blob.holders)) == ("2+2", 4)


# What no primary and no client of ours sends.


def test_fragments_come_from_primaries_only_and_must_be_what_they_say(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(5 * MIB)
    intent = intent_of(group, len(data))
    fragment = cut(CODE, data)[1]
    announced = fragment_intent(intent, CODE, 1)
    by_client = fragment_intent(intent, CODE, 1)
    by_client.relayed = False
    with pytest.raises(InvalidArgumentError, match="send it whole"):
        told.calls("n1").open_write(by_client)
    for change in ({"fragment_index": 4}, {"size_bytes": 1}, {"source_size_bytes": 1}, {"code": "mirror"}):
        wrong = fragment_intent(intent, CODE, 1)
        for name, value in change.items():
            setattr(wrong, name, value)
        with pytest.raises(InvalidArgumentError):
            told.calls("n2").open_write(wrong)
    other = payload(5 * MIB, 7)
    for summary in (
        summary_of(other, fragment),  # the table of another blob
        pb.BlobSummary(size_bytes=len(fragment), hash=hash_of(fragment)),
        summary_of(data, cut(CODE, data)[0]),
    ):
        with pytest.raises(CorruptDataError):
            relay(told.calls("n2"), announced, fragment, summary)
    assert not told.fragments(intent.blob_id)
    relay(told.calls("n2"), announced, fragment, summary_of(data, fragment))
    assert set(told.fragments(intent.blob_id)) == {("n2", 1)}


def test_a_blob_that_is_shorter_than_announced_leaves_nothing(told: ToldNodes) -> None:
    group = _form(told, *ALL)
    data = payload(4 * MIB)
    intent = intent_of(group, 6 * MIB)
    with pytest.raises(CorruptDataError, match="should have"):
        told.calls("n1").write(intent, data)
    with pytest.raises(CorruptDataError, match="should have"):
        told.calls("n1").write_over_grpc(intent, payload(5000))
    assert not told.fragments(intent.blob_id)
