"""Fragments that are on no record, found when too many on record are out of reach.

One was made and never recorded, because its controller died in between; a node left the group in mid-save and kept
what it had. Before a checkpoint counts as lost, whoever is up is asked for it, and what is good goes on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import parse_code
from sdrs_core.errors import SdrsError, StaleTermError
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.stocks import Stock
from sdrs_core.whereabouts import readable_holders
from sdrs_storaged.control.claims import Claims, FragmentName
from sdrs_storaged.control.copier import CopyCommands, HeldFragment, difference
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
        """Of ``lost`` (the key of a shard, one of its blobs), those that what was found, and is on record now, brings
        back.
        """
        keys_of = {blob.id: shard_key for shard_key, blob in lost}
        blobs = {blob.id: blob for _, blob in lost}
        for node_id in sorted(name for name, stock in stocks.items() if stock.liveness is Liveness.UP):
            names = [name for blob in blobs.values() for name in _wanted(blob, node_id, stocks)]
            for start in range(0, len(names), _LOOKUP_BATCH):
                # What is found here must not be dropped as an orphan before it is on record.
                with self._claims.take(node_id, names[start : start + _LOOKUP_BATCH]) as mine:
                    for held in await self._ask(node_id, mine):
                        blob = blobs[held.blob_id]
                        holder = Holder(node_id, held.disk_id, held.fragment_index, held.hash)
                        if difference(held, blob, held.fragment_index):
                            continue
                        if await self._record(keys_of[blob.id], blob, holder):
                            blobs[blob.id] = replace(blob, holders=(*blob.holders, holder))
        return {blob.id for _, blob in lost if blobs[blob.id] != blob and readable_holders(blobs[blob.id], stocks)}

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

    async def _record(self, shard_key: str, blob: Blob, holder: Holder) -> bool:
        recorded = await self._holders.add(shard_key, blob.id, holder)
        log.warning("stray_found", blob=blob.id, node=holder.node_id, index=holder.fragment_index, recorded=recorded)
        return recorded


def _wanted(blob: Blob, node_id: NodeId, stocks: Mapping[NodeId, Stock]) -> list[FragmentName]:
    """What this node may have of it beside what it is on record for."""
    if readable_holders(blob, stocks):
        return []
    code = parse_code(blob.code)
    mine = {holder.fragment_index for holder in blob.holders if holder.node_id == node_id}
    return [(blob.id, index) for index in range(code.total if code else 1) if index not in mine]
