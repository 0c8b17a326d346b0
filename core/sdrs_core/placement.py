"""Which nodes belong to a group when all is well: balanced, in different failure domains, and moving little."""

from __future__ import annotations

from collections.abc import Mapping

from sdrs_core.ids import GroupId, NodeId


def plan_homes(
    domains: Mapping[NodeId, str],
    copies: int,
    current: Mapping[GroupId, tuple[NodeId, ...]],
    owners: Mapping[GroupId, NodeId],
) -> dict[GroupId, tuple[NodeId, ...]]:
    """The members of every group of a pool when all is well, the preferred primary first."""
    raise NotImplementedError
