"""What a node that came (back) up should hold, against what it has.

The repairer's scan of the catalog passes by here: nodes that are due are asked about each of their fragments, a page
of shards at a time. What a node still has counts at once. What it lacks although the disk is there is taken off the
record, never the last of it, and then is one too few like any other. A disk that is absent decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Holder, Save, Shard
from sdrs_core.errors import SdrsError, StaleTermError
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.soundness import counted, is_readable
from sdrs_core.stocks import Stock
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.copier import CopyCommands, HeldFragment
from sdrs_storaged.control.holders import HolderRecords, Removal
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.logs import get_log

log = get_log("roll_call")

_LOOKUP_BATCH = 500


class RollCall:
    def __init__(
        self,
        records: Records,
        members: Members,
        catalog: Catalog,
        holders: HolderRecords,
        nodes: CopyCommands,
        clock: Clock,
    ) -> None:
        self._records = records
        self._members = members
        self._catalog = catalog
        self._holders = holders
        self._nodes = nodes
        self._clock = clock
        self._up: frozenset[NodeId] = frozenset()
        # The disks of those who are up, without what was given up.
        self._disks: dict[NodeId, frozenset[DiskId]] = {}
        # To be asked in the next scan; being asked in this one; asked in this one without an answer.
        self._due: set[NodeId] = set()
        self._asking: set[NodeId] = set()
        self._failed: set[NodeId] = set()
        # A node or a disk came or went since the scan before.
        self.has_changed = False
        self._broke_off = False
        # Who lost which blob on the page looked at last: as good as any other node to get it again.
        self.lost: dict[BlobId, NodeId] = {}
        # In this scan, for answers of nodes: that is no burden for anybody, and says nothing about the catalog.
        self.waited_seconds = 0.0

    def call(self, node_id: NodeId) -> None:
        """It came back, or was caught lacking something."""
        self._due.add(node_id)

    def begin(self, stocks: Mapping[NodeId, Stock]) -> None:
        self.waited_seconds = 0.0
        up = frozenset(node_id for node_id, stock in stocks.items() if stock.liveness is Liveness.UP)
        disks = {node_id: stocks[node_id].disks - stocks[node_id].retired_disks for node_id in up}
        # A scan that broke off has not told everybody who should know.
        self.has_changed = up != self._up or disks != self._disks or self._broke_off
        # What is on a disk that came (back), or is to be used after all, is compared like what a node came back with.
        returned = {node_id for node_id in up if disks[node_id] - self._disks.get(node_id, frozenset())}
        self._due |= (up - self._up) | returned
        self._up, self._disks = up, disks
        self._asking, self._due = self._due & up, self._due - up
        self._failed = set()

    def end(self, *, complete: bool) -> None:
        unanswered = self._failed if complete else self._asking
        self._due |= unanswered
        self._broke_off = self.has_changed and not complete
        self._asking = set()

    def has_answered(self, node_id: NodeId) -> bool:
        """What it is on record for was compared since it came up."""
        return node_id not in self._failed and node_id not in self._due

    async def check(
        self, save: Stored[Save], shards: Sequence[Stored[Shard]], stocks: Mapping[NodeId, Stock]
    ) -> list[Stored[Shard]]:
        """The shards as they are on record after what was found."""
        changed: set[str] = set()
        self.lost = {}
        for node_id in sorted(self._asking - self._failed):
            mine = [
                (stored, blob, holder)
                for stored in shards
                for blob in stored.value.all_blobs
                for holder in blob.holders
                if holder.node_id == node_id and not holder.dropping
            ]
            for start in range(0, len(mine), _LOOKUP_BATCH):
                batch = mine[start : start + _LOOKUP_BATCH]
                found = await self._ask(node_id, [(blob.id, holder.fragment_index) for _, blob, holder in batch])
                if found is None:
                    break
                for stored, blob, holder in batch:
                    held = found.get((blob.id, holder.fragment_index))
                    if await self._compare(save, stored, blob, holder, held, stocks[node_id]):
                        changed.add(stored.key)
        return [await self._read_again(stored) if stored.key in changed else stored for stored in shards]

    async def _ask(self, node_id: NodeId, names: list[FragmentName]) -> dict[FragmentName, HeldFragment] | None:
        asked_seconds = self._clock.monotonic_seconds()
        try:
            held = await self._nodes.lookup_fragments(self._members.node(node_id), names)
        except StaleTermError:
            raise
        except SdrsError as error:
            self._failed.add(node_id)
            log.warning("roll_call_unanswered", node=node_id, why=error.message)
            return None
        finally:
            self.waited_seconds += self._clock.monotonic_seconds() - asked_seconds
        return {(one.blob_id, one.fragment_index): one for one in held}

    async def _compare(
        self,
        save: Stored[Save],
        stored: Stored[Shard],
        blob: Blob,
        holder: Holder,
        held: HeldFragment | None,
        stock: Stock,
    ) -> bool:
        """True if the record was changed."""
        if held and held.hash == holder.fragment_hash:
            if held.disk_id == holder.disk_id:
                return False
            # It lies on another disk than the record says: that one counts (P2).
            return await self._holders.add(stored.key, blob.id, replace(holder, disk_id=held.disk_id))
        if held is None and not self._has_disk(holder, stock):
            return False  # it may come back, with all that is on it
        verdict = "missing" if held is None else "corrupt"
        outcome = await self._holders.remove(stored.key, blob.id, holder)
        if outcome is Removal.REMOVED:
            self.lost[blob.id] = holder.node_id
            log.warning("copy_lost", blob=blob.id, node=holder.node_id, index=holder.fragment_index, verdict=verdict)
        if outcome is Removal.LAST or (outcome is Removal.REMOVED and await self._is_lost(stored, blob)):
            await self._mark(save, stored.value.rank, blob, holder, verdict)
        return outcome is Removal.REMOVED

    async def _is_lost(self, stored: Stored[Shard], blob: Blob) -> bool:
        """Whether those on record are too few to bring the blob back, also those of its twin in another pool."""
        shard = (await self._read_again(stored)).value
        forms = [known for known in shard.all_blobs if known.ordinal == blob.ordinal]
        return not any(is_readable(known, counted(known)) for known in forms)

    def _has_disk(self, holder: Holder, stock: Stock) -> bool:
        """Before the question and after the answer: a disk that went away in between took the answer with it."""
        now = {disk.id for disk in self._members.node(holder.node_id).disks}
        return holder.disk_id in stock.disks and holder.disk_id in now

    async def _mark(self, save: Stored[Save], rank: int, blob: Blob, holder: Holder, verdict: str) -> None:
        damage = f"rank {rank} is {verdict} on node {holder.node_id}: nobody else on record brings blob {blob.id} back"

        def edit(known: Save) -> Save:
            return known if known.damage or known.evicted else replace(known, damage=damage)

        if await self._catalog.amend(save.key, save.value.save_id, edit) is not None and not save.value.damage:
            log.error("checkpoint_damaged", job=save.value.job, step=save.value.step, damage=damage)
        await self._catalog.mark_referring(save.value.save_id, rank, blob.ordinal, damage)

    async def _read_again(self, stored: Stored[Shard]) -> Stored[Shard]:
        return await self._records.get(stored.key, Shard) or stored
