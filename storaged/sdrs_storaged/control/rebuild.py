"""A lost catalog, brought back from the nodes (P19): the newest copy of it, and the fragments they hold now.

Nodes keep copies; an operator may give one more, which counts like theirs: the newest is what the rebuild begins with.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import xxhash

from sdrs_core.cluster import NodeState
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, RefusedError, SdrsError
from sdrs_core.ids import ClusterId, NodeId, random_id
from sdrs_core.snapshots import SnapshotId
from sdrs_storaged.control import keys
from sdrs_storaged.control.archive import CHUNK_BYTES
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.corrections import Problems
from sdrs_storaged.control.evidence import Evidence
from sdrs_storaged.control.imports import stage
from sdrs_storaged.control.reconcile import Reconciler
from sdrs_storaged.control.records import parse, put
from sdrs_storaged.control.replacement import Replacement
from sdrs_storaged.control.staging import Staging
from sdrs_storaged.control.tables import ClusterRecord, NodeRecord
from sdrs_storaged.control.witnesses import Testimony, Witnesses

_MAX_NODES = 10_000
_GZIP = 31  # zlib's word for it
_REPORT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """How far it is; the last one has ``done``."""

    stage: str
    done_count: int = 0
    total_count: int = 0
    done: bool = False
    checkpoint_count: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of the catalog, and how its packed bytes are had."""

    id: SnapshotId
    whose: str
    read: Callable[[], AsyncIterator[bytes]]


class Rebuilder:
    def __init__(self, replacement: Replacement, witnesses: Witnesses, clock: Clock, folder: Path) -> None:
        self._replacement = replacement
        self._witnesses = witnesses
        self._clock = clock
        self._folder = folder

    async def run(self, addresses: Sequence[str], given: bytes = b"") -> AsyncGenerator[Step, None]:
        """Every node of the cluster should be named: what is only on others is not brought back by fragments.

        ``given``: a snapshot beside those that nodes keep, packed as theirs are.
        """
        rebuild = _Rebuild(self._replacement, self._witnesses, self._clock, self._folder)
        work = asyncio.create_task(rebuild.carry_out(addresses, given))
        told: Step | None = None
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_REPORT_SECONDS)
                if rebuild.step != told and not work.done():
                    told = rebuild.step
                    yield told
            yield await work
        finally:
            # Until it begins to write; from there on it is carried through.
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


