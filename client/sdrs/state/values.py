"""Plain values as JSON, bit for bit.

What JSON says exactly is written as itself; everything else is an object with one key, its tag. Both directions of a
tag stand here side by side.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable

from sdrs.state.container import Json

MAX_INLINE_BYTES = 4096  # longer bytes are stored like an array, not as text in the index
_EXACT_INT = 2**53 - 1  # the largest whole number that JSON readers agree on

PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
KEY_TYPES = frozenset({type(None), bool, int, float, str})


def encode_plain(value: object) -> Json:
    """``value`` is of one of PLAIN_TYPES exactly; a subclass would come back as something else."""
    match value:
        case None | bool():
            return value
        case int():
            # Hexadecimal: Python refuses to read decimal numbers of more than 4300 digits.
            return value if -_EXACT_INT <= value <= _EXACT_INT else {"int": hex(value)}
        case float():
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        case complex():
            return {"complex": struct.pack(">dd", value.real, value.imag).hex()}
        case bytes():
            return {"bytes": to_base64(value)}
        case str():
            return _encode_str(value)
    raise TypeError(f"{type(value).__name__} is not a plain type")


def _encode_str(value: str) -> Json:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON would join two escaped halves of a pair that were apart before.
        return {"str": to_base64(value.encode("utf-8", "surrogatepass"))}
    return value


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: Json) -> bytes:
    return base64.b64decode(_text(text), validate=True)


def _text(payload: Json) -> str:
    if not isinstance(payload, str):
        raise ValueError("text is expected")
    return payload


def _decode_complex(payload: Json) -> complex:
    return complex(*struct.unpack(">dd", bytes.fromhex(_text(payload))))


def _decode_float(payload: Json) -> float:
    (value,) = struct.unpack(">d", bytes.fromhex(_text(payload)))
    return float(value)


#: For each tag how to read its payload; they raise ValueError or struct.error if it is malformed.
DECODERS: dict[str, Callable[[Json], object]] = {
    "int": lambda payload: int(_text(payload), 16),
    "float": _decode_float,
    "complex": _decode_complex,
    "str": lambda payload: from_base64(payload).decode("utf-8", "surrogatepass"),
    "bytes": from_base64,
}
