"""Replicated writes on real nodes: who gets a copy, who is vouched for, and what an epoch that ends leaves behind."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.cluster import Group
from sdrs_core.errors import SaveFailedError, SdrsError, StaleEpochError, UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto.v1 import membership_pb2
from sdrs_proto.v1 import storage_pb2 as pb
from tests.support.blob_sender import intent_of
from tests.support.cluster import DaemonProcess
from tests.support.map_teller import group_of
from tests.support.stores import REPLICATION_POINTS, flip_bit, hash_of, payload
from tests.support.told_nodes import IMPATIENT, NAMES, WRITE_SLOTS, ToldNodes, told_nodes
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToldNodes]:
    with told_nodes(tmp_path_factory.mktemp("told")) as nodes:
        yield nodes


def _path_on_disk(daemon: DaemonProcess, blob_id: str) -> Path:
    (path,) = daemon.data_dir.glob(f"disk-*/fragments/*/{blob_id}.0")
    return path


def _payload_on_disk(daemon: DaemonProcess, blob_id: str, size_bytes: int) -> bytes:
    return _path_on_disk(daemon, blob_id).read_bytes()[4096 : 4096 + size_bytes]


@pytest.mark.parametrize("way", ["small", "stream", "channel"])
def test_both_copies_are_there_and_identical_when_a_blob_is_acknowledged(told: ToldNodes, way: str) -> None:
    group = told.form("n1", "n2")
    data = payload(5000 if way == "small" else 5 * BLOCK_BYTES + 77)
    intent = intent_of(group, len(data))
    primary = told.calls("n1")
    stored = primary.write(intent, data) if way == "channel" else primary.write_over_grpc(intent, data)
    assert stored.hash == hash_of(data)
    assert told.holders(intent.blob_id) == ["n1", "n2"]
    primary.seal(group, [intent], [data])
    (receipt,) = told.receipts_of(group)
    holders = receipt.shard.blobs[0].holders
    assert [(holder.node_id, holder.fragment_hash) for holder in holders] == [
        ("n1", hash_of(data)),
        ("n2", hash_of(data)),
    ]
    assert len({holder.disk_id for holder in holders}) == 2
    for name in ("n1", "n2"):
        assert _payload_on_disk(told.daemons[name], intent.blob_id, len(data)) == data


def test_a_blob_whose_epoch_ends_on_the_way_is_kept_by_members_and_acknowledged_to_nobody(told: ToldNodes) -> None:
    """P8, P11: who is still a member keeps its copy; who is not has none."""
    group = told.form("n1", "n2", "n3")
    data = payload(6 * BLOCK_BYTES)
    intent = intent_of(group, len(data))
    with told.calls("n1").writing(intent, data) as sender:
        sender.send_blocks(3)
        for name in NAMES:
            told.wait_for_writing(name, intent.blob_id)
        moved = told.reform(group, "n1", "n2")
        sender.send_blocks()
        with pytest.raises(StaleEpochError) as stale:
            sender.finish()
    assert (stale.value.facts["epoch"], stale.value.facts["primary"]) == ("2", "n1")
    assert told.holders(intent.blob_id) == ["n1", "n2"]
    intent.epoch = moved.epoch
    opened = told.calls("n1").call("open_write", pb.OpenWriteRequest(intent=intent))
    assert opened.already_stored
    told.calls("n1").seal(moved, [intent], [data])
    assert [receipt.epoch for receipt in told.receipts_of(group)] == [2]


def test_a_primary_that_left_its_group_keeps_nothing_of_what_comes_in(told: ToldNodes) -> None:
    group = told.form("n1", "n2")
    data = payload(6 * BLOCK_BYTES)
    intent = intent_of(group, len(data))
    with told.calls("n1").writing(intent, data) as sender:
        sender.send_blocks(3)
        told.reform(group, "n2", "n3")
        with pytest.raises(StaleEpochError):
            sender.send_rest()
    assert told.holders(intent.blob_id) == []


@pytest.mark.parametrize("block_count", [1, 2])
@pytest.mark.parametrize(("members", "keeps"), [(["n1", "n2"], False), (["n2", "n3"], True)])
def test_a_member_looks_at_the_map_of_the_last_moment_before_it_keeps_a_copy(
    told: ToldNodes, members: list[str], keeps: bool, block_count: int
) -> None:
    """The relay comes from this test, not from the primary: nothing but the member's own check can stop it (P8)."""
    group = told.form("n1", "n3")
    data = payload(2 * BLOCK_BYTES)
    intent = intent_of(group, len(data), relayed=True)
    with told.calls("n3").writing(intent, data) as sender:
        sender.send_blocks(block_count)
        told.reform(group, *members)
        with pytest.raises(StaleEpochError):
            sender.send_rest()
    assert told.holders(intent.blob_id) == (["n3"] if keeps else [])


