"""What nodes have by their own word, not what they are on record for: a recall is asked for when these differ."""

from __future__ import annotations

from collections.abc import Sequence

from sdrs_core.checkpoints import Blob, Shard
from sdrs_core.errors import SdrsError, StaleTermError
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.mirroring import twin_of
from sdrs_core.soundness import is_readable
from sdrs_core.whereabouts import readable_holders
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.copier import CopyCommands
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.stocks import Stocks
from sdrs_storaged.logs import get_log

log = get_log("recall")

_LOOKUP_BATCH = 500

# On which node, which one, and its hash.
_Fragment = tuple[NodeId, FragmentName, str]


class Presence:
    def __init__(self, members: Members, stocks: Stocks, nodes: CopyCommands) -> None:
        self._members = members
        self._stocks = stocks
        self._nodes = nodes

    async def readable(self, blobs: Sequence[tuple[Shard, Blob]]) -> set[BlobId]:
        """Those of which nodes that are up have enough, here or in the pool that mirrors theirs."""
        stocks = self._stocks.now()
        forms = {blob.id: [blob, *filter(None, [twin_of(shard, blob)])] for shard, blob in blobs}
        in_reach = {form.id: readable_holders(form, stocks) for of_blob in forms.values() for form in of_blob}
        names: dict[NodeId, list[FragmentName]] = {}
        for form_id, holders in in_reach.items():
            for holder in holders:
                names.setdefault(holder.node_id, []).append((form_id, holder.fragment_index))
        there: set[_Fragment] = set()
        for node_id, wanted in names.items():
            there |= await self._ask(node_id, wanted)

        def is_there(form: Blob) -> bool:
            return is_readable(
                form,
                (h for h in in_reach[form.id] if (h.node_id, (form.id, h.fragment_index), h.fragment_hash) in there),
            )

        return {blob_id for blob_id, of_blob in forms.items() if any(map(is_there, of_blob))}

    async def _ask(self, node_id: NodeId, names: Sequence[FragmentName]) -> set[_Fragment]:
        found: set[_Fragment] = set()
        for start in range(0, len(names), _LOOKUP_BATCH):
            try:
                batch = names[start : start + _LOOKUP_BATCH]
                held = await self._nodes.lookup_fragments(self._members.node(node_id), batch)
            except StaleTermError:
                raise
            except SdrsError as error:
                log.warning("presence_not_told", node=node_id, why=error.message)
                return found
            found |= {(node_id, (one.blob_id, one.fragment_index), one.hash) for one in held}
        return found
