"""BlobFrame by hand: protobuf's wire format without protobuf's copies of the bytes.

Fields (all length-delimited): 1 open, 2 digest, 3 data, 4 end. A frame made here parses as the generated BlobFrame
and the other way round; a test holds that.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdrs_core.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Frame:
    open: bytes = b""
    digest: bytes = b""
    data: bytes | memoryview = b""
    end: bytes = b""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_frame(frame: Frame) -> bytes:
    parts: list[bytes | memoryview] = []
    for number, payload in ((1, frame.open), (2, frame.digest), (3, frame.data), (4, frame.end)):
        if len(payload):
            parts += (_varint(number << 3 | 2), _varint(len(payload)), payload)
    return b"".join(parts)


def decode_frame(raw: bytes) -> Frame:
    view = memoryview(raw)
    fields: dict[int, memoryview] = {}
    position = 0
    while position < len(raw):
        tag, position = _read_varint(raw, position)
        if tag & 7 != 2:
            raise ProtocolError(f"a blob frame has a field of wire type {tag & 7}: only length-delimited ones exist")
        length, position = _read_varint(raw, position)
        if length > len(raw) - position:
            raise ProtocolError("a blob frame ends in the middle of a field")
        fields[tag >> 3] = view[position : position + length]
        position += length
    return Frame(bytes(fields.get(1, b"")), bytes(fields.get(2, b"")), fields.get(3, b""), bytes(fields.get(4, b"")))


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(raw) or shift > 63:
            raise ProtocolError("a blob frame holds a broken number")
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
