"""What a primary makes of its members' words when it seals a shard whose blobs are spread (I1, P5)."""

from __future__ import annotations

from collections.abc import Iterable

from sdrs_core.checkpoints import Blob
from sdrs_core.cluster import Group, Pool
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, GroupId, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_core.redundancy import Standing
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.rpc.vouching import Vouched, held_of, keys_of, lacking, vouch

NODES = tuple(NodeId(f"n{number}") for number in range(1, 7))
DOMAINS = {node: f"host-{node}" for node in NODES}
POOL = Pool(PoolName("prod"), Level.L3, data_fragments=4, parity_fragments=2)
GROUP = Group(GroupId("prod:g"), PoolName("prod"), 1, NODES, NODES[0])
SAVE = SaveId("5a" * 16)
LARGE = Blob(BlobId("ab" * 16), 0, 64 << 20, "whole")
SMALL = Blob(BlobId("cd" * 16), 1, 1 << 20, "whole")

Told = tuple[NodeId, pb.HeldFragment]


def _told(member: str, blob: Blob, index: int = 0, code: str = "4+2", **other: object) -> Told:
    facts = {
        "blob_id": blob.id,
        "fragment_index": index,
        "save_id": SAVE,
        "hash": f"hash-{index}",
        "disk_id": f"disk-{member}",
        "source_size_bytes": blob.size_bytes,
        "source_hash": blob.hash,
        "code": code,
        **other,
    }
    return NodeId(member), pb.HeldFragment(**facts)  # type: ignore[arg-type]


def _vouched(blob: Blob, told: Iterable[Told], pool: Pool = POOL) -> Vouched:
    return vouch(blob, pool, held_of(blob, SAVE, told), DOMAINS)


def test_all_fragments_in_their_own_domains_are_full() -> None:
    found = _vouched(LARGE, [_told(node, LARGE, index) for index, node in enumerate(NODES)])
    assert (found.standing, found.blob.code) == (Standing.FULL, "4+2")
    assert [(h.fragment_index, h.node_id, h.disk_id, h.fragment_hash) for h in found.blob.holders][5] == (
        5,
        "n6",
        "disk-n6",
        "hash-5",
    )


def test_five_of_six_are_safe_and_four_are_not() -> None:
    told = [_told(node, LARGE, index) for index, node in enumerate(NODES)]
    assert _vouched(LARGE, told[1:]).standing is Standing.SAFE
    assert _vouched(LARGE, told[2:]).standing is Standing.READABLE
    assert _vouched(LARGE, told[3:]).standing is Standing.LOST


def test_what_differs_in_anything_is_not_the_blob() -> None:
    wrong = [
        _told("n1", LARGE, save_id="0" * 32),
        _told("n2", LARGE, source_hash="another"),
        _told("n3", LARGE, source_size_bytes=1),
        _told("n4", LARGE, blob_id="0" * 32),
    ]
    assert _vouched(LARGE, wrong).blob.holders == ()


def test_a_small_blob_is_full_with_one_copy_more_than_may_be_lost() -> None:
    told = [_told(node, SMALL, code=MIRROR) for node in ("n1", "n4", "n5")]
    assert _vouched(SMALL, told).standing is Standing.FULL
    assert _vouched(SMALL, told[1:]).standing is Standing.SAFE  # also without the primary (I4)
    assert _vouched(SMALL, told[:1]).standing is Standing.READABLE


def test_what_was_cut_by_the_code_that_the_pool_had_a_moment_ago_counts_as_that() -> None:
    told = [_told(node, LARGE, index, code="2+1") for index, node in enumerate(NODES[:3])]
    found = _vouched(LARGE, [*told, _told("n4", LARGE, 3)])
    assert (found.blob.code, found.standing) == ("2+1", Standing.FULL)


def test_members_are_asked_for_every_fragment_that_the_code_has() -> None:
    assert [key.fragment_index for key in keys_of(LARGE, POOL)] == [0, 1, 2, 3, 4, 5]
    assert [key.fragment_index for key in keys_of(SMALL, POOL)] == [0]


def test_what_is_lacking_goes_to_members_that_answer_and_have_least() -> None:
    told = [_told(node, LARGE, index) for index, node in enumerate(NODES[:4])]
    found = _vouched(LARGE, told)
    assert sorted(lacking(found, GROUP, POOL, DOMAINS, failing=[])) == [(4, "n5"), (5, "n6")]
    given = lacking(found, GROUP, POOL, DOMAINS, failing=[NodeId("n5"), NodeId("n6")])
    assert sorted(index for index, _ in given) == [4, 5]
    assert {member for _, member in given} <= set(NODES[:4])


def test_a_copy_that_is_lacking_is_not_given_to_who_has_one() -> None:
    found = _vouched(SMALL, [_told("n3", SMALL, code=MIRROR)])
    given = lacking(found, GROUP, POOL, DOMAINS, failing=[])
    assert [index for index, _ in given] == [0, 0]
    assert len({member for _, member in given} - {"n3"}) == 2
