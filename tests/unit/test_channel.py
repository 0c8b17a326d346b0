"""The data channel's wire, byte by byte."""

from __future__ import annotations

import socket
import threading
from typing import cast

import pytest

from sdrs_core.checksums import BLOCK_BYTES, digest
from sdrs_core.errors import UnavailableError
from sdrs_proto.channel import BLOCK, LENGTH, receive_block, receive_bytes, send_block, wait_in_kernel


class Dripping:
    """A peer that sends one byte at a time: it never stalls, and never ends."""

    def recvmsg_into(self, into: list[memoryview], *_: object) -> tuple[int, list[object], int, None]:
        next(part for part in into if part)[0] = 7
        return 1, [], 0, None


def test_a_peer_that_drips_is_given_up_when_its_time_is_over() -> None:
    dripping = cast(socket.socket, Dripping())
    assert receive_bytes(dripping, 10) == bytes([7] * 10)
    with pytest.raises(UnavailableError, match="stalled"):
        receive_bytes(dripping, 10, within_seconds=0)


def test_a_block_comes_whole_whatever_pieces_it_travels_in() -> None:
    blocks = [bytes([number]) * size for number, size in enumerate([BLOCK_BYTES, 1, BLOCK_BYTES - 5])]
    sender, receiver = socket.socketpair()
    with sender, receiver:
        wait_in_kernel(sender, 30)
        wait_in_kernel(receiver, 30)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        sending = threading.Thread(target=lambda: [send_block(sender, digest(block), block) for block in blocks])
        sending.start()
        for block in blocks:
            (length,) = LENGTH.unpack(receive_bytes(receiver, LENGTH.size))
            into = bytearray(length)
            assert receive_block(receiver, memoryview(into), 30) == digest(block)
            assert into == block
        sending.join()


def test_what_is_left_of_a_block_is_waited_for_no_longer_than_the_kernel_is_told() -> None:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        wait_in_kernel(receiver, 0.05)
        sender.sendall(BLOCK.pack(100, digest(b"")) + b"a part of it")
        (length,) = LENGTH.unpack(receive_bytes(receiver, LENGTH.size))
        with pytest.raises(UnavailableError, match="stalled"):
            receive_block(receiver, memoryview(bytearray(length)), 30)


def test_nothing_is_waited_for_where_nothing_is_to_come() -> None:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        wait_in_kernel(receiver, 0.05)
        assert receive_bytes(receiver, 0) == b""
