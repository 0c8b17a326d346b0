"""Nodes in memory that hold the fragments of one blob, each with the trouble that a test gives it.

They serve a ``ShardReader`` in the place of a process: routes, the controller, and what is remembered of holders.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import patch

from sdrs.process import Process
from sdrs.restore import pace, range_reading
from sdrs.restore.holders import HolderBook
from sdrs.restore.recalls import Recalls
from sdrs.restore.reports import DamageReports
from sdrs.restore.shard_reader import ShardReader
from sdrs.restore.targets import ByteCount, MemoryTarget
from sdrs.rpc.control import Control
from sdrs.transfer import FragmentRange, Summary
from sdrs_core import checksums
from sdrs_core.checkpoints import Blob, ContentKind, Holder, Save, SaveState, Shard
from sdrs_core.checksums import blob_hash
from sdrs_core.cluster import Endpoints, Node, NodeState, ReadPolicy
from sdrs_core.codes import MIRROR, Code
from sdrs_core.errors import CorruptDataError, NotFoundError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId, DiskId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_proto.convert import node_to, read_policy_to, shard_to
from sdrs_proto.v1.control_pb2 import ListShardsResponse, ReportDamageRequest
from tests.support.fragments import cut
from tests.support.nothing_staged import NothingStaged
from tests.support.stores import table_of

# Small blocks: many stripes are tried in little time.
BLOCK = 4096
FOUR_TWO = Code(4, 2)
# Of 4+2: the last one has two blocks and a bit.
STRIPES = 5 * 4 * BLOCK + 2 * BLOCK + 100
_MODULES = [
    "sdrs_core.checksums",
    "sdrs_core.codes",
    "sdrs.restore.blocks",
    "sdrs.restore.decoding",
    "sdrs.restore.shard_reader",
    "sdrs.restore.stripe_reader",
    "sdrs.restore.stripes",
    "tests.support.fragments",
]


@contextmanager
def quick_reading() -> Iterator[None]:
    """Small blocks, no pauses between tries, little patience with what hangs, and none is taken for slow: a busy
    machine must not make a race of what is none.
    """
    with ExitStack() as patches:
        for module in _MODULES:
            patches.enter_context(patch(f"{module}.BLOCK_BYTES", BLOCK))
        patches.enter_context(patch.object(range_reading, "PAUSES_SECONDS", (0.0, 0.001, 0.001)))
        patches.enter_context(patch.object(range_reading, "STALLS_SECONDS", (0.1, 0.1, 0.1)))
        patches.enter_context(patch.object(pace, "LEAST_SECONDS", 30.0))
        yield


def nodes_of(size_bytes: int, code: Code | None = FOUR_TWO, **options: Any) -> CodedNodes:
    return CodedNodes(random.Random(size_bytes).randbytes(size_bytes), code, **options)


@dataclass(frozen=True)
class Trouble:
    """``kind`` with the whole fragment, or from or at one of its blocks."""

    kind: str
    block: int = 0


@dataclass
class Fragment:
    """What one node holds."""

    content: bytes
    table: bytes
    hash: str
    trouble: Trouble | None = None

    @classmethod
    def of(cls, content: bytes) -> Fragment:
        table = table_of(content)
        return cls(content, table, blob_hash(len(content), table))


@dataclass
class Stream:
    """As a socket is read: what has not come in time can be waited for again."""

    fragment: Fragment
    summary: Summary
    position: int
    on_block: Callable[[int], bool]
    last_heard: float = 0.0
    is_closed: bool = False

    def read_into(self, target: memoryview, size_bytes: int, within_seconds: float | None = None) -> bool:
        assert not self.is_closed
        block, trouble = self.position // checksums.BLOCK_BYTES, self.fragment.trouble
        is_late = not self.on_block(block)
        if trouble and block >= trouble.block:
            if trouble.kind == "dies":
                raise UnavailableError("the peer closed the data channel")
            if trouble.kind == "cut":
                raise CorruptDataError("the fragment's file ends too early")
            is_late |= trouble.kind == "stalls"
        if is_late:
            time.sleep(0.1 if within_seconds is None else min(within_seconds, 0.01))
            if within_seconds is None:
                raise UnavailableError("it sent nothing")
            return False
        content = bytearray(self.fragment.content[self.position : self.position + size_bytes])
        assert len(content) == size_bytes
        if trouble and trouble.kind == "flip" and trouble.block == block:
            content[len(content) // 2] ^= 1
        target[:size_bytes] = content
        # O_DIRECT brings whole pages.
        end = min(len(target), -(-size_bytes // 4096) * 4096)
        target[size_bytes:end] = b"\xee" * (end - size_bytes)
        self.position += size_bytes
        self.last_heard = time.monotonic()
        return True

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


@dataclass
class CodedNodes:
    """``code`` None: whole copies, on ``copies`` nodes. Fragment i is on the node of the i-th letter."""

    content: bytes
    code: Code | None = None
    copies: int = 2
    policy: ReadPolicy = ReadPolicy.ROUND_ROBIN
    blob_id: str = "b" * 32
    down: str = ""
    opened: list[tuple[str, int, int]] = field(default_factory=list)  # (node, fragment, offset)
    reported: list[ReportDamageRequest] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    list_count: int = 0

    def __post_init__(self) -> None:
        plain = Fragment.of(self.content)
        self.table, self.hash = plain.table, plain.hash
        if self.code is None:
            made = [Fragment.of(self.content) for _ in range(self.copies)]
        else:
            made = [Fragment.of(content) for content in cut(self.code, self.content)]
        # By node and fragment: one node may have several.
        self.fragments = {(chr(ord("a") + index), index if self.code else 0): one for index, one in enumerate(made)}
        self.mirror: CodedNodes | None = None
        self.newer: CodedNodes | SdrsError | None = None
        self.holders = HolderBook()
        self.reports = DamageReports(cast(Control, self))
        self.recalls = Recalls(cast(Control, self))
        self.control = self.routes = self
        self.stage = NothingStaged()
        self._lock = threading.Lock()

    @property
    def blob(self) -> Blob:
        held = tuple(
            Holder(NodeId(name), DiskId("d"), index, fragment.hash)
            for (name, index), fragment in self.fragments.items()
        )
        code = str(self.code) if self.code else MIRROR
        return Blob(BlobId(self.blob_id), 0, len(self.content), self.hash, code, held)

    def trouble(self, name: str, kind: str, block: int = 0) -> None:
        """Give all that a node has this trouble."""
        for key, fragment in self.fragments.items():
            if key[0] == name:
                fragment.trouble = Trouble(kind, block)

    def make_parity_wrong(self, name: str, block: int) -> None:
        """P9: wrong before its checksums were taken, so that they match."""
        key = next(key for key in self.fragments if key[0] == name)
        content = bytearray(self.fragments[key].content)
        content[block * checksums.BLOCK_BYTES] ^= 0xFF
        self.fragments[key] = Fragment.of(bytes(content))

    # What a process has

    def stream(self, method: str, request: Any, **options: Any) -> Iterator[Any]:
        assert method == "recall_checkpoint"
        raise NotFoundError("no backup has it")

    def open(self, node: Node, fragment: FragmentRange, stall_seconds: float) -> Stream:
        nodes = self._of(fragment.blob_id)
        with self._lock:
            self.opened.append((node.id, fragment.fragment_index, fragment.offset))
        held = nodes.fragments.get((node.id, fragment.fragment_index))
        trouble = held.trouble if held else None
        if held is None or (trouble and trouble.kind == "missing"):
            raise NotFoundError("no such fragment")
        if trouble and trouble.kind == "down":
            raise UnavailableError("connection refused")
        if trouble and trouble.kind == "hangs":
            time.sleep(min(stall_seconds, 0.3))
            raise UnavailableError("deadline exceeded")
        assert fragment.offset + fragment.size_bytes <= len(held.content)
        summary = Summary(len(held.content), held.hash, held.table, len(self.content), nodes.hash, nodes.table)
        if trouble and trouble.kind == "footer":
            bad = bytes(16) + summary.source_table[16:]
            summary = replace(summary, source_table=bad, table=bytes(16) + summary.table[16:])
        if trouble and trouble.kind == "foreign":
            other = Fragment.of(bytes(len(self.content)))
            summary = replace(summary, source_hash=other.hash, source_table=other.table)
        stream = Stream(held, summary, fragment.offset, lambda block: self.on_block(node.id, block))
        with self._lock:
            self.streams.append(stream)
        return stream

    def on_block(self, name: str, block: int) -> bool:
        """For tests to override. False: it has not come yet."""
        return True

    def call(self, method: str, request: Any, **options: Any) -> Any:
        if method == "report_damage":
            with self._lock:
                self.reported.append(request)
            return None
        assert method == "list_shards"
        self.list_count += 1
        if isinstance(self.newer, SdrsError):
            raise self.newer
        return (self.newer or self).record()

    def _of(self, blob_id: str) -> CodedNodes:
        return next(
            nodes
            for nodes in (self, self.mirror, self.newer)
            if isinstance(nodes, CodedNodes) and nodes.blob_id == blob_id
        )

    # Reading

    def record(self) -> ListShardsResponse:
        mirrors = (self.mirror.blob,) if self.mirror else ()
        shard = Shard(SaveId("5" * 32), 0, ContentKind.STATE, len(self.content), "hash", (self.blob,), mirrors)
        down = self.down + (self.mirror.down if self.mirror else "")
        names = sorted({holder.node_id for blob in shard.all_blobs for holder in blob.holders})
        nodes = [
            Node(NodeId(name), Endpoints(name, name, "", "", ""), "d", 1, "v", _state(name in down)) for name in names
        ]
        return ListShardsResponse(
            shards=[shard_to(shard)], nodes=[node_to(node) for node in nodes], read_policy=read_policy_to(self.policy)
        )

    def reader(self, count: ByteCount | None = None) -> ShardReader:
        save = Save(
            SaveId("5" * 32),
            JobName("j"),
            7,
            1,
            1,
            PoolName("fast"),
            ContentKind.STATE,
            SaveState.COMMITTED,
            Level.L3,
            len(self.content),
            0,
        )
        return ShardReader(cast(Process, self), save, self.record(), count or ByteCount(None, len(self.content)))

    def read(self) -> bytes:
        """The whole blob, of which no stream was left open."""
        reader = self.reader()
        target = MemoryTarget(reader.shard.blobs)
        try:
            reader.read(reader.shard.blobs, target)
        finally:
            self.check_closed()
        return bytes(target.buffer(reader.shard.blobs[0]))

    def check_closed(self) -> None:
        deadline = time.monotonic() + 20
        while any(not stream.is_closed for stream in self.streams):
            assert time.monotonic() < deadline, "a stream was left open"
            time.sleep(0.001)

    @property
    def asked_names(self) -> set[str]:
        return {name for name, _, _ in self.opened}


def _state(is_down: bool) -> NodeState:
    return NodeState.DOWN if is_down else NodeState.UP
