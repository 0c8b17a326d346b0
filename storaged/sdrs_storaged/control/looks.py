"""Looking at fragments where they lie: by name, as their nodes have them, or block by block, as their nodes read them.

A look finds out; what follows from it is decided in ``findings``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sdrs_core.checkpoints import Blob, Holder, Verdict
from sdrs_core.cluster import Node, NodeState
from sdrs_core.codes import MIRROR, parse_code
from sdrs_core.errors import NotFoundError, SdrsError, StaleTermError
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.soundness import Look
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.copier import HeldFragment
from sdrs_storaged.control.members import Members

_LOOKUP_BATCH = 500

# A fragment of a blob, and who is on record for it.
Place = tuple[Blob, Holder]


@dataclass(frozen=True, slots=True)
class FragmentCheck:
    checked_bytes: int
    verdict: Verdict | None  # None while it goes on
    detail: str


class FragmentVerifier(Protocol):
    """The other side is ``rpc.node_client``."""

    def verify_fragment(
        self,
        node: Node,
        blob_id: BlobId,
        index: int,
        expected_hash: str,
        *,
        code: str = MIRROR,
        sources: Sequence[tuple[Node, Holder]] = (),
        max_bytes_per_second: int = 0,
    ) -> AsyncIterator[FragmentCheck]:
        """``sources``: who has the data fragments, so that a parity fragment is computed anew and compared (P9).
        ``max_bytes_per_second``: of this fragment's own bytes; 0: as fast as it goes.
        """
        ...


class FragmentLookup(Protocol):
    async def lookup_fragments(self, node: Node, names: Sequence[FragmentName]) -> list[HeldFragment]: ...


class FragmentLooks(FragmentVerifier, FragmentLookup, Protocol):
    """What is asked of nodes to find out how their fragments are."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one fragment; without a text it is good."""

    blob: Blob
    holder: Holder
    text: str = ""
    # None: nobody could look.
    verdict: Verdict | None = Verdict.OK
    # A parity fragment whose own checksums are right, and that could not be computed anew.
    is_unproven: bool = False

    @property
    def look(self) -> Look:
        if self.verdict is None:
            return Look.UNDECIDED
        return Look.GOOD if self.verdict is Verdict.OK else Look.BAD


class Reading(NamedTuple):
    """How far a reading came since it told last."""

    checked_bytes: int
    # With what was read of other fragments to compare.
    moved_bytes: int


