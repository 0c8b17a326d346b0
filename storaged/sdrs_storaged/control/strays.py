"""Copies that are on no record, found when all on record are out of reach.

A copy was made and never recorded, because its controller died in between; a node left the group in mid-save and kept
what it had. Before a checkpoint counts as lost, whoever is up is asked for it, and a good copy goes on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.errors import SdrsError, StaleTermError
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.repair import Stock
from sdrs_storaged.control.claims import Claims, FragmentName
from sdrs_storaged.control.copier import CopyCommands, HeldFragment
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.members import Members
from sdrs_storaged.logs import get_log

log = get_log("strays")

_LOOKUP_BATCH = 500


class Strays:
    def __init__(self, members: Members, holders: HolderRecords, nodes: CopyCommands, claims: Claims) -> None:
        self._members = members
        self._holders = holders
        self._nodes = nodes
        self._claims = claims

    async def adopt(self, lost: Sequence[tuple[str, Blob]], stocks: Mapping[NodeId, Stock]) -> set[BlobId]:
        """Of ``lost`` (the key of a shard, one of its blobs), those of which a good copy is on record now."""
        adopted: set[BlobId] = set()
        for node_id in sorted(name for name, stock in stocks.items() if stock.liveness is Liveness.UP):
            # By name what a good one is: those on record are all of a kind.
            wanted = {
                (blob.id, holder.fragment_index): (shard_key, holder)
                for shard_key, blob in lost
                for holder in blob.holders
                if blob.id not in adopted and all(known.node_id != node_id for known in blob.holders)
            }
            names = list(wanted)
            for start in range(0, len(names), _LOOKUP_BATCH):
                # What is found here must not be dropped as an orphan before it is on record.
                with self._claims.take(node_id, names[start : start + _LOOKUP_BATCH]) as mine:
                    for held in await self._ask(node_id, mine):
                        shard_key, known = wanted[(held.blob_id, held.fragment_index)]
                        if held.hash == known.fragment_hash and await self._record(shard_key, node_id, held):
                            adopted.add(held.blob_id)
        return adopted

    async def _ask(self, node_id: NodeId, names: list[FragmentName]) -> list[HeldFragment]:
        if not names:
            return []
        try:
            return await self._nodes.lookup_fragments(self._members.node(node_id), names)
        except StaleTermError:
            raise
        except SdrsError as error:
            log.warning("strays_not_looked_for", node=node_id, why=error.message)
            return []

    async def _record(self, shard_key: str, node_id: NodeId, held: HeldFragment) -> bool:
        holder = Holder(node_id, held.disk_id, held.fragment_index, held.hash)
        recorded = await self._holders.add(shard_key, held.blob_id, holder)
        log.warning("stray_found", blob=held.blob_id, node=node_id, recorded=recorded)
        return recorded
