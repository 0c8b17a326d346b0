"""What must be true of each blob, its holders and their fragments, whenever one of them changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sdrs_core.checkpoints import Blob, Holder, Save, SaveState, Shard
from sdrs_core.ids import BlobId, NodeId, SaveId
from tests.simulation.ledger import Ledger
from tests.simulation.platter import Held
from tests.simulation.standings import survives_any, why_not_worth


@dataclass
class BlobChecks(Ledger):
    fail: Callable[[str], None] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._codes: dict[BlobId, str] = {}

    # On record

    def check_blobs(self, known: Shard | None, shard: Shard) -> None:
        """A shard's record has changed."""
        before = {blob.id: blob for blob in known.all_blobs} if known else {}
        for blob in shard.all_blobs:
            self._blob_changed(blob, before.get(blob.id), is_receipt=known is None)
        if known and self.counts(shard.save_id):
            for blob in shard.blobs:
                if not self.is_kept(shard, blob):
                    self.fail(f"I4: too little of blob {blob.id} is left that counts, and its save is not condemned")
                if blob.id in before:
                    self._check_let_go(before[blob.id], blob)
                else:
                    self._check_swapped(next(old for old in known.blobs if old.ordinal == blob.ordinal), blob)

    def _blob_changed(self, blob: Blob, before: Blob | None, *, is_receipt: bool) -> None:
        if self._codes.setdefault(blob.id, blob.code) != blob.code:
            self.fail(f"P2: blob {blob.id} was {self._codes[blob.id]}, and is {blob.code} now")
        if len({(holder.node_id, holder.fragment_index) for holder in blob.holders}) < len(blob.holders):
            self.fail(f"P2: blob {blob.id} names one fragment of a node twice")
        for holder in blob.holders:
            if holder.dropping or (before and holder in before.holders):
                continue
            if not self.had(blob, holder, on_this_disk=True):
                self.fail(
                    f"I1: node {holder.node_id} is recorded for fragment {holder.fragment_index} of blob {blob.id}, "
                    "and it is not durable there"
                )
            # A receipt may name a node that leaves: then it is not committed.
            if not is_receipt and (holder.node_id not in self.nodes or holder.node_id in self.removing):
                self.fail(f"P7: node {holder.node_id} is recorded for blob {blob.id}, and it was removed")

    def _check_let_go(self, before: Blob, after: Blob) -> None:
        """I7: what is let go (P14) costs nobody the loss of a domain that could be borne before."""
        domains, counted = self.domains(), [holder for holder in after.holders if not holder.dropping]
        kept = {(holder.node_id, holder.fragment_index) for holder in counted}
        dropped = [h for h in after.holders if h.dropping and replace(h, dropping=False) in before.holders]
        left = [h for h in before.holders if not h.dropping and (h.node_id, h.fragment_index) in kept]
        if dropped and not survives_any(after, left, domains):
            whole = [holder for holder in before.holders if not holder.dropping]
            if survives_any(before, whole, domains):
                self.fail(f"I7: node {dropped[0].node_id} lets blob {after.id} go, which then hangs on one domain")

    def _check_swapped(self, old: Blob, new: Blob) -> None:
        """P2: the same content in another form, and no less safe."""
        if (old.size_bytes, old.hash) != (new.size_bytes, new.hash):
            self.fail(f"P2: blob {old.id} was replaced by {new.id}, which has other content")
        safe = [survives_any(blob, self.holders_of(blob), self.domains()) for blob in (old, new)]
        if safe == [True, False]:
            self.fail(f"I7: blob {old.id} was replaced by {new.id}, which hangs on one domain")

    def check_claim(self, save: Save, blob: Blob, counting: list[Holder]) -> None:
        domains = self.domains()
        claims = [
            why_not_worth(save.level, blob, pool, counting, domains, degraded=save.degraded)
            for pool in self.former_pools[save.pool]
        ]
        if all(claims):
            self.fail(
                f"I6: {save.title} claims {save.level} (degraded: {save.degraded}), but blob {blob.id}: {claims[-1]}"
            )

    # On disks

    def dropped(self, node_id: NodeId, held: Held) -> None:
        fragment = held.stored
        if not self.counts(fragment.save_id) or self._has_other(node_id, held):
            return
        recorded = False
        for shard in self.shards.get(fragment.save_id, {}).values():
            for blob in shard.all_blobs:
                if blob.id == fragment.blob_id:
                    recorded = True
                    if any(not h.dropping and _is_it(h, node_id, held) for h in blob.holders):
                        self.fail(f"P14: node {node_id} dropped blob {blob.id}, for which it is recorded")
        is_pending = any(
            save.save_id == fragment.save_id and save.state is SaveState.PENDING for save in self.saves.values()
        )
        if is_pending and not recorded:
            self.fail(
                f"P13: node {node_id} dropped blob {fragment.blob_id} of save {fragment.save_id}, which is pending"
            )
        self._check_kept(fragment.save_id, f"node {node_id} dropped blob {fragment.blob_id}")

    def quarantined(self, node_id: NodeId, held: Held) -> None:
        """What is sound, true and on record is not set aside on anybody's word."""
        if held.is_sound and self.is_true(held) is not False and not self._has_other(node_id, held):
            for shard in self.shards.get(held.stored.save_id, {}).values():
                for blob in shard.all_blobs:
                    if blob.id == held.stored.blob_id and any(_is_it(h, node_id, held) for h in blob.holders):
                        self.fail(f"I7: node {node_id} set a good fragment of blob {blob.id} aside")

    def _has_other(self, node_id: NodeId, held: Held) -> bool:
        """The same fragment on another disk of the node."""
        return any(
            other.stored.fragment_hash == held.stored.fragment_hash
            for other in self.platters[node_id].find(*held.stored.key)
        )

    def _check_kept(self, save_id: SaveId, what: str) -> None:
        for shard in self.shards.get(save_id, {}).values():
            for blob in shard.blobs:
                if not self.is_kept(shard, blob):
                    self.fail(f"I7: {what}, and what is left of blob {blob.id} does not bring it back")


def _is_it(holder: Holder, node_id: NodeId, held: Held) -> bool:
    return (holder.node_id, holder.fragment_index, holder.fragment_hash) == (
        node_id,
        held.stored.fragment_index,
        held.stored.fragment_hash,
    )