class Looks:
    def __init__(self, members: Members, nodes: FragmentLooks) -> None:
        self._members = members
        self._nodes = nodes

    async def read(
        self, blob: Blob, holders: Sequence[Holder], findings: list[Finding], *, max_bytes_per_second: int = 0
    ) -> AsyncGenerator[Reading, None]:
        """Every block of these fragments; ``findings`` gets one for each.

        Data fragments come first: parity is computed from those that were found good.
        """
        for holder in sorted(holders, key=lambda holder: holder.fragment_index):
            sources, is_unproven = self._sources(blob, holder, findings)
            finding, done_bytes = Finding(blob, holder, f"node {holder.node_id} gave no verdict", None), 0
            # What is read of others counts as well.
            limit = max_bytes_per_second and max(1, max_bytes_per_second // (1 + len(sources)))
            async with aclosing(self._read_one(blob, holder, sources, limit)) as checks:
                async for checked_bytes, found in checks:
                    more_bytes = max(0, checked_bytes - done_bytes)
                    done_bytes += more_bytes
                    yield Reading(more_bytes, (1 + len(sources)) * more_bytes)
                    finding = found or finding
            if is_unproven and finding.verdict is Verdict.OK:
                finding = Finding(blob, holder, is_unproven=True)
            findings.append(finding)

    def _sources(
        self, blob: Blob, holder: Holder, findings: Sequence[Finding]
    ) -> tuple[list[tuple[Node, Holder]], bool]:
        """Whose data fragments prove a parity fragment; and whether it is one that cannot be proven now."""
        code = parse_code(blob.code)
        if code is None or holder.fragment_index < code.data:
            return [], False
        good = {
            found.holder.fragment_index: found.holder
            for found in findings
            if found.blob.id == blob.id and found.verdict is Verdict.OK
        }
        data = [good[index] for index in range(code.data) if index in good]
        if len(data) < code.data:
            return [], True
        return [(self._members.node(source.node_id), source) for source in data], False

    async def _read_one(
        self, blob: Blob, holder: Holder, sources: Sequence[tuple[Node, Holder]], max_bytes_per_second: int
    ) -> AsyncGenerator[tuple[int, Finding | None], None]:
        node = self._node_of(holder)
        if isinstance(node, str):
            yield 0, Finding(blob, holder, node, None)
            return
        whole_bytes = fragment_bytes(blob, holder.fragment_index)
        try:
            async for check in self._nodes.verify_fragment(
                node,
                blob.id,
                holder.fragment_index,
                holder.fragment_hash,
                code=blob.code,
                sources=sources,
                max_bytes_per_second=max_bytes_per_second,
            ):
                if check.verdict is None:
                    yield min(check.checked_bytes, whole_bytes), None
                elif check.verdict is Verdict.OK:
                    yield whole_bytes, Finding(blob, holder)
                elif check.verdict is Verdict.MISSING and self._may_come_back(holder, node):
                    text = f"disk {holder.disk_id} of node {node.id} is not there now: is it mounted?"
                    yield 0, Finding(blob, holder, text, None)
                else:
                    text = f"{check.verdict}: {check.detail}"
                    yield min(check.checked_bytes, whole_bytes), Finding(blob, holder, text, check.verdict)
        except StaleTermError:
            raise
        except SdrsError as error:
            yield 0, Finding(blob, holder, error.message, None)

    def _may_come_back(self, holder: Holder, node: Node) -> bool:
        """With its disk, which is not there now; unless an operator said that it will not."""
        known = {disk.id for disk in node.disks} | self._members.retired_disks(node.id)
        return holder.disk_id not in known

    async def look_up(self, places: Sequence[Place]) -> list[Finding]:
        """Whether they are there, with the size and the hash on record; what is not is looked at more closely."""
        by_node: dict[NodeId, list[Place]] = {}
        for place in places:
            by_node.setdefault(place[1].node_id, []).append(place)
        findings: list[Finding] = []
        for of_node in by_node.values():
            for start in range(0, len(of_node), _LOOKUP_BATCH):
                findings += await self._look_up_batch(of_node[start : start + _LOOKUP_BATCH])
        return findings

    async def _look_up_batch(self, places: Sequence[Place]) -> list[Finding]:
        node = self._node_of(places[0][1])
        if isinstance(node, str):
            return [Finding(blob, holder, node, None) for blob, holder in places]
        names = [(blob.id, holder.fragment_index) for blob, holder in places]
        try:
            found = await self._nodes.lookup_fragments(node, names)
        except StaleTermError:
            raise
        except SdrsError as error:
            return [Finding(blob, holder, error.message, None) for blob, holder in places]
        held = {(one.blob_id, one.fragment_index): one for one in found}
        findings: list[Finding] = []
        for blob, holder in places:
            if _is_as_recorded(blob, holder, held):
                findings.append(Finding(blob, holder))
                continue
            # A lookup does not tell what is wrong, and takes nothing out of use.
            async with aclosing(self.read(blob, [holder], findings)) as reading:
                async for _ in reading:
                    pass
        return findings

    def _node_of(self, holder: Holder) -> Node | str:
        """The node, or why it cannot be asked."""
        try:
            node = self._members.node(holder.node_id)
        except NotFoundError as error:
            return error.message
        if node.state is not NodeState.UP:
            return f"node {node.id} is down, so its fragment could not be looked at"
        return node


def _is_as_recorded(blob: Blob, holder: Holder, held: Mapping[FragmentName, HeldFragment]) -> bool:
    found = held.get((blob.id, holder.fragment_index))
    if found is None:
        return False
    if found.source_hash and (found.code, found.source_hash) != (blob.code, blob.hash):
        return False
    return (found.hash, found.size_bytes) == (holder.fragment_hash, fragment_bytes(blob, holder.fragment_index))
