"""Copies that a node fetches by order of the controller, and what nodes say of what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    PermissionDeniedError,
    StaleEpochError,
    StaleTermError,
    UnavailableError,
)
from sdrs_core.ids import random_id
from sdrs_proto.limits import MAX_LOOKUP_NAMES
from sdrs_proto.v1 import storage_pb2 as pb
from tests.support.pull_orders import order, pull, signed, sources_at, written
from tests.support.stores import flip_bit, hash_of, payload
from tests.support.told_nodes import NAMES, ToldNodes, told_nodes
from tests.support.waiting import wait_for

DATA = payload(3 * BLOCK_BYTES + 11)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToldNodes]:
    with told_nodes(tmp_path_factory.mktemp("told")) as nodes:
        yield nodes


def _written(told: ToldNodes, *names: str, data: bytes = DATA, blob_id: str = "") -> pb.WriteIntent:
    return written(told, *names, data=data, blob_id=blob_id)


def _order(told: ToldNodes, node: str, intent: pb.WriteIntent, *sources: str, term: int = 1) -> pb.PullFragmentRequest:
    places = sources_at(told, [(source, 0) for source in sources])
    return order(told, node, intent, hash_of(DATA), places, term=term)


def _pull(told: ToldNodes, node: str, intent: pb.WriteIntent, *sources: str) -> pb.HeldFragment:
    return pull(told, node, _order(told, node, intent, *sources))


def _damage(told: ToldNodes, name: str, blob_id: str) -> None:
    (path,) = told.daemons[name].data_dir.glob(f"disk-*/fragments/*/{blob_id}.0")
    flip_bit(path, 4096 + BLOCK_BYTES + 5)


def test_a_pulled_copy_is_as_the_source_and_tells_the_same_origin(told: ToldNodes) -> None:
    intent = _written(told, "n1")
    held = _pull(told, "n2", intent, "n1")
    assert (held.blob_id, held.save_id, held.size_bytes, held.hash) == (
        intent.blob_id,
        intent.save_id,
        len(DATA),
        hash_of(DATA),
    )
    listed = {}
    for name in ("n1", "n2"):
        response = told.calls(name).call("list_fragments", pb.ListFragmentsRequest(page_size=1000, with_origin=True))
        (listed[name],) = [info for info in response.fragments if info.blob_id == intent.blob_id]
        assert (listed[name].hash, bool(listed[name].disk_id)) == (hash_of(DATA), True)
    assert listed["n1"].disk_id != listed["n2"].disk_id == held.disk_id
    origin = listed["n2"].origin
    assert origin == listed["n1"].origin
    assert (origin.job, origin.pool, origin.world_size, origin.blob_count) == ("told", "told", 1, 1)
    # What it already holds is not fetched again: no source is needed for it.
    assert _pull(told, "n2", intent, "n2") == held


def test_an_order_that_is_given_again_goes_on_with_what_is_under_way_as_fast_as_it_says(told: ToldNodes) -> None:
    intent = _written(told, "n1")

    def ordered(max_bytes_per_second: int) -> pb.PullFragmentRequest:
        request = _order(told, "n2", intent, "n1")
        request.max_bytes_per_second = max_bytes_per_second
        return signed(told, "n2", request)

    def temporary() -> list[int]:
        files = told.daemons["n2"].data_dir.glob("disk-*/tmp/*")
        return [path.stat().st_ino for path in files]

    def under_way() -> list[int]:
        name = pb.FragmentName(blob_id=intent.blob_id, fragment_index=0)
        found = told.calls("n2").call("lookup_fragments", pb.LookupFragmentsRequest(fragments=[name]))
        return [one.made_bytes for one in found.under_way]

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(pull, told, "n2", ordered(1))
        wait_for(lambda: bool(temporary()), "the slow one to begin", 10)
        begun = temporary()
        wait_for(lambda: under_way() == [BLOCK_BYTES], "it to be told how far it is", 10)
        fast = pull(told, "n2", ordered(0))
        assert slow.result(timeout=10) == fast
    assert len(begun) == 1
    assert under_way() == []
    (path,) = told.daemons["n2"].data_dir.glob(f"disk-*/fragments/*/{intent.blob_id}.0")
    assert path.stat().st_ino == begun[0], "it was not begun anew"


def test_a_damaged_source_is_passed_over(told: ToldNodes) -> None:
    intent = _written(told, "n1", "n3")
    _damage(told, "n1", intent.blob_id)
    assert _pull(told, "n2", intent, "n1", "n3").hash == hash_of(DATA)
    assert told.holders(intent.blob_id) == NAMES  # n1's header and footer are fine; its payload is not read


def test_nothing_is_kept_of_a_copy_that_no_source_has_sound(told: ToldNodes) -> None:
    intent = _written(told, "n1")
    _damage(told, "n1", intent.blob_id)
    with pytest.raises(CorruptDataError, match="n3"):
        _pull(told, "n2", intent, "n1", "n3")
    assert "n2" not in told.holders(intent.blob_id)
    assert not list(told.daemons["n2"].data_dir.glob(f"disk-*/tmp/{intent.blob_id}*"))


def test_a_source_with_another_content_is_not_taken(told: ToldNodes) -> None:
    intent = _written(told, "n1", data=payload(len(DATA), seed=9))
    with pytest.raises(CorruptDataError, match="on record"):
        _pull(told, "n2", intent, "n1")
    assert "n2" not in told.holders(intent.blob_id)


def test_a_fragment_that_differs_from_the_record_is_set_aside_and_replaced(told: ToldNodes) -> None:
    intent = _written(told, "n1")
    _written(told, "n2", data=payload(len(DATA), seed=9), blob_id=intent.blob_id)
    assert _pull(told, "n2", intent, "n1").hash == hash_of(DATA)
    assert list(told.daemons["n2"].data_dir.glob(f"disk-*/quarantine/{intent.blob_id}.0.*"))


def test_a_source_that_is_gone_is_worth_another_try(told: ToldNodes) -> None:
    intent = _written(told, "n1")
    request = _order(told, "n2", intent, "n1")
    request.sources[0].node.endpoints.grpc = "127.0.0.1:1"
    signed(told, "n2", request)
    with pytest.raises(UnavailableError):
        told.calls("n2").call("pull_fragment", request)


def test_only_the_controller_of_the_newest_term_can_have_copies_fetched(told: ToldNodes) -> None:
    intent = _written(told, "n1")
    forged = _order(told, "n2", intent, "n1")
    forged.hash = hash_of(b"other")
    with pytest.raises(PermissionDeniedError):
        told.calls("n2").call("pull_fragment", forged)
    with pytest.raises(StaleTermError):
        told.calls("n2").call("pull_fragment", _order(told, "n2", intent, "n1", term=0))
    assert told.holders(intent.blob_id) == ["n1"]


def test_what_a_node_holds_is_told_to_anybody_but_as_a_member_at_its_epoch_only(told: ToldNodes) -> None:
    intent = _written(told, "n1")
    assert told.calls("n1").held(intent.blob_id, random_id()) == {intent.blob_id: hash_of(DATA)}
    group = told.form("n1", "n2")
    names = [pb.FragmentName(blob_id=intent.blob_id)]
    fenced = pb.LookupFragmentsRequest(fragments=names, group_id=group.id, epoch=1)
    assert len(told.calls("n1").call("lookup_fragments", fenced).held) == 1
    told.reform(group, "n2", "n1")
    with pytest.raises(StaleEpochError):
        told.calls("n1").call("lookup_fragments", fenced)


def test_many_names_are_looked_up_at_once_but_not_any_number(told: ToldNodes) -> None:
    """A few fragments for each blob of the largest shard."""
    intent = _written(told, "n1")
    names = [pb.FragmentName(blob_id=intent.blob_id, fragment_index=index) for index in range(MAX_LOOKUP_NAMES)]
    found = told.calls("n1").call("lookup_fragments", pb.LookupFragmentsRequest(fragments=names))
    assert [held.fragment_index for held in found.held] == [0]
    with pytest.raises(InvalidArgumentError, match="at once"):
        told.calls("n1").call("lookup_fragments", pb.LookupFragmentsRequest(fragments=[*names, names[0]]))
