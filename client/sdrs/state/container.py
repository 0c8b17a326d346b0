"""The safetensors file format, read and written by hand.

The library wants all of a file's tensors in memory at once; we need the header alone, to know a blob's size before its
first byte and to stream the rest. Layout: 8 bytes of header length, a JSON header, then the tensors without gaps.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Collection, Sequence
from json.encoder import encode_basestring
from mmap import mmap
from typing import Any, NamedTuple, TypeGuard

from sdrs_core.errors import CorruptDataError, InvalidArgumentError

Buffer = bytes | bytearray | memoryview | mmap
Json = Any

VERSION = 1
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
DATA_ALIGN_BYTES = 64
TREE_TENSOR = "sdrs.tree"
FILES_TENSOR = "sdrs.files"
RESERVED_NAMES = frozenset({TREE_TENSOR, FILES_TENSOR, "__metadata__"})
_WHOLE_COMMAND = {TREE_TENSOR: "a state: use restore", FILES_TENSOR: "files: use restore_files"}


class Span(NamedTuple):
    """Where a tensor's bytes are, from the start of the file."""

    start: int
    end: int


def to_json(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def to_json_text(text: str) -> str:
    """``text`` as ``to_json`` writes it."""
    return encode_basestring(text)


def from_json(data: Buffer, what: str) -> Json:
    """Parse JSON that nobody vouches for: whatever is wrong with it is corrupt data."""
    try:
        return json.loads(str(data, "utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{what} is not valid JSON ({error}): restore another step") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def build_header(
    names: Sequence[str], types: Sequence[tuple[str, tuple[int, ...]]], sizes_bytes: Sequence[int]
) -> bytes:
    """The first bytes of a file with these tensors in this order; its length is a multiple of DATA_ALIGN_BYTES.

    ``types``: the dtype and shape of each. Written by hand, because json would want an object for each tensor.
    """
    types_text = {
        (dtype, shape): f'"dtype":"{dtype}","shape":[{",".join(map(str, shape))}]' for dtype, shape in set(types)
    }
    texts = [f'{{"__metadata__":{{"format":"sdrs","version":"{VERSION}"}}']
    offset = 0
    for name, kind, size_bytes in zip(map(to_json_text, names), types, sizes_bytes, strict=True):
        end = offset + size_bytes
        texts.append(f'{name}:{{{types_text[kind]},"data_offsets":[{offset},{end}]}}')
        offset = end
    text = f"{','.join(texts)}}}".encode()
    # The format allows spaces after the JSON; with them a mapped or read blob has its tensors aligned.
    text += b" " * (-(8 + len(text)) % DATA_ALIGN_BYTES)
    return struct.pack("<Q", len(text)) + text


def header_end(head: Buffer, what: str, size_bytes: int) -> int:
    """Where the header of a file of ``size_bytes`` ends; ``head`` has its first 8 bytes at least."""
    view = memoryview(head)
    if min(len(view), size_bytes) < 8:
        raise CorruptDataError(f"{what} has {size_bytes} bytes, too few for a safetensors header: restore another step")
    (header_bytes,) = struct.unpack("<Q", view[:8])
    if header_bytes > min(MAX_HEADER_BYTES, size_bytes - 8):
        raise CorruptDataError(f"{what} claims a header of {header_bytes} bytes in {size_bytes}: restore another step")
    return int(8 + header_bytes)


def parse_header(blob: Buffer, what: str, size_bytes: int | None = None) -> dict[str, Span]:
    """The tensors of a file, bounds checked: no span reaches outside of it, and they cover it without gaps.

    ``blob`` is the whole file, or if ``size_bytes`` says how large that is, as much of it as its header needs.
    """
    view = memoryview(blob)
    whole_bytes = len(view) if size_bytes is None else size_bytes
    start = header_end(view, what, whole_bytes)
    header = from_json(view[8:start], f"the header of {what}")
    if not isinstance(header, dict):
        raise CorruptDataError(f"the header of {what} is not an object: restore another step")
    header.pop("__metadata__", None)
    spans = _spans(header.values(), start, what)
    end = start
    # Most are in order already, which costs a sort next to nothing.
    for first, last in sorted(spans):
        if first != end or last < end:
            raise CorruptDataError(f"the tensors of {what} overlap or leave gaps: restore another step")
        end = last
    if end != whole_bytes:
        raise CorruptDataError(f"the tensors of {what} end at byte {end} of {whole_bytes}: restore another step")
    return dict(zip(header, spans, strict=True))


def _spans(entries: Collection[Json], start: int, what: str) -> list[Span]:
    try:
        offsets = [entry["data_offsets"] for entry in entries]
        numbers = list(itertools.chain.from_iterable(offsets))
        # Of all at once: a header may have 100,000 of them.
        are_pairs = {*map(type, offsets)} <= {list} and {*map(len, offsets)} <= {2}
        if are_pairs and {*map(type, numbers)} <= {int} and min(numbers, default=0) >= 0:
            return [Span(start + first, start + last) for first, last in offsets]
    except (TypeError, KeyError):
        pass
    raise CorruptDataError(f"the header of {what} has a tensor without offsets: restore another step")


def is_count(value: Json) -> TypeGuard[int]:
    """A whole number >= 0; ``True`` is none, though Python thinks so."""
    return type(value) is int and value >= 0


def read_index(blob: Buffer, tensor: str) -> tuple[dict[str, Json], int]:
    """The index that blob 0 carries under the name ``tensor``, and where the blob's data starts."""
    spans = parse_header(blob, "blob 0")
    span = index_span(spans, tensor)
    index = parse_index(memoryview(blob)[span.start : span.end], tensor)
    return index, min(span.start for span in spans.values())


def index_span(spans: dict[str, Span], tensor: str) -> Span:
    if tensor not in spans:
        for other in spans.keys() & _WHOLE_COMMAND.keys():
            raise InvalidArgumentError(f"this checkpoint holds {_WHOLE_COMMAND[other]}")
        raise CorruptDataError(f"blob 0 has no {tensor!r}: it is not the first blob of a shard of SDRS")
    return spans[tensor]


def parse_index(data: Buffer, tensor: str) -> dict[str, Json]:
    index = from_json(data, f"{tensor!r} in blob 0")
    if not isinstance(index, dict):
        raise CorruptDataError(f"{tensor!r} in blob 0 is not an object: restore another step")
    version = index.get("version")
    if version != VERSION:
        raise CorruptDataError(f"{tensor!r} has version {version!r}, this sdrs reads {VERSION}: upgrade sdrs")
    return index
