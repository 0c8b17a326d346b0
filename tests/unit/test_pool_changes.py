"""What becomes of a pool when an operator changes it, and whether its nodes and its quota suffice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdrs_core.cluster import Disk, DiskState, Endpoints, Group, Node, NodeState, Pool
from sdrs_core.codes import Code
from sdrs_core.errors import InvalidArgumentError, NotFoundError, RefusedError
from sdrs_core.ids import DiskId, GroupId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.pools import (
    PoolChange,
    amended,
    check_mirror,
    fits,
    needs_more_domains,
    quota_refusal,
    quota_warning,
    reshapes,
    room_bytes,
)

NODES = tuple(NodeId(f"n{number}") for number in range(8))
FAST = Pool(PoolName("fast"), Level.L2, mirrors=3, allow_degraded=True)
PROD = Pool(PoolName("prod"), Level.L3, data_fragments=4, parity_fragments=2, mirror_pool="fast", mirror_ratio=0.25)
GIB = 1 << 30


def test_a_pool_that_is_raised_or_lowered_leaves_behind_what_belongs_to_its_level() -> None:
    coded = amended(FAST, PoolChange(level=Level.L3, code=Code(4, 2)), NODES)
    assert (coded.level, str(coded.code), coded.mirrors, coded.member_count) == (Level.L3, "4+2", 1, 6)
    assert coded.allow_degraded
    mirrored = amended(PROD, PoolChange(level=Level.L2), NODES)
    assert (mirrored.mirrors, mirrored.code, mirrored.mirror_pool, mirrored.mirror_ratio) == (2, None, "", 0.0)
    single = amended(FAST, PoolChange(level=Level.L1), NODES)
    assert (single.mirrors, single.allow_degraded) == (1, False)


def test_what_does_not_fit_the_level_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"--ec 4\+2"):
        amended(FAST, PoolChange(level=Level.L3), NODES)
    with pytest.raises(InvalidArgumentError, match="leave out --ec"):
        amended(FAST, PoolChange(code=Code(4, 2)), NODES)
    with pytest.raises(InvalidArgumentError, match="belong to L3"):
        amended(FAST, PoolChange(mirror_pool="prod", mirror_ratio=0.5), NODES)


def test_only_what_is_named_changes() -> None:
    assert amended(PROD, PoolChange(), NODES) == PROD
    assert amended(PROD, PoolChange(quota_bytes=7, retention={"keep_last": 3}), NODES) == replace(
        PROD, quota_bytes=7, retention=replace(PROD.retention, keep_last=3)
    )
    assert amended(PROD, PoolChange(code=Code(8, 3)), NODES) == replace(PROD, data_fragments=8, parity_fragments=3)
    assert amended(FAST, PoolChange(mirrors=2), NODES).mirrors == 2


@pytest.mark.parametrize("change", [PoolChange(mirror_ratio=0.0), PoolChange(mirror_pool="")])
def test_a_mirror_is_turned_off_by_either_of_its_settings(change: PoolChange) -> None:
    after = amended(PROD, change, NODES)
    assert (after.mirror_pool, after.mirror_ratio) == ("", 0.0)


def test_nodes_leave_and_join_a_pool_and_repeating_that_is_harmless() -> None:
    shrunk = amended(FAST, PoolChange(remove_nodes=(NODES[7],)), NODES)
    assert shrunk.node_ids == NODES[:7]
    assert amended(shrunk, PoolChange(remove_nodes=(NODES[7],)), NODES) == shrunk
    grown = amended(shrunk, PoolChange(add_nodes=(NODES[7],)), NODES)
    assert grown.node_ids == NODES
    assert amended(grown, PoolChange(add_nodes=(NODES[7],)), NODES) == grown
    # A pool of all nodes has every one of them already.
    assert amended(FAST, PoolChange(add_nodes=(NODES[7],)), NODES) == FAST


def test_a_pool_is_never_left_without_a_node_because_that_would_stand_for_all() -> None:
    one = replace(FAST, level=Level.L1, mirrors=1, allow_degraded=False, node_ids=(NODES[0],))
    with pytest.raises(RefusedError, match="without a node"):
        amended(one, PoolChange(remove_nodes=(NODES[0],)), NODES)


def test_nodes_that_nobody_knows_are_named() -> None:
    for change in (PoolChange(add_nodes=(NodeId("nx"),)), PoolChange(remove_nodes=(NodeId("nx"),))):
        with pytest.raises(NotFoundError, match='"nx" does not exist'):
            amended(FAST, change, NODES)


def test_what_moves_groups_or_data_is_told_from_what_does_not() -> None:
    assert not reshapes(PROD, replace(PROD, quota_bytes=1, mirror_pool="", mirror_ratio=0.0))
    assert reshapes(PROD, replace(PROD, data_fragments=2, parity_fragments=4))  # as many fragments, but others
    assert reshapes(FAST, replace(FAST, mirrors=2))
    assert reshapes(FAST, replace(FAST, node_ids=NODES))


@pytest.mark.parametrize(
    ("pool", "domains", "words"),
    [
        (
            replace(PROD, name=PoolName("fast")),
            ["a", "b", "c", "d"],
            'pool "fast" needs 6 failure domains for 4+2, it has 4: add 2 nodes or use --ec 2+1',
        ),
        (
            replace(PROD, data_fragments=8, parity_fragments=3),
            list("abcdefg"),
            'pool "prod" needs 11 failure domains for 8+3, it has 7: add 4 nodes or use --ec 4+2',
        ),
        (PROD, ["a", "b"], 'pool "prod" needs 6 failure domains for 4+2, it has 2: add 4 nodes or use --level L2'),
        (
            FAST,
            ["a", "b"],
            'pool "fast" needs 3 failure domains for 3 mirrors, it has 2: add 1 node or use --mirrors 2',
        ),
        (
            FAST,
            ["a", "b", "b"],
            'pool "fast" needs 3 failure domains for 3 mirrors, it has 2: add 1 node with its own node.domain '
            "or use --mirrors 2",
        ),
        (FAST, ["a", "b", "c"], ""),
        (Pool(PoolName("one"), Level.L1), [], ""),
    ],
)
def test_too_few_failure_domains_are_told_with_what_to_do(pool: Pool, domains: list[str], words: str) -> None:
    assert needs_more_domains(pool, domains) == words


def test_a_mirror_exists_and_leads_nowhere_back() -> None:
    pools = {FAST.name: FAST, PROD.name: PROD}
    check_mirror(PROD, pools)
    with pytest.raises(NotFoundError, match='"gone" does not exist'):
        check_mirror(replace(PROD, mirror_pool="gone"), pools)
    other = replace(PROD, name=PoolName("other"), mirror_pool="prod")
    with pytest.raises(InvalidArgumentError, match="prod -> other -> prod"):
        check_mirror(replace(PROD, mirror_pool="other"), {**pools, other.name: other})


def test_a_quota_counts_what_is_stored_what_is_coming_and_what_is_asked_for() -> None:
    pool = replace(PROD, quota_bytes=10 * GIB)

    def refusal(used: int, reserved: int, wanted: int) -> str:
        return quota_refusal(pool, used_bytes=used * GIB, reserved_bytes=reserved * GIB, wanted_bytes=wanted * GIB)

    assert refusal(4, 4, 2) == ""
    told = refusal(4, 4, 3)
    for words in ("4.0 GiB of 10.0 GiB are used", "4.0 GiB are being saved", "3.0 GiB more", "--quota"):
        assert words in told
    # Who does not tell its size gets in while there is any room.
    assert refusal(4, 5, 0) == ""
    assert refusal(5, 5, 0)
    assert quota_refusal(PROD, used_bytes=GIB, reserved_bytes=0, wanted_bytes=GIB) == ""


def test_a_quota_is_warned_of_before_it_is_full() -> None:
    pool = replace(PROD, quota_bytes=100)
    assert quota_warning(pool, 84) == ""
    assert "near its quota" in quota_warning(pool, 85)
    assert "saves are refused" in quota_warning(pool, 100)
    assert quota_warning(PROD, 100) == ""


def test_the_room_of_a_group_is_that_of_its_fullest_member_times_the_fragments_of_data() -> None:
    def node(node_id: NodeId, *disks: tuple[DiskState, int]) -> Node:
        held = tuple(Disk(DiskId(f"{node_id}-{i}"), "/", state, 100, used, 0) for i, (state, used) in enumerate(disks))
        return Node(node_id, Endpoints("", "", "", "", ""), node_id, 1, "1", state=NodeState.UP, disks=held)

    members = NODES[:2]
    nodes = {
        members[0]: node(members[0], (DiskState.OK, 10), (DiskState.OK, 50)),
        members[1]: node(members[1], (DiskState.NEAR_FULL, 90), (DiskState.DRAINING, 0), (DiskState.FAILED, 0)),
    }
    group = Group(GroupId("prod:n0"), PROD.name, 1, members, members[0])
    assert room_bytes(group, FAST, nodes) == 10
    assert room_bytes(group, PROD, nodes) == 40


@pytest.mark.parametrize(
    ("rooms", "size", "does_fit"),
    [
        ((100, 100, 100, 100, 100, 100), 400, True),
        ((100, 100, 100, 100, 100, 100), 401, False),
        # P10: two without room, and the others take their part, two each at most.
        ((200, 200, 200, 200, 1, 1), 400, True),
        ((200, 100, 100, 100, 100, 1), 200, True),
        ((199, 199, 199, 199, 1, 1), 400, False),
        # Three may lose one of them, two may not.
        ((200, 200, 200, 1, 1, 1), 400, True),
        ((900, 900, 1, 1, 1, 1), 400, False),
        # The primary takes part in every blob.
        ((1, 900, 900, 900, 900, 900), 400, False),
    ],
)
def test_members_without_room_are_left_out_as_long_as_the_others_make_up_for_them(
    rooms: tuple[int, ...], size: int, does_fit: bool
) -> None:
    names = [NodeId(f"m{index}") for index in range(len(rooms))]
    nodes = {
        name: Node(
            name,
            Endpoints("", "", "", "", ""),
            name,
            1,
            "1",
            state=NodeState.UP,
            disks=(Disk(DiskId(name), "/", DiskState.NEAR_FULL, 1000, 1000 - room, 0),),
        )
        for name, room in zip(names, rooms, strict=True)
    }
    group = Group(GroupId("prod:m0"), PROD.name, 1, tuple(names), names[0])
    assert fits(size, group, PROD, nodes) is does_fit
