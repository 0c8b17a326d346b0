"""Fragments of a code by hand: cut, sent, read from their files and joined again, by nothing but the code itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sdrs_core.checksums import BLOCK_BYTES, block_spans, digest
from sdrs_core.codes import Code
from sdrs_core.erasure import codec
from sdrs_proto import channel
from sdrs_proto.dial import open_channel
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.store.fragment import read_contents
from tests.support.blob_sender import StorageCalls
from tests.support.stores import hash_of, table_of


def cut(code: Code, data: bytes) -> list[bytes]:
    """The blob's fragments."""
    fragments = [bytearray() for _ in range(code.total)]
    for start in range(0, len(data), code.stripe_bytes):
        stripe = data[start : start + code.stripe_bytes]
        plain = [stripe[at : at + BLOCK_BYTES] for at in range(0, code.stripe_bytes, BLOCK_BYTES)]
        parity = [bytearray(len(plain[0])) for _ in range(code.parity)]
        padded = [block.ljust(len(plain[0]), b"\0") for block in plain]
        codec(code.data, code.parity).encode(padded, [memoryview(block) for block in parity])
        for fragment, block in zip(fragments, [*plain, *parity], strict=True):
            fragment += block
    return [bytes(fragment) for fragment in fragments]


def joined(code: Code, have: Mapping[int, bytes], size_bytes: int) -> bytes:
    """The blob from some of its fragments."""
    plain: list[bytes] = []
    for stripe in range(code.stripe_count(size_bytes)):
        length = code.block_bytes(size_bytes, stripe, 0)
        start = stripe * BLOCK_BYTES
        blocks = {
            index: fragment[start : start + code.block_bytes(size_bytes, stripe, index)].ljust(length, b"\0")
            for index, fragment in have.items()
        }
        wanted = {index: memoryview(bytearray(length)) for index in range(code.data)}
        codec(code.data, code.parity).reconstruct(blocks, wanted)
        plain += [bytes(wanted[i][: code.block_bytes(size_bytes, stripe, i)]) for i in range(code.data)]
    return b"".join(plain)


def payload_of(path: Path) -> bytes:
    """What a fragment's file holds, once its header and footer were found sound."""
    with path.open("rb") as file:
        contents = read_contents(file.fileno())
        file.seek(channel.PAYLOAD_OFFSET)
        payload = file.read(contents.size_bytes)
    assert table_of(payload) == contents.table
    return payload


def fragment_intent(intent: pb.WriteIntent, code: Code, index: int) -> pb.WriteIntent:
    """As a primary relays a fragment of what came under ``intent``."""
    relayed = pb.WriteIntent()
    relayed.CopyFrom(intent)
    relayed.relayed = True
    relayed.fragment_index, relayed.code = index, str(code)
    relayed.source_size_bytes = intent.size_bytes
    relayed.size_bytes = code.fragment_bytes(intent.size_bytes, index)
    return relayed


def summary_of(data: bytes, fragment: bytes) -> pb.BlobSummary:
    return pb.BlobSummary(
        size_bytes=len(fragment),
        hash=hash_of(fragment),
        source_size_bytes=len(data),
        source_hash=hash_of(data),
        source_table=table_of(data),
    )


def relay(calls: StorageCalls, intent: pb.WriteIntent, fragment: bytes, summary: pb.BlobSummary) -> pb.StoredBlob:
    """Send one fragment to a member over its data channel."""
    with open_channel(calls.node, calls.open_write(intent).ticket) as connection:
        for start, end in block_spans(0, len(fragment)):
            block = fragment[start:end]
            connection.sendall(channel.BLOCK.pack(len(block), digest(block)) + block)
        connection.sendall(channel.end_of_blocks(summary))
        return channel.receive_answer(connection, pb.StoredBlob)