class _Rebuild:
    """One run. ``step`` is looked at by whoever reports."""

    def __init__(self, replacement: Replacement, witnesses: Witnesses, clock: Clock, folder: Path) -> None:
        self._replacement = replacement
        self._witnesses = witnesses
        self._clock = clock
        self._folder = folder
        self._problems = Problems()
        self.step = Step("asking the nodes")

    async def carry_out(self, addresses: Sequence[str], given: bytes) -> Step:
        if not 1 <= len(addresses) <= _MAX_NODES:
            raise InvalidArgumentError(
                f"name 1 to {_MAX_NODES} storage nodes to rebuild from, not {len(addresses)}: all of the cluster, "
                "as host:port"
            )
        await self._replacement.check_empty()
        heard = await self._ask(addresses)
        cluster_id = _same_cluster(heard)
        staging = await Staging.open(self._folder)
        try:
            copies = _copies_of_nodes(self._witnesses, heard)
            if given:
                copies.append(await self._check_given(staging, given, cluster_id))
            snapshot = await self._stage_newest(staging, copies, cluster_id)
            evidence = await staging.run(Evidence, staging)
            await self._gather(staging, evidence, heard)
            checkpoint_count = await self._reconcile(staging, evidence, heard)
            # P18: above all that anybody has seen, so that nodes follow, and refuse what may come back of the old one.
            seen = [testimony.authority.incarnation for testimony in heard.values()]
            incarnation = max([*seen, snapshot.incarnation if snapshot else 0]) + 1
            total = await staging.run(staging.count_sync)
            await self._replacement.check_empty()
        except BaseException:
            staging.close()
            raise
        cluster = ClusterRecord(cluster_id, incarnation, secret=random_id())
        await self._replacement.carry_out(
            staging, cluster, lambda count: self._tell("writing the catalog", count, total)
        )
        return Step("done", total, total, True, checkpoint_count, tuple(self._problems.texts()))

    def _tell(self, stage_name: str, done_count: int, total_count: int) -> None:
        self.step = Step(stage_name, done_count, total_count)

    async def _ask(self, addresses: Sequence[str]) -> dict[str, Testimony]:
        """By address. One that does not answer ends the rebuild: whether to go on without it is not for us to say."""
        heard: dict[str, Testimony] = {}
        names: set[NodeId] = set()
        for address in dict.fromkeys(addresses):
            self._tell("asking the nodes", len(heard), len(addresses))
            testimony = await self._witnesses.ask(address)
            if testimony.node.id in names:
                raise InvalidArgumentError(f"node {testimony.node.id} is named twice, also as {address}: name it once")
            names.add(testimony.node.id)
            heard[address] = testimony
        return heard

    async def _check_given(self, staging: Staging, given: bytes, cluster_id: ClusterId) -> _Copy:
        """Who gives a file wants what is in it: one that cannot be used ends the rebuild, unlike a copy of a node."""
        self._tell("reading the snapshot", 0, 1)
        packed_hash = xxhash.xxh3_128_hexdigest(given)
        try:
            summary = await stage(staging, _unpacked(_whole(given), packed_hash))
        except CorruptDataError as error:
            raise CorruptDataError(
                f"the snapshot cannot be used: {error.message}. Give another, or none: nodes keep copies, too"
            ) from error
        await staging.run(staging.clear_sync)
        header = summary.header
        if header.cluster_id != cluster_id:
            raise RefusedError(
                f"the snapshot is of cluster {header.cluster_id}, the nodes are of {cluster_id}: give one of theirs, "
                "or none"
            )
        snapshot = SnapshotId(
            cluster_id,
            header.incarnation,
            header.term,
            summary.revision,
            header.created_unix_ms,
            len(given),
            packed_hash,
        )
        return _Copy(snapshot, "the given file", lambda: _whole(given))

    async def _stage_newest(self, staging: Staging, copies: list[_Copy], cluster_id: ClusterId) -> SnapshotId | None:
        """The newest copy of the catalog that proves whole; each is usually kept by several nodes."""
        copies.sort(key=lambda copy: copy.id.age, reverse=True)
        for number, copy in enumerate(copies):
            self._tell("reading the newest copy of the catalog", number, len(copies))
            try:
                if copy.id.cluster_id != cluster_id:
                    raise CorruptDataError("it is of another cluster")
                await stage(staging, _unpacked(copy.read(), copy.id.hash))
                return copy.id
            except SdrsError as error:
                self._problems.add(
                    f"the copy of the catalog at revision {copy.id.revision} of {copy.whose} cannot be used: "
                    f"{error.message}"
                )
                await staging.run(staging.clear_sync)
        self._problems.add("no node has a copy of the catalog: only what fragments tell can be brought back")
        return None

    async def _gather(self, staging: Staging, evidence: Evidence, heard: dict[str, Testimony]) -> None:
        count = 0
        for address, testimony in heard.items():
            after, more = "", True
            while more:
                fragments, after = await self._witnesses.list_fragments(address, after)
                await staging.run(evidence.add, testimony.node.id, fragments)
                count += len(fragments)
                more = bool(after)
                self._tell("listing fragments", count, count)

    async def _reconcile(self, staging: Staging, evidence: Evidence, heard: dict[str, Testimony]) -> int:
        nodes = frozenset(testimony.node.id for testimony in heard.values())
        reconciler = Reconciler(staging, evidence, nodes, self._problems, now_unix_ms=self._clock.unix_ms())
        await staging.run(_stage_nodes, staging, list(heard.values()))
        return await staging.run(reconciler.run, lambda count: self._tell("putting checkpoints together", count, 0))


def _same_cluster(heard: dict[str, Testimony]) -> ClusterId:
    clusters = {testimony.cluster_id for testimony in heard.values()}
    if len(clusters) > 1 or "" in clusters:
        told = ", ".join(f"{address} of {found.cluster_id or 'none'}" for address, found in heard.items())
        raise RefusedError(f"these nodes are not of one cluster: {told[:1000]}; name those of one")
    return clusters.pop()


def _copies_of_nodes(witnesses: Witnesses, heard: dict[str, Testimony]) -> list[_Copy]:
    return [
        _Copy(snapshot, f"node {found.node.id}", partial(witnesses.read_snapshot, address, snapshot))
        for address, found in heard.items()
        for snapshot in found.snapshots
    ]


def _stage_nodes(staging: Staging, heard: list[Testimony]) -> None:
    """Where readers find the holders; a record without a secret takes the first key that comes with its name."""
    for testimony in heard:
        key = keys.node(testimony.node.id)
        value = staging.get_sync(key)
        known = parse(key, value, NodeRecord) if value is not None else NodeRecord(testimony.node, secret="")
        node = replace(
            testimony.node,
            state=NodeState.DOWN,
            disks=(),
            # What operators said of it stays.
            cordoned=value is not None and known.node.cordoned,
            cordoned_because=known.node.cordoned_because if value is not None else "",
            draining=value is not None and known.node.draining,
            flapping=False,
        )
        staging.apply_sync([(key, put(key, replace(known, node=node, secret="")).value)])


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _unpacked(pieces: AsyncIterator[bytes], packed_hash: str) -> AsyncIterator[bytes]:
    """What was kept, unpacked a little at a time (I10); CorruptDataError if it is not what its name says."""
    unpacker = zlib.decompressobj(_GZIP)
    hasher = xxhash.xxh3_128()
    async for piece in pieces:
        hasher.update(piece)
        try:
            while piece:
                yield unpacker.decompress(piece, CHUNK_BYTES)
                piece = unpacker.unconsumed_tail
        except zlib.error as error:
            raise CorruptDataError(f"it cannot be unpacked: {error}") from error
    if not unpacker.eof or hasher.hexdigest() != packed_hash:
        raise CorruptDataError("it does not match its hash")
