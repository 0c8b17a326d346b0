"""Checking a checkpoint where it lies: every fragment of it is read and compared by its own node.

A bad copy of a blob that has a better one is no damage: it is taken off the record, and replaced by repair (I5). A
checkpoint is damaged when a blob has no other copy left.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from sdrs_core.checkpoints import Blob, Holder, Save, Shard, Verdict
from sdrs_core.cluster import Node, NodeState
from sdrs_core.errors import NotFoundError, SdrsError
from sdrs_core.ids import BlobId, JobName, NodeId, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.holders import HolderRecords, Removal, find_blob
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Stored
from sdrs_storaged.logs import get_log

log = get_log("verifier")


@dataclass(frozen=True, slots=True)
class FragmentCheck:
    checked_bytes: int
    verdict: Verdict | None  # None while it goes on
    detail: str


class FragmentVerifier(Protocol):
    """The other side is ``rpc.node_client``."""

    def verify_fragment(
        self, node: Node, blob_id: BlobId, index: int, expected_hash: str
    ) -> AsyncIterator[FragmentCheck]: ...


@dataclass(frozen=True, slots=True)
class Problem:
    blob_id: BlobId
    rank: int
    node_id: NodeId
    text: str
    undecided: bool
    # There is another copy, and this one no longer counts.
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class _Finding:
    """Of one holder's copy; without a text it is good."""

    holder: Holder
    text: str
    undecided: bool

    @property
    def is_bad(self) -> bool:
        return bool(self.text) and not self.undecided


@dataclass(frozen=True, slots=True)
class Progress:
    # Each blob is counted once, however many copies of it are read.
    checked_bytes: int
    total_bytes: int
    checked_blobs: int
    problems: tuple[Problem, ...]
    checkpoint: Save | None  # set on the last one


