"""Which of a node's fragments no record names: the other direction of the catalog."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from sdrs_core.checkpoints import Shard
from sdrs_core.cluster import NodeState
from sdrs_core.ids import BlobId, DiskId, NodeId, SaveId
from sdrs_core.soundness import counted, is_readable
from sdrs_storaged.control import keys
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records

# A node's fragments, each with the save that it was written for.
Named = dict[FragmentName, SaveId]


class References:
    def __init__(self, records: Records, members: Members) -> None:
        self._records = records
        self._members = members

    async def unnamed(self, node_id: NodeId, fragments: Mapping[FragmentName, SaveId]) -> Named:
        """Those that no record names as this node's own; those of pending saves have none yet, and are not asked for
        (P13).
        """
        return await self._unnamed(node_id, fragments, sparing=False)

    async def unnamed_and_free(self, node_id: NodeId, fragments: Mapping[FragmentName, SaveId]) -> Named:
        """Of those, the ones that nobody can need. I7: while what is on record for a blob does not bring it back, a
        fragment that is on no record may be the one that does.
        """
        return await self._unnamed(node_id, fragments, sparing=True)

    async def _unnamed(self, node_id: NodeId, fragments: Mapping[FragmentName, SaveId], *, sparing: bool) -> Named:
        unnamed = dict(fragments)
        by_blob: defaultdict[BlobId, set[FragmentName]] = defaultdict(set)
        by_save: defaultdict[SaveId, set[FragmentName]] = defaultdict(set)
        for name, save_id in fragments.items():
            by_blob[name[0]].add(name)
            by_save[save_id].add(name)
        disks = self._disks_in_reach() if sparing else frozenset()
        for save_id, names_of_save in by_save.items():
            # Of blobs that are on no record: they may be of the same content as one that is, in another form (P2).
            strangers = set(names_of_save)
            is_whole = True
            async for shard in self._records.all(keys.shards(save_id), Shard):
                for blob in shard.value.all_blobs:
                    names = by_blob.get(blob.id, set())
                    strangers -= names
                    mine = {(blob.id, h.fragment_index) for h in blob.holders if h.node_id == node_id}
                    readers = (h for h in counted(blob) if (h.node_id, h.disk_id) in disks)
                    is_wanted = sparing and not shard.value.is_in_backup_only(blob)
                    is_short = is_wanted and not is_readable(blob, readers)
                    is_whole &= not is_short
                    for name in names if is_short else names & mine:
                        unnamed.pop(name, None)
            for name in () if is_whole else strangers:
                unnamed.pop(name, None)
        return unnamed

    def _disks_in_reach(self) -> frozenset[tuple[NodeId, DiskId]]:
        nodes = (node for node in self._members.nodes() if node.state is NodeState.UP)
        return frozenset((node.id, disk.id) for node in nodes for disk in node.disks)
