"""Blob frames made by hand are the generated message's frames, and garbage is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.errors import ProtocolError
from sdrs_proto.framing import Frame, decode_frame, encode_frame
from sdrs_proto.v1.storage_pb2 import BlobFrame

fields = st.binary(max_size=300)


@given(fields, fields, fields, fields)
def test_frames_are_the_generated_messages_frames(open_: bytes, digest: bytes, data: bytes, end: bytes) -> None:
    raw = encode_frame(Frame(open_, digest, data, end))
    parsed = BlobFrame.FromString(raw)
    assert (parsed.open, parsed.digest, parsed.data, parsed.end) == (open_, digest, data, end)
    back = decode_frame(parsed.SerializeToString())
    assert (back.open, back.digest, bytes(back.data), back.end) == (open_, digest, data, end)


@given(st.binary(max_size=64))
def test_garbage_is_a_protocol_error_or_a_frame(raw: bytes) -> None:
    with suppress(ProtocolError):
        decode_frame(raw)


def test_a_frame_cut_short_is_refused() -> None:
    with pytest.raises(ProtocolError, match="middle"):
        decode_frame(encode_frame(Frame(data=b"x" * 500))[:-1])
