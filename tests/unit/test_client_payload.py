from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs.errors import SaveFailedError
from sdrs.save.payload import blocks, hash_payload
from sdrs.save.private_memory import CHUNK_BYTES, Staging
from sdrs_core.checkpoints import content_hash
from sdrs_core.checksums import BLOCK_BYTES, blob_hash, digest


@dataclass
class Pieces:
    """A blob in pieces that all come in one reused buffer, as a file's do: each is valid until the next one."""

    sizes: list[int]
    said_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes) if self.said_bytes is None else self.said_bytes

    @property
    def content(self) -> bytes:
        return b"".join(bytes([number % 251]) * size for number, size in enumerate(self.sizes))

    def segments(self) -> Iterator[memoryview]:
        buffer = bytearray(max(self.sizes, default=0))
        for number, size in enumerate(self.sizes):
            buffer[:size] = bytes([number % 251]) * size
            yield memoryview(buffer)[:size]


@dataclass
class Shard:
    blobs: list[Pieces]

    @property
    def total_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)


SIZES = st.lists(
    st.one_of(st.integers(0, 100), st.integers(BLOCK_BYTES - 2, BLOCK_BYTES + 2), st.just(2 * BLOCK_BYTES + 7)),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_blocks_are_the_content_cut_at_block_borders(sizes: list[int]) -> None:
    blob = Pieces(sizes)
    cut = [bytes(block) for block in blocks(blob)]
    assert b"".join(cut) == blob.content
    assert all(len(block) == BLOCK_BYTES for block in cut[:-1])
    assert not cut or 0 < len(cut[-1]) <= BLOCK_BYTES


@pytest.mark.parametrize(("sizes", "said"), [([10, 10], 15), ([10], 15), ([2 * BLOCK_BYTES], BLOCK_BYTES), ([5], 0)])
def test_a_blob_that_is_not_as_long_as_it_said_fails_the_save(sizes: list[int], said: int) -> None:
    with pytest.raises(SaveFailedError, match="changed while it was saved"):
        list(blocks(Pieces(sizes, said)))


def test_a_payload_hashes_as_its_blobs_do() -> None:
    shard = Shard([Pieces([3, BLOCK_BYTES]), Pieces([7])])
    expected = []
    for blob in shard.blobs:
        content = blob.content
        table = b"".join(digest(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))
        expected.append((len(content), blob_hash(len(content), table)))
    assert hash_payload(shard) == content_hash(expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=3))
def test_a_staged_copy_has_the_same_bytes_and_can_be_read_again(shard_sizes: list[list[int]]) -> None:
    shard = Shard([Pieces(sizes) for sizes in shard_sizes])
    staging = Staging(64 << 20)
    staged = staging.stage(shard)
    for _ in range(2):
        assert [b"".join(blob.segments()) for blob in staged.blobs] == [blob.content for blob in shard.blobs]
    assert staged.total_bytes == shard.total_bytes
    staging.release(staged)


def test_staging_memory_is_reused_and_never_exceeds_its_budget() -> None:
    staging = Staging(2 * CHUNK_BYTES)
    first = staging.stage(Shard([Pieces([CHUNK_BYTES])]))
    second = staging.stage(Shard([Pieces([CHUNK_BYTES])]))
    staged = threading.Event()
    waiting = threading.Thread(target=lambda: (staging.stage(Shard([Pieces([CHUNK_BYTES])])), staged.set()))
    waiting.start()
    assert not staged.wait(0.1), "a third save found room beyond the budget"
    memory = {id(chunk.obj) for chunk in (*first.chunks, *second.chunks)}
    staging.release(first)
    waiting.join(5)
    assert staged.is_set()
    staging.release(second)
    again = staging.stage(Shard([Pieces([10])]))
    assert {id(chunk.obj) for chunk in again.chunks} <= memory


def test_a_payload_that_fails_while_it_is_staged_gives_its_room_back() -> None:
    class Broken(Pieces):
        def segments(self) -> Iterator[memoryview]:
            raise SaveFailedError("the file changed")

    staging = Staging(CHUNK_BYTES)
    with pytest.raises(SaveFailedError):
        staging.stage(Shard([Broken([CHUNK_BYTES])]))
    staging.release(staging.stage(Shard([Pieces([CHUNK_BYTES])])))
