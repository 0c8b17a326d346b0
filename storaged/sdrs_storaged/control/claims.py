"""Who works on which fragment of which node: the collector and the repairer never on the same one at once.

A fragment that is being pulled is on no record yet and looks like an orphan; one that is being dropped would be taken
for stored by whoever wants it there. A registry in memory is enough, because only one controller gives orders (P14).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sdrs_core.ids import BlobId, NodeId

FragmentName = tuple[BlobId, int]


class Claims:
    def __init__(self) -> None:
        self._taken: set[tuple[NodeId, FragmentName]] = set()

    @contextmanager
    def take(self, node_id: NodeId, names: Iterable[FragmentName]) -> Iterator[list[FragmentName]]:
        """Those of ``names`` on which nobody else works, in their order; nobody else will until the end."""
        free = [name for name in names if (node_id, name) not in self._taken]
        mine = {(node_id, name) for name in free}
        self._taken |= mine
        try:
            yield free
        finally:
            self._taken -= mine

    def of(self, blob_id: BlobId) -> frozenset[tuple[NodeId, int]]:
        """Where which fragment of this blob is being worked on."""
        return frozenset((node_id, index) for node_id, (taken, index) in self._taken if taken == blob_id)
