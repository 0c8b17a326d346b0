"""Blobs in any form, cut in memory, and sources of them that fail when a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.cluster import Endpoints, Node
from sdrs_core.codes import MIRROR, Code, parse_code
from sdrs_core.erasure import codec
from sdrs_core.errors import SdrsError
from sdrs_core.ids import BlobId, NodeId
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.rpc.sources import BlobFacts, Opened, OpenSource, Source
from tests.support.stores import hash_of, table_of

BLOB = BlobId("b" * 32)


def fragments_of(data: bytes, code: Code) -> list[bytes]:
    """All fragments of a blob, computed the plain way: stripe by stripe, filled up with zeros."""
    fragments = [bytearray() for _ in range(code.total)]
    for stripe in range(code.stripe_count(len(data))):
        start = stripe * code.stripe_bytes
        blocks = [data[start + n * BLOCK_BYTES : start + (n + 1) * BLOCK_BYTES] for n in range(code.data)]
        longest = len(blocks[0])
        parity = [bytearray(longest) for _ in range(code.parity)]
        codec(code.data, code.parity).encode(
            [block.ljust(longest, b"\0") for block in blocks], [memoryview(block) for block in parity]
        )
        for fragment, block in zip(fragments, [*blocks, *parity], strict=True):
            fragment += block
    return [bytes(fragment) for fragment in fragments]


def pieces_of(data: bytes, code: str) -> list[bytes]:
    """What the fragments of a blob hold, by index."""
    parsed = parse_code(code)
    return [data] if parsed is None else fragments_of(data, parsed)


def facts_of(data: bytes, code: str, blob_id: str = BLOB) -> BlobFacts:
    return BlobFacts(BlobId(blob_id), len(data), hash_of(data), code)


@dataclass
class StoredBlob:
    """A blob whose fragments some nodes hold; what they send can be changed, and ends where a test says."""

    data: bytes
    code: str
    # (node, index) → what it raises, and after how many bytes.
    failing: dict[tuple[str, int], tuple[int, SdrsError]] = field(default_factory=dict)
    opened: list[tuple[str, int, int]] = field(default_factory=list)
    open_count: int = 0

    def __post_init__(self) -> None:
        self.pieces = pieces_of(self.data, self.code)
        # What nodes hold where it is not what it should be; the tables are of what they hold.
        self.other: dict[tuple[str, int], bytes] = {}

    @property
    def facts(self) -> BlobFacts:
        return facts_of(self.data, self.code)

    def source(self, index: int, node: str = "") -> Source:
        return Source(node_called(node or f"n{index}"), index)

    def sources(self, indexes: Sequence[int] | None = None) -> list[Source]:
        return [self.source(index) for index in (range(len(self.pieces)) if indexes is None else indexes)]

    def open(self, source: Source, blob_id: BlobId, offset: int) -> tuple[pb.BlobSummary, Opened]:
        assert blob_id == BLOB
        key = (str(source.node.id), source.fragment_index)
        self.opened.append((*key, offset))
        end, error = self.failing.get(key, (0, None))
        if error is not None and end <= 0:
            raise error
        held = self.other.get(key, self.pieces[source.fragment_index])
        summary = pb.BlobSummary(size_bytes=len(held), hash=hash_of(held), table=table_of(held))
        if self.code != MIRROR:
            summary.source_size_bytes = len(self.data)
            summary.source_hash = hash_of(self.data)
            summary.source_table = table_of(self.data)
        self.open_count += 1
        return summary, _Sending(self, held, offset, end, error)


class _Sending:
    def __init__(self, blob: StoredBlob, held: bytes, offset: int, end: int, error: SdrsError | None) -> None:
        self._blob, self._held, self._at, self._end, self._error = blob, memoryview(held), offset, end, error
        self._closed = False

    def receive(self, into: memoryview) -> None:
        assert not self._closed
        if self._error is not None and self._at + len(into) > self._end:
            raise self._error
        assert self._at + len(into) <= len(self._held), "more is read than there is"
        into[:] = self._held[self._at : self._at + len(into)]
        self._at += len(into)

    def close(self) -> None:
        assert not self._closed
        self._closed = True
        self._blob.open_count -= 1


def node_called(name: str) -> Node:
    return Node(NodeId(name), Endpoints("127.0.0.1:1", "127.0.0.1:2", "", "", "host"), name, 1, "test")


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def flip_sent(blob: StoredBlob, source: Source, at: int) -> OpenSource:
    """As ``blob.open``, but what this source sends has a flipped bit that its table does not know of."""

    def opening(asked: Source, blob_id: BlobId, offset: int) -> tuple[pb.BlobSummary, Opened]:
        summary, opened = blob.open(asked, blob_id, offset)
        if asked == source and isinstance(opened, _Sending):
            opened._held = memoryview(changed(bytes(opened._held), at))
        return summary, opened

    return opening
