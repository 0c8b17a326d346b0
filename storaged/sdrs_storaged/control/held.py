"""What the catalog has on which node and disk: as the last survey found, and with what repair did since."""

from __future__ import annotations

from dataclasses import dataclass

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.ids import DiskId, NodeId
from sdrs_core.stocks import fragment_bytes


@dataclass(frozen=True, slots=True)
class Amount:
    count: int = 0
    size_bytes: int = 0

    def changed(self, count: int, size_bytes: int) -> Amount:
        return Amount(self.count + count, self.size_bytes + size_bytes)


class Held:
    """It grows with nodes and disks only (I10)."""

    def __init__(self, *, is_complete: bool = False) -> None:
        # A survey that broke off knows only a part.
        self.is_complete = is_complete
        self._by_node: dict[NodeId, Amount] = {}
        self._by_disk: dict[DiskId, Amount] = {}
        self._node_of: dict[DiskId, NodeId] = {}

    def add(self, blob: Blob, holder: Holder) -> None:
        self._change(blob, holder, 1)

    def remove(self, blob: Blob, holder: Holder) -> None:
        self._change(blob, holder, -1)

    def _change(self, blob: Blob, holder: Holder, count: int) -> None:
        size_bytes = count * fragment_bytes(blob, holder.fragment_index)
        self._by_node[holder.node_id] = self.on_node(holder.node_id).changed(count, size_bytes)
        self._by_disk[holder.disk_id] = self.on_disk(holder.disk_id).changed(count, size_bytes)
        self._node_of[holder.disk_id] = holder.node_id

    def on_node(self, node_id: NodeId) -> Amount:
        return self._by_node.get(node_id, Amount())

    def on_disk(self, disk_id: DiskId) -> Amount:
        return self._by_disk.get(disk_id, Amount())

    def disks_of(self, node_id: NodeId) -> set[DiskId]:
        """Those of this node that something is on record for, whether the node reports them or not."""
        return {disk_id for disk_id, owner in self._node_of.items() if owner == node_id and self.on_disk(disk_id).count}
