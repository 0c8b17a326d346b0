"""Checking a checkpoint where it lies: every fragment of it is read and compared by its own node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from sdrs_core.checkpoints import Blob, Holder, Save, Shard, Verdict
from sdrs_core.cluster import Node, NodeState
from sdrs_core.errors import NotFoundError, SdrsError
from sdrs_core.ids import BlobId, JobName, NodeId, SaveId
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.members import Members


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


@dataclass(frozen=True, slots=True)
class Progress:
    checked_bytes: int
    total_bytes: int
    checked_blobs: int
    problems: tuple[Problem, ...]
    checkpoint: Save | None  # set on the last one


class Verifier:
    def __init__(self, catalog: Catalog, members: Members, nodes: FragmentVerifier) -> None:
        self._catalog = catalog
        self._members = members
        self._nodes = nodes

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
                    async for blob_bytes, problem in self._check_blob(stored.value, blob):
                        yield Progress(
                            checked_bytes + blob_bytes, save.size_bytes, checked_blobs, tuple(problems), None
                        )
                        if problem:
                            problems.append(problem)
                    checked_bytes += blob.size_bytes
                    checked_blobs += 1
        certain = [problem for problem in problems if not problem.undecided]
        if certain or not problems:
            save = await self._catalog.mark_damage(job, step, save.save_id, _damage_text(certain))
        yield Progress(checked_bytes, save.size_bytes, checked_blobs, tuple(problems), save)

    async def check_reported(self, job: JobName, step: int, save_id: SaveId, rank: int, blob_id: BlobId) -> Save:
        """A reader says that a blob is bad.

        Its word moves nothing: the holder looks itself, and quarantines what is bad.
        """
        save = (await self._catalog.get(job, step)).value
        if save.save_id != save_id:
            return save
        shard = await self._catalog.shard(save_id, rank)
        problems = []
        for blob in shard.blobs:
            if blob.id == blob_id:
                problems = [
                    problem async for _, problem in self._check_blob(shard, blob) if problem and not problem.undecided
                ]
        if problems:
            save = await self._catalog.mark_damage(job, step, save_id, _damage_text(problems))
        return save

    async def _check_blob(self, shard: Shard, blob: Blob) -> AsyncIterator[tuple[int, Problem | None]]:
        for holder in blob.holders:
            async for checked_bytes, text, undecided in self._check_fragment(blob, holder):
                problem = Problem(blob.id, shard.rank, holder.node_id, text, undecided) if text else None
                yield checked_bytes, problem

    async def _check_fragment(self, blob: Blob, holder: Holder) -> AsyncIterator[tuple[int, str, bool]]:
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


def _damage_text(problems: list[Problem]) -> str:
    if not problems:
        return ""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    verdict, _, detail = first.text.partition(": ")
    blob = "" if first.blob_id in detail else f"blob {first.blob_id}: "
    # Up to the first colon it is a summary, which tables show alone.
    return f"rank {first.rank} is {verdict} on node {first.node_id}{more}: {blob}{detail}"[:1000]
