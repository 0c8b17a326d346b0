"""Copies of the catalog, kept on nodes for the day it is lost (P19): what names one, and who keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sdrs_core.cluster import Node, NodeState
from sdrs_core.ids import ClusterId

KEEPER_COUNT = 3
MAX_SNAPSHOT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """``size_bytes`` and ``hash`` (xxh3) are those of the file as it is stored, compressed."""

    cluster_id: ClusterId
    incarnation: int
    term: int
    revision: int
    created_unix_ms: int
    size_bytes: int
    hash: str

    @property
    def age(self) -> tuple[int, int]:
        """Later ones are greater. By what the catalog went through, not by clocks (I8)."""
        return self.incarnation, self.revision


def choose_keepers(nodes: Iterable[Node], count: int = KEEPER_COUNT) -> list[Node]:
    """Up to ``count`` nodes that are up, in as many failure domains as can be; the same ones while nothing changes."""
    up = sorted((node for node in nodes if node.state is NodeState.UP), key=lambda node: node.id)
    seen: set[str] = set()
    first_of_domain: list[Node] = []
    others: list[Node] = []
    for node in up:
        (others if node.domain in seen else first_of_domain).append(node)
        seen.add(node.domain)
    return [*first_of_domain, *others][:count]
