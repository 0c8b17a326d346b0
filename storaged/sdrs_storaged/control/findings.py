"""What follows from looks at fragments: the bad ones go off the record while others bring the blob back (I5, I7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sdrs_core.checkpoints import Blob, Holder, Shard, Verdict
from sdrs_core.errors import NotFoundError
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.soundness import counted, judge
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.holders import HolderRecords, Removal
from sdrs_storaged.control.looks import Finding
from sdrs_storaged.logs import get_log

log = get_log("findings")

_MAX_DAMAGE_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one fragment."""

    blob_id: BlobId
    rank: int
    node_id: NodeId
    text: str
    undecided: bool
    verdict: Verdict | None = None
    # It can be made again from others, and no longer counts.
    replaced: bool = False
    # Nothing brings its blob back.
    is_fatal: bool = False


def forms_of(shard: Shard) -> list[list[Blob]]:
    """The blobs of a shard, in their order, each with its mirrors."""
    by_ordinal: dict[int, list[Blob]] = {}
    for blob in shard.all_blobs:
        by_ordinal.setdefault(blob.ordinal, []).append(blob)
    return list(by_ordinal.values())


class Judge:
    def __init__(self, catalog: Catalog, holders: HolderRecords, *, poke_repair: Callable[[], None]) -> None:
        self._catalog = catalog
        self._holders = holders
        self._poke_repair = poke_repair

    async def settle(self, shard: Shard, forms: Sequence[Blob], findings: Sequence[Finding]) -> list[Problem] | None:
        """``forms``: one blob with its mirrors, all of whose counted holders were looked at.

        None: it would be lost by what was found, but who holds it has changed meanwhile, so it has to be looked at
        again.
        """
        if all(shard.is_in_backup_only(blob) for blob in forms):
            return []
        judgement = judge(forms, {(found.blob.id, found.holder): found.look for found in findings})
        if judgement.is_lost and not await self._is_unchanged(shard, forms):
            return None
        problems = [_nowhere(shard, forms[0])] if judgement.is_lost and not findings else []
        for found in findings:
            if not found.text:
                continue
            removal = Removal.LAST
            if (found.blob.id, found.holder) in judgement.dispensable:
                removal = await self._take_off(shard, found.blob, found.holder)
            if removal is Removal.MOVED:
                continue  # dropped meanwhile, by the book
            is_replaced = removal is Removal.REMOVED
            problems.append(
                Problem(
                    found.blob.id,
                    shard.rank,
                    found.holder.node_id,
                    f"{found.text}; others bring it back, and it is being replaced" if is_replaced else found.text,
                    undecided=found.verdict is None,
                    verdict=found.verdict,
                    replaced=is_replaced,
                    is_fatal=judgement.is_lost and found.verdict is not None,
                )
            )
        if damage := damage_text(problems):
            await self._catalog.mark_referring(shard.save_id, shard.rank, forms[0].ordinal, damage)
        return problems

    async def _is_unchanged(self, shard: Shard, forms: Sequence[Blob]) -> bool:
        try:
            now = await self._catalog.shard(shard.save_id, shard.rank)
        except NotFoundError:
            return False
        known = {blob.id: counted(blob) for blob in now.all_blobs if blob.ordinal == forms[0].ordinal}
        return known == {blob.id: counted(blob) for blob in forms}

    async def _take_off(self, shard: Shard, blob: Blob, holder: Holder) -> Removal:
        removal = await self._holders.remove(keys.shard(shard.save_id, shard.rank), blob.id, holder)
        if removal is Removal.REMOVED:
            log.warning("bad_fragment_removed", blob=blob.id, index=holder.fragment_index, node=holder.node_id)
            self._poke_repair()
        return removal


def _nowhere(shard: Shard, blob: Blob) -> Problem:
    text = f"{Verdict.MISSING}: no node is on record for blob {blob.id}"
    return Problem(blob.id, shard.rank, NodeId(""), text, undecided=False, verdict=Verdict.MISSING, is_fatal=True)


def damage_text(problems: Sequence[Problem]) -> str:
    """In a sentence, what is lost for good; "": nothing is."""
    fatal = [problem for problem in problems if problem.is_fatal]
    if not fatal:
        return ""
    first = fatal[0]
    more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
    verdict, _, detail = first.text.partition(": ")
    blob = "" if first.blob_id in detail else f"blob {first.blob_id}: "
    where = f" on node {first.node_id}" if first.node_id else ""
    # Up to the first colon it is a summary, which tables show alone.
    return f"rank {first.rank} is {verdict}{where}{more}: {blob}{detail}"[:_MAX_DAMAGE_CHARS]
