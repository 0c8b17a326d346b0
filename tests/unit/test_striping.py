"""A blob that is cut while it comes in: any k fragments bring it back, and memory is used again in time (I10)."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.checksums import BLOCK_BYTES, blob_hash, block_spans, digest
from sdrs_core.codes import Code
from sdrs_core.errors import CorruptDataError, InvalidArgumentError
from sdrs_core.ids import BlobId
from sdrs_storaged.rpc.relay import BLOCKS_AHEAD
from sdrs_storaged.rpc.striping import CutBlob, Striping
from sdrs_storaged.store.buffers import BufferPool
from tests.support.fragments import joined
from tests.support.stores import hash_of, table_of

BLOB = BlobId("ab" * 16)
MIB = BLOCK_BYTES
Put = Callable[[int, bytes, memoryview], None]


def _data(size_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size_bytes)


class _UsedPool(BufferPool):
    """Memory as the last blob left it."""

    def take(self) -> mmap.mmap:
        buffer = super().take()
        buffer[:] = b"\xff" * len(buffer)
        return buffer


def _striping(code: Code, size_bytes: int, put: Put, pool: BufferPool | None = None) -> Striping:
    return Striping(BLOB, code, size_bytes, pool or _UsedPool(0), put, set(range(code.total)))


def _cut(code: Code, data: bytes, put: Put) -> CutBlob:
    striping = _striping(code, len(data), put)
    for start, end in block_spans(0, len(data)):
        block = striping.next_block()[: end - start]
        block[:] = data[start:end]
        striping.commit_block(end - start, digest(data[start:end]))
    cut = striping.finish(len(data), hash_of(data))
    striping.close()
    return cut


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Code, int, list[int]]:
    code = Code(draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    blocks = draw(st.integers(0, 2 * code.data + 1))
    size_bytes = max(1, blocks * MIB + draw(st.sampled_from([0, 1, 4095, MIB // 2 + 3, MIB - 1])))
    left = draw(st.permutations(range(code.total)))[: code.data]
    return code, size_bytes, left


@settings(max_examples=40, deadline=None)
@given(_cases())
def test_any_k_fragments_bring_the_blob_back(case: tuple[Code, int, list[int]]) -> None:
    code, size_bytes, left = case
    data = _data(size_bytes, size_bytes)
    fragments: dict[int, list[bytes]] = {index: [] for index in range(code.total)}

    def put(index: int, checksum: bytes, block: memoryview) -> None:
        assert digest(block) == checksum
        fragments[index].append(bytes(block))

    cut = _cut(code, data, put)
    assert (cut.size_bytes, cut.hash, cut.table) == (size_bytes, hash_of(data), table_of(data))
    whole = {index: b"".join(blocks) for index, blocks in fragments.items()}
    for index, fragment in whole.items():
        assert len(fragment) == cut.fragment_bytes(index) == code.fragment_bytes(size_bytes, index)
        assert cut.tables[index] == table_of(fragment)
        assert cut.fragment_hash(index) == blob_hash(len(fragment), table_of(fragment))
    assert joined(code, {index: whole[index] for index in left}, size_bytes) == data


def test_blocks_stay_as_they_are_for_whoever_is_as_far_behind_as_a_relay_may_be() -> None:
    code = Code(3, 2)
    waiting: dict[int, deque[tuple[bytes, memoryview]]] = {index: deque() for index in range(code.total)}

    def put(index: int, checksum: bytes, block: memoryview) -> None:
        late = waiting[index]
        while len(late) >= BLOCKS_AHEAD:
            told, sent = late.popleft()
            assert digest(sent) == told, f"fragment {index} was written over before it was sent"
        late.append((checksum, block))

    data = _data(14 * MIB + 77)
    striping = _striping(code, len(data), put)
    for start, end in block_spans(0, len(data)):
        striping.append(data[start:end], digest(data[start:end]))
    striping.finish(len(data), hash_of(data))
    for late in waiting.values():
        assert all(digest(sent) == told for told, sent in late)


def test_memory_is_that_of_three_stripes_and_goes_back_to_the_pool() -> None:
    class Counted(BufferPool):
        taken = given = 0

        def take(self) -> mmap.mmap:
            self.taken += 1
            return super().take()

        def give(self, buffer: mmap.mmap) -> None:
            self.given += 1
            super().give(buffer)

    pool = Counted(100)
    code = Code(4, 2)
    data = _data(40 * MIB)
    for count in (9, 9):
        pool.taken = 0
        striping = _striping(code, len(data), lambda index, checksum, block: None, pool)
        for start, end in block_spans(0, len(data)):
            striping.append(data[start:end], digest(data[start:end]))
        striping.finish(len(data), hash_of(data))
        striping.close()
        assert pool.taken == count  # three stripes of six blocks, two to a buffer
    assert pool.given == 18


def test_parity_that_nobody_stores_is_not_computed() -> None:
    code, put = Code(2, 1), []
    data = _data(4 * MIB)
    striping = Striping(BLOB, code, len(data), BufferPool(0), lambda *args: put.append(args[0]), {0})
    for start, end in block_spans(0, len(data)):
        striping.append(data[start:end], digest(data[start:end]))
    striping.finish(len(data), hash_of(data))
    assert set(put) == {0, 1}


def _nothing(index: int, checksum: bytes, block: memoryview) -> None:
    return None


def test_a_damaged_block_is_not_passed_on() -> None:
    def put(index: int, checksum: bytes, block: memoryview) -> None:
        raise AssertionError("it was passed on")

    with pytest.raises(CorruptDataError, match="does not match its checksum"):
        _striping(Code(2, 1), 4 * MIB, put).append(b"x" * MIB, digest(b"y"))


@pytest.mark.parametrize("came", [3 * MIB, 4 * MIB - 1])
def test_a_blob_of_another_size_than_announced_is_refused(came: int) -> None:
    data = _data(came)
    striping = _striping(Code(2, 1), 4 * MIB, _nothing)
    for start, end in block_spans(0, len(data)):
        striping.append(data[start:end], digest(data[start:end]))
    with pytest.raises(CorruptDataError, match="should have"):
        striping.finish(len(data), hash_of(data))


def test_more_than_announced_is_refused_as_it_comes() -> None:
    block = _data(MIB)
    striping = _striping(Code(2, 1), 2 * MIB, _nothing)
    for _ in range(2):
        striping.append(block, digest(block))
    with pytest.raises(CorruptDataError, match="more came"):
        striping.append(b"x", digest(b"x"))


def test_a_block_after_a_short_one_is_refused() -> None:
    striping = _striping(Code(2, 1), 4 * MIB, _nothing)
    striping.append(b"short", digest(b"short"))
    with pytest.raises(InvalidArgumentError, match="follows a short one"):
        striping.append(b"x", digest(b"x"))


def test_a_hash_that_is_another_blobs_is_refused() -> None:
    block = _data(MIB)
    striping = _striping(Code(1, 1), MIB, _nothing)
    striping.append(block, digest(block))
    with pytest.raises(CorruptDataError, match="does not match the hash"):
        striping.finish(MIB, hash_of(b"other"))


def test_the_first_digest_of_a_block_is_that_of_the_bytes_which_go_on() -> None:
    put: list[tuple[int, bytes, bytes]] = []
    data = _data(2 * MIB + 9)
    striping = _striping(Code(2, 1), len(data), lambda *block: put.append((block[0], block[1], bytes(block[2]))))
    table = b""
    for start, end in block_spans(0, len(data)):
        striping.next_block()[: end - start] = data[start:end]
        table += striping.commit_block(end - start, None)
    assert table == table_of(data)
    assert striping.finish(len(data), blob_hash(len(data), table)).table == table
    assert all(digest(block) == checksum for _, checksum, block in put)