def test_a_deposed_primary_gets_no_receipt_and_the_next_one_confirms_what_is_there(told: ToldNodes) -> None:
    group = told.form("n1", "n2")
    data = payload(3 * BLOCK_BYTES)
    intent = intent_of(group, len(data))
    told.calls("n1").write(intent, data)
    moved = told.reform(group, "n2", "n3")
    with pytest.raises(StaleEpochError) as stale:
        told.calls("n1").seal(group, [intent], [data])
    assert stale.value.facts["epoch"] == "1"  # it was told that it is out, not who is in
    with pytest.raises(StaleEpochError):
        told.calls("n2").seal(group, [intent], [data])
    told.calls("n2").seal(moved, [intent], [data])
    (receipt,) = told.receipts_of(group)
    assert receipt.epoch == 2
    assert [holder.node_id for holder in receipt.shard.blobs[0].holders] == ["n2", "n3"]


def test_a_primary_that_was_not_told_of_its_end_gets_no_receipt_past_its_members(told: ToldNodes) -> None:
    """I3: cut off from the controller, it still coordinates; the member that knows better refuses to be counted."""
    group = told.form(IMPATIENT, "n2")
    data = payload(5000)
    intent = intent_of(group, len(data), relayed=True)
    for name in (IMPATIENT, "n2"):
        told.calls(name).write_over_grpc(intent, data)
    with told.teller.withholding(IMPATIENT):
        told.reform(group, "n2", "n3")
        with pytest.raises(UnavailableError, match="cannot vouch"):
            told.calls(IMPATIENT).seal(group, [intent], [data])
    with pytest.raises(StaleEpochError):
        told.calls(IMPATIENT).seal(group, [intent], [data])
    assert not told.receipts_of(group)


def test_a_new_member_is_filled_at_the_seal(told: ToldNodes) -> None:
    group = told.form("n1")
    blobs = [payload(5000, 1), payload(3 * BLOCK_BYTES + 1, 2)]
    save_id = random_id()
    intents = [intent_of(group, len(data), save_id=save_id) for data in blobs]
    for intent, data in zip(intents, blobs, strict=True):
        told.calls("n1").write(intent, data)
    moved = told.reform(group, "n1", "n2", "n3")
    told.calls("n1").seal(moved, intents, blobs)
    assert told.holders(*(intent.blob_id for intent in intents)) == NAMES
    (receipt,) = told.receipts_of(group)
    for blob in receipt.shard.blobs:
        assert [holder.node_id for holder in blob.holders] == NAMES


def test_what_the_primary_itself_lacks_is_not_vouched_for(told: ToldNodes) -> None:
    group = told.form("n1", "n2")
    data = payload(5000)
    intent = intent_of(group, len(data))
    intent.relayed = True
    told.calls("n2").write_over_grpc(intent, data)
    with pytest.raises(SaveFailedError, match="send it again"):
        told.calls("n1").seal(group, [intent], [data])
    assert not told.receipts_of(group)


def test_a_damaged_copy_of_the_primary_is_set_aside_and_not_passed_on(told: ToldNodes) -> None:
    group = told.form("n1")
    data = payload(3 * BLOCK_BYTES)
    intent = intent_of(group, len(data))
    told.calls("n1").write(intent, data)
    flip_bit(_path_on_disk(told.daemons["n1"], intent.blob_id), 4096 + 2 * BLOCK_BYTES)
    moved = told.reform(group, "n1", "n2")
    with pytest.raises(SaveFailedError, match="send it again"):
        told.calls("n1").seal(moved, [intent], [data])
    assert told.holders(intent.blob_id) == []
    assert not told.reports_of(group)
    intent.epoch = moved.epoch
    told.calls("n1").write(intent, data)
    told.calls("n1").seal(moved, [intent], [data])


def test_a_member_that_dies_in_mid_blob_costs_only_its_copy(told: ToldNodes) -> None:
    group = told.form("n1", "n2")
    data = payload(24 * BLOCK_BYTES)
    intent = intent_of(group, len(data))
    member = told.daemons["n2"]
    with told.calls("n1").writing(intent, data) as sender:
        sender.send_blocks(2)
        told.wait_for_writing("n2", intent.blob_id)
        member.kill()
        try:
            sender.send_blocks()
            assert sender.finish().hash == hash_of(data)
            (report,) = wait_for(lambda: told.reports_of(group), "the report", 30)
            assert (report.node_id, report.epoch, report.member_id) == ("n1", 1, "n2")
            assert report.trouble == membership_pb2.MEMBER_TROUBLE_FAILED
            # Without it the group is re-formed, and the spare is filled when the shard is sealed.
            moved = group_of(group.id, 2, "n1", "n3")
            told.teller.tell(moved, without=["n2"])
            told.calls("n1").seal(moved, [intent], [data])
        finally:
            member.start()
    assert told.holders(intent.blob_id) == ["n1", "n3"]


