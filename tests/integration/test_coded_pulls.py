"""Fragments of codes that nodes make by order of the controller: rebuilt, cut anew, compared, moved off a disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.cluster import DiskState
from sdrs_core.errors import CorruptDataError, FullError, RefusedError, UnavailableError
from sdrs_core.ids import NodeId
from sdrs_proto.channel import PAYLOAD_OFFSET
from sdrs_proto.status import from_rpc_error
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.store.fragment import encode_coded_footer
from tests.support.coded import changed, pieces_of
from tests.support.pull_orders import (
    encoded,
    file_of,
    fragment_of,
    order,
    payload_of,
    pull,
    sources_at,
    written,
)
from tests.support.stores import flip_bit, hash_of, payload, table_of
from tests.support.told_nodes import ToldNodes, told_nodes
from tests.support.waiting import wait_for

DATA = payload(9 * BLOCK_BYTES + 11)
CODE = "4+2"
PIECES = pieces_of(DATA, CODE)
# Some nodes hold several.
PLACES = {0: "n1", 1: "n2", 2: "n3", 3: "n1", 4: "n2", 5: "n3"}
# It holds nothing of a blob at first.
MAKER = "n4"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToldNodes]:
    folder = tmp_path_factory.mktemp("told")
    disks = [str(folder / MAKER / name) for name in ("disk-1", "disk-2")]
    with told_nodes(folder, {MAKER: {"disks": disks}, "n3": {"read_slots": 1}}) as nodes:
        yield nodes


def _stored(told: ToldNodes, code: str = CODE, places: dict[int, str] | None = None) -> pb.WriteIntent:
    return encoded(told, written(told, "n1", data=DATA), "n1", DATA, code, places or PLACES)


def _order(
    told: ToldNodes, intent: pb.WriteIntent, indexes: list[int], *, of: pb.WriteIntent | None = None, limit: int = 0
) -> pb.PullFragmentRequest:
    """To the maker, from those who hold these fragments of the same blob, or ``of`` another one."""
    sources = sources_at(told, [(PLACES[index], index) for index in indexes])
    return order(told, MAKER, intent, hash_of(DATA), sources, of=of, max_bytes_per_second=limit)


def _others(index: int) -> list[int]:
    return [other for other in PLACES if other != index]


@pytest.mark.parametrize("index", range(6))
def test_each_fragment_is_rebuilt_from_the_others_as_it_was(told: ToldNodes, index: int) -> None:
    intent = fragment_of(blob := _stored(told), CODE, index, blob.blob_id)
    held = pull(told, MAKER, _order(told, intent, _others(index)))
    assert (held.size_bytes, held.hash) == (len(PIECES[index]), hash_of(PIECES[index]))
    assert (held.code, held.source_size_bytes, held.source_hash) == (CODE, len(DATA), hash_of(DATA))
    assert payload_of(told, MAKER, held) == PIECES[index]
    # What is there already is not made again, and needs nobody.
    assert pull(told, MAKER, _order(told, intent, [])) == held


def test_a_blob_in_another_form_is_cut_anew_and_told_as_such(told: ToldNodes) -> None:
    halves = _stored(told, "2+1", {0: "n1", 1: "n2", 2: "n3"})
    for index, piece in enumerate(PIECES):
        intent = fragment_of(halves, CODE, index)
        intent.pool, intent.save_pool = "second", "told"
        sources = sources_at(told, [("n2", 1), ("n3", 2)])
        held = pull(told, MAKER, order(told, MAKER, intent, hash_of(DATA), sources, of=halves))
        assert (held.blob_id, payload_of(told, MAKER, held)) == (intent.blob_id, piece)
        listing = told.calls(MAKER).call("list_fragments", pb.ListFragmentsRequest(page_size=1000, with_origin=True))
        (origin,) = [info.origin for info in listing.fragments if info.blob_id == intent.blob_id]
        assert (origin.code, origin.fragment_index, origin.source_size_bytes) == (CODE, index, len(DATA))
        assert (origin.pool, origin.save_pool, origin.job) == ("second", "told", "told")


def test_a_whole_copy_comes_of_fragments(told: ToldNodes) -> None:
    coded = _stored(told)
    intent = fragment_of(coded, "mirror")
    held = pull(told, MAKER, _order(told, intent, [1, 2, 3, 5], of=coded))
    assert (held.code, held.hash, payload_of(told, MAKER, held)) == ("mirror", hash_of(DATA), DATA)


@pytest.mark.parametrize("code", ["mirror", CODE])
def test_the_same_form_under_another_name_is_copied(told: ToldNodes, code: str) -> None:
    """As for a pool that mirrors another one of the same kind."""
    blob = written(told, "n2", data=DATA) if code == "mirror" else _stored(told)
    intent = fragment_of(blob, code, 0 if code == "mirror" else 1)
    sources = sources_at(told, [("n2", intent.fragment_index)])
    held = pull(told, MAKER, order(told, MAKER, intent, hash_of(DATA), sources, of=blob))
    assert (held.blob_id, held.code) == (intent.blob_id, code)
    assert payload_of(told, MAKER, held) == pieces_of(DATA, code)[intent.fragment_index]


def test_damage_in_mid_stream_is_passed_over_while_enough_are_left(told: ToldNodes) -> None:
    intent = fragment_of(blob := _stored(told), CODE, 0, blob.blob_id)
    path = file_of(told, "n3", blob.blob_id, 2)
    assert path
    flip_bit(path, PAYLOAD_OFFSET + BLOCK_BYTES + 5)
    with pytest.raises(CorruptDataError, match="n3"):
        pull(told, MAKER, _order(told, intent, [1, 2, 3, 4]))
    _assert_nothing_left(told, MAKER, blob.blob_id)
    held = pull(told, MAKER, _order(told, intent, [1, 2, 3, 4, 5]))
    assert payload_of(told, MAKER, held) == PIECES[0]


def test_a_node_that_is_gone_may_come_back(told: ToldNodes) -> None:
    intent = fragment_of(blob := _stored(told), CODE, 0, blob.blob_id)
    request = _order(told, intent, [1, 2, 3, 4])
    request.sources[0].node.endpoints.grpc = "127.0.0.1:1"
    with pytest.raises(UnavailableError, match="n2"):
        pull(told, MAKER, order(told, MAKER, intent, hash_of(DATA), request.sources))


def test_what_a_node_holds_itself_is_read_from_its_own_disk(told: ToldNodes) -> None:
    blob = _stored(told, places={**PLACES, 1: MAKER, 2: MAKER})
    intent = fragment_of(blob, CODE, 0, blob.blob_id)
    places = [(MAKER, 1), (MAKER, 2), ("n1", 3), ("n2", 4)]
    sources = sources_at(told, places)
    for source in sources[:2]:
        source.node.endpoints.grpc = "127.0.0.1:1"  # it need not call itself
    held = pull(told, MAKER, order(told, MAKER, intent, hash_of(DATA), sources))
    assert payload_of(told, MAKER, held) == PIECES[0]


def test_what_has_the_name_but_is_of_another_form_is_set_aside(told: ToldNodes) -> None:
    blob = _stored(told)
    copy = written(told, MAKER, data=DATA, blob_id=blob.blob_id)
    held = pull(told, MAKER, _order(told, fragment_of(copy, CODE, 0, blob.blob_id), _others(0)))
    assert payload_of(told, MAKER, held) == PIECES[0]
    assert list(told.daemons[MAKER].data_dir.glob(f"disk-*/quarantine/{blob.blob_id}.0.*"))


def test_a_full_disk_keeps_nothing_of_a_fragment_that_was_begun(told: ToldNodes) -> None:
    intent = fragment_of(blob := _stored(told), CODE, 5, blob.blob_id)
    points = Path(told.daemons[MAKER].environment["SDRS_FAULT_POINTS"])
    points.write_text("fragment.write=ENOSPC@2+")
    try:
        with pytest.raises(FullError):
            pull(told, MAKER, _order(told, intent, _others(5)))
    finally:
        points.unlink()
    _assert_nothing_left(told, MAKER, blob.blob_id)
    assert payload_of(told, MAKER, pull(told, MAKER, _order(told, intent, _others(5)))) == PIECES[5]


def test_a_limit_is_kept(told: ToldNodes) -> None:
    """It is of what is made, here three blocks; four times as much is read."""
    intent = fragment_of(blob := _stored(told), CODE, 0, blob.blob_id)
    began = time.monotonic()
    pull(told, MAKER, _order(told, intent, [1, 2, 3, 4], limit=3 * BLOCK_BYTES))
    assert time.monotonic() - began > 0.9


def test_readers_slots_are_not_taken_by_repair(told: ToldNodes) -> None:
    """P21: the only one of n3 is taken by a reader who says nothing."""
    blob = _stored(told)
    told.calls("n3").call("open_read", pb.OpenReadRequest(blob_id=blob.blob_id, fragment_index=2))
    held = pull(told, MAKER, _order(told, fragment_of(blob, CODE, 2, blob.blob_id), [2]))
    assert payload_of(told, MAKER, held) == PIECES[2]


# Looking


def _verify(told: ToldNodes, name: str, blob_id: str, index: int, others: list[int]) -> pb.VerifyFragmentResponse:
    request = pb.VerifyFragmentRequest(
        blob_id=blob_id, fragment_index=index, code=CODE, sources=sources_at(told, [(PLACES[n], n) for n in others])
    )
    try:
        *_, last = told.calls(name).call("verify_fragment", request)
    except grpc.RpcError as error:
        raise from_rpc_error(error, name) from None
    verdict: pb.VerifyFragmentResponse = last
    return verdict


def _spoil_parity(told: ToldNodes, blob_id: str, index: int) -> Path:
    """As if a bit had been flipped before the stripe was encoded: all checksums are those of the wrong bytes."""
    path = file_of(told, PLACES[index], blob_id, index)
    assert path
    wrong = changed(PIECES[index], BLOCK_BYTES + 9)
    header = path.read_bytes()[:PAYLOAD_OFFSET]
    path.write_bytes(
        header + wrong + encode_coded_footer(header, len(wrong), table_of(wrong), len(DATA), table_of(DATA))
    )
    return path


def test_wrong_parity_is_found_by_computing_it_anew_and_set_aside(told: ToldNodes) -> None:
    """P9."""
    blob = _stored(told)
    assert _verify(told, "n2", blob.blob_id, 4, [0, 1, 2, 3]).verdict == pb.FRAGMENT_VERDICT_OK
    path = _spoil_parity(told, blob.blob_id, 4)
    assert _verify(told, "n2", blob.blob_id, 4, []).verdict == pb.FRAGMENT_VERDICT_OK
    # It does not speak for itself.
    found = _verify(told, "n2", blob.blob_id, 4, [0, 1, 2, 3, 4])
    assert found.verdict == pb.FRAGMENT_VERDICT_CORRUPT
    assert "parity is wrong from block 1 on" in found.detail
    assert not path.exists()
    assert _verify(told, "n2", blob.blob_id, 4, [0, 1, 2, 3]).verdict == pb.FRAGMENT_VERDICT_MISSING


def test_parity_is_not_blamed_for_what_is_wrong_with_others(told: ToldNodes) -> None:
    blob = _stored(told)
    path = file_of(told, "n1", blob.blob_id, 0)
    assert path
    flip_bit(path, PAYLOAD_OFFSET + 5)
    with pytest.raises(UnavailableError, match="computed anew"):
        _verify(told, "n2", blob.blob_id, 4, [0, 1, 2, 3])
    # The other parity fragment stands in for it, and is itself compared with the blob.
    assert _verify(told, "n2", blob.blob_id, 4, [0, 1, 2, 3, 5]).verdict == pb.FRAGMENT_VERDICT_OK
    _spoil_parity(told, blob.blob_id, 5)
    with pytest.raises(UnavailableError, match="computed anew"):
        _verify(told, "n2", blob.blob_id, 4, [0, 1, 2, 3, 5])
    assert file_of(told, "n2", blob.blob_id, 4)


# Disks that are drained


def _disk_states(told: ToldNodes) -> dict[str, DiskState]:
    return {disk.id: disk.state for disk in told.teller.disks[NodeId(MAKER)]}


def test_a_fragment_moves_off_a_disk_that_is_drained(told: ToldNodes) -> None:
    intent = fragment_of(blob := _stored(told), CODE, 1, blob.blob_id)
    held = pull(told, MAKER, _order(told, intent, [1]))
    (other_disk,) = [disk_id for disk_id in _disk_states(told) if disk_id != held.disk_id]
    told.teller.drain(held.disk_id)
    try:
        wait_for(lambda: _disk_states(told)[held.disk_id] is DiskState.DRAINING, "the node to tell that it drains", 30)
        assert _disk_states(told)[other_disk] is DiskState.OK
        itself = order(told, MAKER, intent, hash_of(DATA), sources_at(told, [(MAKER, 1)]))
        moved = pull(told, MAKER, itself)
        assert moved.disk_id == other_disk
        assert payload_of(told, MAKER, moved) == PIECES[1]
        files = list(told.daemons[MAKER].data_dir.glob(f"disk-*/fragments/*/{blob.blob_id}.1"))
        assert len(files) == 1, "the old one is gone"
        assert pull(told, MAKER, itself) == moved
        # What is new goes to the other one too.
        assert pull(told, MAKER, _order(told, fragment_of(blob, CODE, 2, blob.blob_id), [2])).disk_id == other_disk
    finally:
        told.teller.drain()


def test_a_node_all_of_whose_disks_are_drained_takes_nothing_and_gives_all(told: ToldNodes) -> None:
    blob = _stored(told)
    held = pull(told, MAKER, _order(told, fragment_of(blob, CODE, 3, blob.blob_id), [3]))
    told.teller.drain(*_disk_states(told))
    try:
        with pytest.raises(RefusedError, match="drained"):
            pull(told, MAKER, _order(told, fragment_of(blob, CODE, 4, blob.blob_id), [4]))
        itself = order(
            told, MAKER, fragment_of(blob, CODE, 3, blob.blob_id), hash_of(DATA), sources_at(told, [(MAKER, 3)])
        )
        with pytest.raises(RefusedError, match="drained"):
            pull(told, MAKER, itself)
        assert payload_of(told, MAKER, held) == PIECES[3]
    finally:
        told.teller.drain()


def _assert_nothing_left(told: ToldNodes, name: str, blob_id: str) -> None:
    folder = told.daemons[name].data_dir
    assert not list(folder.glob(f"disk-*/tmp/{blob_id}*"))
    assert not list(folder.glob(f"disk-*/fragments/*/{blob_id}.*"))
