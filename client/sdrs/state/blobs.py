"""Blobs that are described but not yet written.

Sizes are known at once, bytes are produced on demand: so a save can reserve room before it copies, and a large state is
never held twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sdrs.state.container import DATA_ALIGN_BYTES, Span, build_header
from sdrs_core.errors import SaveFailedError

CHUNK_BYTES = 4 << 20


class Source(Protocol):
    """Where the bytes of one tensor come from: memory or a file."""

    @property
    def size_bytes(self) -> int: ...

    def segments(self) -> Iterator[memoryview]:
        """The bytes in order. A segment is valid until the next is asked for: its buffer may be reused."""


@dataclass(frozen=True, slots=True)
class BytesSource:
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def segments(self) -> Iterator[memoryview]:
        yield memoryview(self.data)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a blob: its line in the header, its alignment and its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    align_bytes: int
    source: Source


@dataclass(frozen=True, slots=True)
class EncodedBlob:
    """One safetensors file, ready to be streamed any number of times (a retry reads the state again)."""

    header: bytes
    sources: tuple[Source, ...]
    size_bytes: int
    # Of the tensors, in the order of their bytes.
    names: tuple[str, ...] = ()
    sizes_bytes: tuple[int, ...] = ()

    def spans(self) -> dict[str, Span]:
        """Where each tensor's bytes will be, for those who read ranges later."""
        spans = {}
        start = len(self.header)
        for name, size_bytes in zip(self.names, self.sizes_bytes, strict=True):
            spans[name] = Span(start, start + size_bytes)
            start += size_bytes
        return spans

    def segments(self) -> Iterator[memoryview]:
        """The blob's bytes in order, as flat views of bytes: over the user's own memory where that is contiguous.

        A segment is valid until the next is asked for. Segments differ in size, and one may be as large as the blob.
        """
        yield memoryview(self.header)
        for source in self.sources:
            left_bytes = source.size_bytes
            for segment in source.segments():
                left_bytes -= len(segment)
                yield segment
            if left_bytes:
                raise SaveFailedError("an array of the state changed its size while it was saved: save a copy of it")


@dataclass(frozen=True, slots=True)
class EncodedState:
    """A whole shard. Blob 0 carries the index and must be kept first; the order of the others matters too."""

    blobs: tuple[EncodedBlob, ...]

    @property
    def total_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)


def make_blob(tensors: Sequence[StoredTensor]) -> EncodedBlob:
    # The sort is stable: an index appended last stays last.
    ordered = sorted(tensors, key=lambda tensor: -tensor.align_bytes)
    return blob_of(
        [tensor.name for tensor in ordered],
        [(tensor.dtype, tensor.shape) for tensor in ordered],
        [tensor.source.size_bytes for tensor in ordered],
        [tensor.source for tensor in ordered],
    )


def blob_of(
    names: Sequence[str],
    types: Sequence[tuple[str, tuple[int, ...]]],
    sizes_bytes: Sequence[int],
    sources: Sequence[Source],
) -> EncodedBlob:
    """The blob of these tensors, those that need most alignment first: then each starts aligned, because data starts
    aligned and what follows a tensor needs no more than it, without the gaps that safetensors forbids.

    ``sources`` have the bytes of the tensors in order, one of them perhaps those of several.
    """
    header = build_header(names, types, sizes_bytes)
    return EncodedBlob(header, tuple(sources), len(header) + sum(sizes_bytes), tuple(names), tuple(sizes_bytes))


def index_tensor(name: str, data: bytes) -> StoredTensor:
    return StoredTensor(name, "U8", (len(data),), 1, BytesSource(data))


def alignment(item_bytes: int) -> int:
    """The largest power of two that divides the item size, which no dtype's own alignment exceeds."""
    return min(item_bytes & -item_bytes, DATA_ALIGN_BYTES) if item_bytes else 1
