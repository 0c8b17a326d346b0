"""What is read of coded blobs, where it is found, and where it goes: mirrors, new records, byte ranges, targets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from sdrs.memory import allocate
from sdrs.restore.blocks import BlockTable
from sdrs.restore.decoding import Decoding, Scratch
from sdrs.restore.stripes import stripes
from sdrs.restore.targets import BufferedTarget, ByteCount, MemoryTarget
from sdrs.transfer import Summary
from sdrs_core.checkpoints import Blob
from sdrs_core.codes import Code
from sdrs_core.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from tests.support.coded_nodes import BLOCK, STRIPES, CodedNodes, nodes_of, quick_reading


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with quick_reading():
        yield


def test_the_mirror_serves_when_the_own_pool_cannot_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for code in (None, Code(2, 1)):
        caplog.clear()
        nodes = nodes_of(STRIPES)
        nodes.mirror = CodedNodes(nodes.content, code, blob_id="d" * 32)
        nodes.mirror.fragments = {(name.upper(), index): one for (name, index), one in nodes.mirror.fragments.items()}
        assert nodes.read() == nodes.content
        assert nodes.asked_names == set("abcd")
        assert "mirror" not in caplog.text
        for name in "abc":
            nodes.trouble(name, "dies", 3)
        seen: list[int] = []
        reader = nodes.reader(ByteCount(lambda read, total, seen=seen: seen.append(read), STRIPES))  # type: ignore[misc]
        target = MemoryTarget(reader.shard.blobs)
        reader.read(reader.shard.blobs, target)
        assert target.buffer(nodes.blob) == nodes.content
        assert caplog.text.count("is read from its mirror") == 1
        # It went on where the own pool had ended.
        assert seen[-1] == max(seen) == STRIPES
        for fragment in nodes.mirror.fragments.values():
            fragment.trouble = nodes.fragments["a", 0].trouble
        with pytest.raises(UnavailableError, match="out of reach"):
            nodes.read()


def test_a_blob_that_was_coded_anew_is_found_under_its_new_id() -> None:
    nodes = nodes_of(STRIPES)
    for name in "abc":
        nodes.trouble(name, "missing", 0)
    nodes.newer = CodedNodes(nodes.content, Code(3, 2), blob_id="e" * 32)
    assert nodes.read() == nodes.content
    assert nodes.list_count == 1


def test_a_code_that_is_not_known_is_refused_with_what_to_do() -> None:
    nodes = nodes_of(STRIPES)
    record = nodes.record()
    record.shards[0].blobs[0].code = "lrc-7"
    nodes.record = lambda: record  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="upgrade"):
        nodes.read()


# Parts, targets, progress


def test_a_byte_range_is_read_from_the_fragments_that_have_it() -> None:
    nodes = nodes_of(STRIPES)
    reader = nodes.reader()
    target = MemoryTarget(reader.shard.blobs)
    reader.read_range(reader.shard.blobs[0], 5 * BLOCK + 10, 6 * BLOCK + 1, target)
    assert target.buffer(nodes.blob)[5 * BLOCK : 7 * BLOCK] == nodes.content[5 * BLOCK : 7 * BLOCK]
    assert nodes.asked_names == set("bc")
    reader.read_range(reader.shard.blobs[0], 7, 7, target)
    with pytest.raises(InvalidArgumentError):
        reader.read_range(reader.shard.blobs[0], 7, STRIPES + 1, target)


@pytest.mark.parametrize("lost", ["b", "ab", "bc"])
def test_a_byte_range_is_decoded_where_its_fragments_are_lost(lost: str) -> None:
    nodes = nodes_of(STRIPES)
    for name in lost:
        nodes.trouble(name, "missing")
    for start, end in [(5 * BLOCK, 6 * BLOCK), (3 * BLOCK, 14 * BLOCK), (STRIPES - 90, STRIPES), (0, 1)]:
        reader = nodes.reader()
        target = MemoryTarget(reader.shard.blobs)
        reader.read_range(reader.shard.blobs[0], start, end, target)
        assert target.buffer(nodes.blob)[start:end] == nodes.content[start:end]
    nodes.check_closed()


def test_what_goes_through_a_buffer_comes_once_in_order_and_progress_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sdrs.restore.stripes.RANGE_BYTES", 8 * BLOCK)
    nodes = nodes_of(STRIPES)
    nodes.trouble("b", "flip", 3)
    nodes.trouble("d", "dies", 4)
    written = bytearray(STRIPES)
    taken: list[tuple[int, int]] = []

    def write(blob: Blob, start: int, verified: memoryview) -> None:
        written[start : start + len(verified)] = verified
        taken.append((start, start + len(verified)))

    seen: list[int] = []
    reader = nodes.reader(ByteCount(lambda read, total: seen.append(read), STRIPES))
    reader.read(reader.shard.blobs, BufferedTarget(write))
    assert written == nodes.content
    taken.sort()
    assert all(before[1] == after[0] for before, after in pairwise(taken))
    assert seen == sorted(seen)
    assert seen[-1] == STRIPES


def test_short_stripes_are_filled_up_with_zeros_whatever_the_memory_held() -> None:
    for size_bytes in (1, 100, BLOCK, BLOCK + 7, 3 * BLOCK - 1):
        nodes = nodes_of(size_bytes, Code(3, 2))
        (stripe,) = stripes(Code(3, 2), size_bytes, 0, size_bytes)
        for lost in range(-(-size_bytes // BLOCK)):
            scratch = Scratch()
            for use in ("read", "padded", "short"):
                for index in range(5):
                    scratch.block(use, index)[:] = b"\xaa" * BLOCK
            window = allocate(size_bytes)
            decoding = Decoding(stripe, window, scratch)
            for (_, index), fragment in nodes.fragments.items():
                if index != lost and index not in decoding.have and index < 4:
                    decoding.place(index)[: len(fragment.content)] = fragment.content
                    decoding.add(index)
            summary = Summary.of_copy(size_bytes, nodes.hash, nodes.table)
            assert decoding.complete(BlockTable(nodes.blob, summary))
            assert window[:size_bytes] == nodes.content
