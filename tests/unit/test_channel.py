"""The data channel's wire, byte by byte."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from sdrs_core.errors import UnavailableError
from sdrs_proto.channel import receive_bytes


class Dripping:
    """A peer that sends one byte at a time: it never stalls, and never ends."""

    def recv_into(self, into: memoryview) -> int:
        into[0] = 7
        return 1


def test_a_peer_that_drips_is_given_up_when_its_time_is_over() -> None:
    dripping = cast(socket.socket, Dripping())
    assert receive_bytes(dripping, 10) == bytes([7] * 10)
    with pytest.raises(UnavailableError, match="stalled"):
        receive_bytes(dripping, 10, within_seconds=0)