class Verifier:
    def __init__(
        self,
        catalog: Catalog,
        members: Members,
        holders: HolderRecords,
        nodes: FragmentVerifier,
        *,
        poke_repair: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._members = members
        self._holders = holders
        self._nodes = nodes
        self._poke_repair = poke_repair

    async def verify(self, job: JobName, step: int) -> AsyncIterator[Progress]:
        """Progress, blob by blob; at the end the checkpoint's mark of damage is set or lifted by what was found."""
        save = (await self._catalog.get(job, step)).value
        checked_bytes = checked_blobs = 0
        problems: list[Problem] = []
        after, more = "", True
        while more:
            shards, more = await self._catalog.shards(save.save_id, after=after, limit=100)
            for stored in shards:
                after = stored.key
                for blob in stored.value.blobs:
                    findings: list[_Finding] = []
                    async for blob_bytes in self._read_copies(blob, _counted(blob), findings):
                        yield Progress(
                            checked_bytes + blob_bytes, save.size_bytes, checked_blobs, tuple(problems), None
                        )
                    problems += await self._judge(stored.value, blob, findings)
                    checked_bytes += blob.size_bytes
                    checked_blobs += 1
        certain = [problem for problem in problems if not problem.undecided and not problem.replaced]
        if certain or not any(problem.undecided for problem in problems):
            save = await self._catalog.mark_damage(job, step, save.save_id, _damage_text(certain))
        yield Progress(checked_bytes, save.size_bytes, checked_blobs, tuple(problems), save)

    async def check_reported(
        self, job: JobName, step: int, save_id: SaveId, rank: int, blob_id: BlobId, node_id: str = ""
    ) -> Save:
        """A reader says that a blob is bad, on ``node_id`` if it can tell.

        Its word moves nothing: the holder looks itself, and quarantines what is bad.
        """
        stored = await self._catalog.get(job, step)
        if stored.value.save_id != save_id:
            return stored.value
        return await self._inspect(stored, rank, blob_id, node_id)

    async def inspect(self, stored: Stored[Save], rank: int, blob_id: BlobId) -> None:
        """Every copy of a blob, because repair cannot get it from any of them."""
        await self._inspect(stored, rank, blob_id, "")

    async def _inspect(self, stored: Stored[Save], rank: int, blob_id: BlobId, node_id: str) -> Save:
        save = stored.value
        shard = await self._catalog.shard(save.save_id, rank)
        blob = find_blob(shard, blob_id)
        if blob is None:
            return save
        holders, findings = _counted(blob), list[_Finding]()
        named = [holder for holder in holders if holder.node_id == node_id]
        async for _ in self._read_copies(blob, named or holders, findings):
            pass
        if named and any(finding.is_bad for finding in findings):
            # Is there a better one? Only then this one is dispensable.
            others = [holder for holder in holders if holder not in named]
            async for _ in self._read_copies(blob, others, findings):
                pass
        problems = await self._judge(shard, blob, findings)
        certain = [problem for problem in problems if not problem.undecided and not problem.replaced]
        if not certain:
            return save
        damage = _damage_text(certain)
        log.error("checkpoint_damaged", job=save.job, step=save.step, damage=damage)
        marked = await self._catalog.amend(stored.key, save.save_id, lambda known: replace(known, damage=damage))
        return marked or save

    async def _read_copies(self, blob: Blob, holders: Sequence[Holder], findings: list[_Finding]) -> AsyncIterator[int]:
        """Bytes of the blob, as far as all its copies are read; ``findings`` gets one entry for each."""
        for done, holder in enumerate(holders):
            finding = _Finding(holder, "", False)
            async with aclosing(self._check_fragment(blob, holder)) as checks:
                async for checked_bytes, text, undecided in checks:
                    yield (done * blob.size_bytes + min(checked_bytes, blob.size_bytes)) // len(holders)
                    if text:
                        finding = _Finding(holder, text, undecided)
            findings.append(finding)

    async def _judge(self, shard: Shard, blob: Blob, findings: Sequence[_Finding]) -> list[Problem]:
        """A copy that is bad while another is not goes off the record, never the last one (I5, I7)."""
        problems = []
        is_dispensable = any(not finding.is_bad for finding in findings)
        for finding in findings:
            if not finding.text:
                continue
            holder = finding.holder
            problem = Problem(blob.id, shard.rank, holder.node_id, finding.text, finding.undecided)
            if finding.is_bad:
                outcome = await self._take_off(shard, blob, holder, is_dispensable)
                if outcome is Removal.MOVED:
                    continue  # dropped meanwhile, by the book
                if outcome is Removal.REMOVED:
                    text = f"{finding.text}; there is another copy, and this one is being replaced"
                    problem = replace(problem, text=text, replaced=True)
            problems.append(problem)
        return problems

    async def _take_off(self, shard: Shard, blob: Blob, holder: Holder, is_dispensable: bool) -> Removal:
        shard_key = keys.shard(shard.save_id, shard.rank)
        if not is_dispensable:
            # Nothing better is left: all stay on record, for whoever can save something of them.
            return Removal.LAST if await self._holders.has(shard_key, blob.id, holder) else Removal.MOVED
        outcome = await self._holders.remove(shard_key, blob.id, holder)
        if outcome is Removal.REMOVED:
            log.warning("bad_copy_removed", blob=blob.id, node=holder.node_id)
            self._poke_repair()
        return outcome

    async def _check_fragment(self, blob: Blob, holder: Holder) -> AsyncGenerator[tuple[int, str, bool], None]:
        try:
            node = self._members.node(holder.node_id)
        except NotFoundError as error:
            yield 0, error.message, True
            return
        if node.state is not NodeState.UP:
            yield 0, f"node {node.id} is down, so its fragment could not be looked at", True
            return
        try:
            verdict: Verdict | None = None
            async for check in self._nodes.verify_fragment(node, blob.id, holder.fragment_index, holder.fragment_hash):
                verdict = check.verdict
                if verdict is Verdict.MISSING and holder.disk_id not in {disk.id for disk in node.disks}:
                    # Not lost, as far as anybody knows: its disk may come back.
                    yield 0, f"disk {holder.disk_id} of node {node.id} is not there now: is it mounted?", True
                    continue
                bad = verdict is not None and verdict is not Verdict.OK
                yield check.checked_bytes, f"{verdict}: {check.detail}" if bad else "", False
            if verdict is None:
                yield 0, f"node {node.id} gave no verdict", True
        except SdrsError as error:
            yield 0, error.message, True


def _counted(blob: Blob) -> list[Holder]:
    return [holder for holder in blob.holders if not holder.dropping]


def _damage_text(problems: list[Problem]) -> str:
    if not problems:
        return ""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    verdict, _, detail = first.text.partition(": ")
    blob = "" if first.blob_id in detail else f"blob {first.blob_id}: "
    # Up to the first colon it is a summary, which tables show alone.
    return f"rank {first.rank} is {verdict} on node {first.node_id}{more}: {blob}{detail}"[:1000]
