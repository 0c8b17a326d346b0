"""Which group a rank saves to."""

from __future__ import annotations

from sdrs_core.cluster import Disk, DiskState, Endpoints, Group, Node, NodeState, choose_group
from sdrs_core.ids import DiskId, GroupId, NodeId, PoolName

A, B, C = (NodeId(name) for name in "abc")
DISK = Disk(DiskId("d" * 32), "/disk", DiskState.OK, 100, 0, 0)


def node(node_id: NodeId, host: str = "here") -> Node:
    endpoints = Endpoints("", "", "", "", host)
    return Node(node_id, endpoints, node_id, 1, "1", NodeState.UP, (DISK,))


def group(*members: NodeId) -> Group:
    return Group(GroupId(f"fast:{members[0]}"), PoolName("fast"), 1, members, members[0], members)


def chosen(*groups: Group, hosts: dict[NodeId, str] | None = None, **options: frozenset[object]) -> NodeId | None:
    nodes = {node_id: node(node_id, (hosts or {}).get(node_id, "here")) for node_id in (A, B, C)}
    settings: dict[str, object] = {"avoid": frozenset(), **options}
    found = choose_group(list(groups), nodes, rank=0, host="here", **settings)  # type: ignore[arg-type]
    return found.primary if found else None


def test_a_group_whose_primary_found_a_member_failing_comes_after_one_that_is_whole() -> None:
    shunned = frozenset([(GroupId("fast:a"), B)])
    assert chosen(group(A, B), group(B, C)) == A
    assert chosen(group(A, B), group(B, C), shunned=shunned) == B
    assert chosen(group(A, B), shunned=shunned) == A, "it is better than none"
    assert chosen(group(A, C), group(B, C), shunned=shunned) == A, "its member was replaced"


def test_a_whole_group_elsewhere_comes_before_a_doubtful_one_on_the_own_host() -> None:
    far = {B: "there", C: "there"}
    assert chosen(group(A, B), group(B, C), hosts=far) == A
    assert chosen(group(A, B), group(B, C), hosts=far, shunned=frozenset([(GroupId("fast:a"), B)])) == B
    assert chosen(group(A, B), group(C, B), hosts=far, avoid=frozenset([B])) == A, "both are doubtful"