def test_a_member_that_stalls_in_mid_blob_is_reported_and_waited_for_no_longer(told: ToldNodes) -> None:
    group = told.form(IMPATIENT, "n2")
    data = payload(24 * BLOCK_BYTES)  # more than fits into sockets on their way
    intent = intent_of(group, len(data))
    with told.calls(IMPATIENT).writing(intent, data) as sender:
        sender.send_blocks(2)
        told.wait_for_writing("n2", intent.blob_id)
        told.daemons["n2"].freeze()
        try:
            sender.send_blocks()
            assert sender.finish().hash == hash_of(data)
            (report,) = wait_for(lambda: told.reports_of(group), "the report", 30)
            assert (report.member_id, report.trouble) == ("n2", membership_pb2.MEMBER_TROUBLE_SLOW)
            # It is spared the next ones: nobody waits for it again.
            following = intent_of(group, len(data))
            assert told.calls(IMPATIENT).write(following, data).hash == hash_of(data)
        finally:
            told.daemons["n2"].thaw()
    assert told.holders(following.blob_id) == [IMPATIENT]


def test_a_relay_to_a_member_that_left_is_given_up_at_once(told: ToldNodes) -> None:
    """The primary would wait for a frozen member for long, but the map says that it need not."""
    group = told.form("n1", "n2")
    data = payload(24 * BLOCK_BYTES)
    intent = intent_of(group, len(data))
    with told.calls("n1").writing(intent, data) as sender:
        sender.send_blocks(2)
        told.wait_for_writing("n2", intent.blob_id)
        told.daemons["n2"].freeze()
        try:
            told.teller.tell(group_of(group.id, 2, "n1"), without=["n2"])
            with pytest.raises(StaleEpochError):
                sender.send_rest()
        finally:
            told.daemons["n2"].thaw()
    told.teller.tell()
    assert told.holders(intent.blob_id) == ["n1"]
    assert not told.reports_of(group)


@pytest.mark.parametrize("point", REPLICATION_POINTS)
def test_a_primary_that_dies_at_any_step_leaves_a_shard_that_the_next_one_can_seal(told: ToldNodes, point: str) -> None:
    group = told.form("n1", "n2")
    data = payload(4 * BLOCK_BYTES)
    intent = intent_of(group, len(data))
    # It may die just after its last word, and nobody sees it fail.
    with told.dying_at("n1", point), suppress(SdrsError, OSError):
        told.calls("n1").write(intent, data)
        told.calls("n1").seal(group, [intent], [data])
    assert [receipt.epoch for receipt in told.receipts_of(group)] == ([1] if point == "seal.registered" else [])
    moved = told.reform(group, "n2", "n3")
    intent.epoch = moved.epoch
    if not told.calls("n2").held(intent.blob_id):
        told.calls("n2").write(intent, data)
    told.calls("n2").seal(moved, [intent], [data])
    receipt = told.receipts_of(group)[-1]
    assert [holder.node_id for holder in receipt.shard.blobs[0].holders] == ["n2", "n3"]
    for name in ("n2", "n3"):
        assert _payload_on_disk(told.daemons[name], intent.blob_id, len(data)) == data


@pytest.mark.parametrize(("members", "epoch"), [(["n1", "n3"], "2"), (["n3", "n4"], "1")])
def test_a_seal_that_waits_for_a_frozen_member_moves_on_with_the_group(
    told: ToldNodes, members: list[str], epoch: str
) -> None:
    """Also where it moves on without this primary, which then is not told the new epoch."""
    group = told.form("n1", "n2")
    data = payload(5000)
    intent = intent_of(group, len(data))
    told.calls("n1").write_over_grpc(intent, data)
    told.daemons["n2"].freeze()
    try:
        with ThreadPoolExecutor() as threads:
            sealing = threads.submit(told.calls("n1").seal, group, [intent], [data])
            told.teller.tell(group_of(group.id, 2, *members), without=["n2"])
            with pytest.raises(StaleEpochError) as stale:
                sealing.result(25)  # less than the primary would wait for the member
        assert stale.value.facts["epoch"] == epoch
    finally:
        told.daemons["n2"].thaw()


def test_all_nodes_coordinate_at_once_and_every_copy_is_taken(told: ToldNodes) -> None:
    """P21: as many writes as there are slots on each node, each with a copy to the next node."""
    groups = [told.form(name, other) for name, other in zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True)]
    data = payload(4 * BLOCK_BYTES)

    def write(group: Group) -> str:
        intent = intent_of(group, len(data))
        told.calls(group.primary).write(intent, data)
        return intent.blob_id

    with ExitStack() as stack:
        # Never more for one node than it has slots: who waits for a slot waits for a while only.
        clients = {group.id: stack.enter_context(ThreadPoolExecutor(WRITE_SLOTS)) for group in groups}
        writes = [(group, clients[group.id].submit(write, group)) for _ in range(8) for group in groups]
        for group, writing in writes:
            assert told.holders(writing.result(90)) == sorted(group.members)
    assert not any(told.reports_of(group) for group in groups)


def test_epochs_and_roles_are_told_to_prometheus(told: ToldNodes) -> None:
    group = told.form("n1", "n2")
    for name, is_primary in (("n1", 1), ("n2", 0)):
        with urllib.request.urlopen(
            f"http://{told.daemons[name].running()['metrics']}/metrics", timeout=30
        ) as response:
            text = response.read().decode()
        assert f'sdrs_group_epoch{{group="{group.id}"}} 1.0' in text
        assert f'sdrs_group_is_primary{{group="{group.id}"}} {is_primary}.0' in text
