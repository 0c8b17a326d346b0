"""The erasure code: both kernels compute zfec's, from and into any kind of memory."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest
import zfec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdrs_core import erasure, isal
from sdrs_core.erasure import Codec, codec, kernel
from sdrs_core.errors import InvalidArgumentError, UnsupportedError

KERNELS = ("isal", "zfec")
CODES = [(1, 1), (2, 1), (4, 2), (8, 3), (10, 4), (17, 3), (200, 55)]

both = pytest.mark.parametrize("name", KERNELS)


def codec_of(name: str, k: int, m: int) -> Codec:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(erasure.KERNEL_VARIABLE, name)
        return codec(k, m)


def random_blocks(random: Random, count: int, length: int) -> list[bytes]:
    return [random.randbytes(length) for _ in range(count)]


def encoded(one: Codec, data: Sequence[bytes]) -> list[bytes]:
    """Data and parity."""
    parity = [bytearray(len(data[0])) for _ in range(one.m)]
    one.encode(data, [memoryview(block) for block in parity])
    return [*data, *map(bytes, parity)]


def reconstructed(one: Codec, blocks: Sequence[bytes], have: Sequence[int], want: Sequence[int]) -> list[bytes]:
    outputs = {index: bytearray(b"\xa5" * len(blocks[0])) for index in want}
    one.reconstruct(
        {index: blocks[index] for index in have}, {index: memoryview(block) for index, block in outputs.items()}
    )
    return [bytes(outputs[index]) for index in want]


@pytest.fixture
def _nothing_chosen_yet() -> Iterator[None]:
    erasure._chosen.cache_clear()
    yield
    erasure._chosen.cache_clear()


# The code.


@both
def test_the_code_on_disk_never_changes(name: str) -> None:
    data = [bytes(range(start, start + 16)) for start in range(0, 64, 16)]
    parity = [block.hex() for block in encoded(codec_of(name, 4, 2), data)[4:]]
    assert parity == ["1a1b18191e1f1c1d1213101116171415", "909192939495969798999a9b9c9d9e9f"]


@both
@pytest.mark.parametrize(("k", "m"), CODES)
def test_the_code_is_that_of_zfec(name: str, k: int, m: int) -> None:
    random, one = Random(f"{k}+{m}"), codec_of(name, k, m)
    data = random_blocks(random, k, 1003)
    blocks = encoded(one, data)
    assert blocks == zfec.Encoder(k, k + m).encode(data)
    for _ in range(3):
        have = random.sample(range(k + m), k)
        lost = sorted(set(range(k + m)) - set(have))
        assert reconstructed(one, blocks, have, lost) == [blocks[index] for index in lost]


@both
@pytest.mark.parametrize(("k", "m"), [(1, 1), (1, 3), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_every_loss_that_a_small_code_survives_is_undone(name: str, k: int, m: int) -> None:
    one = codec_of(name, k, m)
    blocks = encoded(one, random_blocks(Random(7), k, 97))
    for have in combinations(range(k + m), k):
        # Those in hand are wanted too, which is silly but has an answer.
        assert reconstructed(one, blocks, have, range(k + m)) == blocks


@given(
    k=st.integers(1, 24),
    m=st.integers(1, 9),
    length=st.one_of(st.integers(0, 200), st.integers(0, 20_000)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_both_kernels_agree(k: int, m: int, length: int, seed: int) -> None:
    random = Random(seed)
    data = random_blocks(random, k, length)
    fast, slow = codec_of("isal", k, m), codec_of("zfec", k, m)
    blocks = encoded(fast, data)
    assert blocks == encoded(slow, data)
    have = random.sample(range(k + m), random.randint(k, k + m))
    want = random.sample(range(k + m), random.randint(1, k + m))
    expected = [blocks[index] for index in want]
    assert reconstructed(fast, blocks, have, want) == expected
    assert reconstructed(slow, blocks, have, want) == expected


@both
def test_blocks_may_have_any_length(name: str) -> None:
    one = codec_of(name, 3, 2)
    for length in (*range(300), 4095, 4096, 4097):
        data = random_blocks(Random(length), 3, length)
        blocks = encoded(one, data)
        assert blocks == zfec.Encoder(3, 5).encode(data), length
        assert reconstructed(one, blocks, (1, 3, 4), (0, 2)) == [data[0], data[2]], length


def test_blocks_longer_than_a_call_of_isal_takes_are_done_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isal, "_MAX_CALL_BYTES", 100)
    data = random_blocks(Random(7), 3, 1050)
    assert encoded(codec_of("isal", 3, 2), data) == zfec.Encoder(3, 5).encode(data)


@both
def test_of_more_blocks_than_needed_the_data_is_used(name: str) -> None:
    one = codec_of(name, 3, 2)
    blocks = encoded(one, random_blocks(Random(7), 3, 64))
    rubbish = bytes(64)
    assert reconstructed(one, [*blocks[:3], rubbish, rubbish], range(5), (1, 3, 4)) == [blocks[i] for i in (1, 3, 4)]
    assert reconstructed(one, [*blocks[:4], rubbish], (4, 3, 2, 0), (1,)) == [blocks[1]]


@both
def test_empty_blocks_of_any_type_are_nothing_to_do(name: str) -> None:
    codec_of(name, 2, 1).encode([b"", memoryview(np.empty(0, np.float32))], [memoryview(np.empty((0, 4), np.int8))])


@both
def test_nothing_wanted_is_nothing_done(name: str) -> None:
    blocks = encoded(codec_of(name, 2, 1), [b"abc", b"def"])
    assert reconstructed(codec_of(name, 2, 1), blocks, (0, 1), ()) == []


# Memory and threads.


@both
def test_blocks_may_be_any_memory(name: str, tmp_path: Path) -> None:
    data = random_blocks(Random(7), 5, 4096)
    (tmp_path / "blocks").write_bytes(b"x" + data[0] + data[1])
    with open(tmp_path / "blocks", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    odd = memoryview(mapped)
    mixed = [
        odd[1:4097],
        odd[4097:],
        bytearray(data[2]),
        memoryview(np.frombuffer(data[3], dtype=np.float32).reshape(32, 32)),
        memoryview(data[4]),
    ]
    outputs = [memoryview(np.empty((64, 64), np.uint8)), memoryview(mmap.mmap(-1, 4096)), memoryview(bytearray(4097))]
    outputs[2] = outputs[2][1:]
    one, parity = codec_of(name, 5, 3), zfec.Encoder(5, 8).encode(data, (5, 6, 7))
    one.encode(mixed, outputs)
    assert [output.tobytes() for output in outputs] == parity
    into = memoryview(np.empty(1024, np.float32))
    one.reconstruct({1: mixed[1], 3: mixed[3], 4: mixed[4], 5: outputs[0], 7: outputs[2]}, {0: into})
    assert into.tobytes() == data[0]


@both
def test_memory_is_let_go_afterwards(name: str) -> None:
    data, parity = [bytearray(b"abc"), bytearray(b"def")], [bytearray(3), bytearray(3)]
    codec_of(name, 2, 2).encode(data, parity)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        codec_of(name, 2, 2).encode(data, [parity[0], b"123"])  # type: ignore[list-item]
    for block in (*data, *parity):
        block.append(1)  # BufferError as long as anybody holds its memory


@both
def test_threads_share_a_codec(name: str) -> None:
    one = codec_of(name, 6, 3)

    def work(seed: int) -> None:
        random = Random(seed)
        data = random_blocks(random, 6, 30_000)
        expected = zfec.Encoder(6, 9).encode(data)
        for _ in range(10):
            assert encoded(one, data) == expected
            have = random.sample(range(9), 6)
            assert reconstructed(one, expected, have, range(9)) == expected

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(16)))


@both
def test_others_run_while_blocks_are_computed(name: str) -> None:
    one, data = codec_of(name, 4, 2), [bytes(1 << 20)] * 4
    outputs = [memoryview(bytearray(1 << 20)) for _ in range(2)]
    started, seen = threading.Event(), threading.Event()
    calls = 0

    def work() -> None:
        nonlocal calls
        started.set()
        while calls < 1000 and not seen.is_set():
            one.encode(data, outputs)
            calls += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is made to give up the GIL, so we run only if the kernel releases it
    try:
        worker = threading.Thread(target=work)
        worker.start()
        started.wait()
        seen.set()
    finally:
        sys.setswitchinterval(interval)
    worker.join()
    assert calls < 1000


def test_the_same_loss_is_inverted_once_for_as_long_as_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    inverted: list[int] = []
    real = isal.Isal.invert
    monkeypatch.setattr(isal.Isal, "invert", lambda self, rows: inverted.append(len(rows)) or real(self, rows))
    monkeypatch.setattr(erasure, "_PATTERNS_KEPT", 4)
    library = erasure._chosen("isal")[0]
    assert library is not None
    one = Codec(5, 2, erasure.IsalKernel(5, 2, library))
    blocks = encoded(one, random_blocks(Random(7), 5, 32))
    for _ in range(3):
        reconstructed(one, blocks, (1, 2, 3, 4, 5), (0,))
    assert len(inverted) == 1
    for lost in range(1, 5):
        reconstructed(one, blocks, sorted({*range(6)} - {lost}), (lost,))
    reconstructed(one, blocks, (1, 2, 3, 4, 5), (0,))
    assert len(inverted) == 6


def test_a_codec_is_made_once() -> None:
    assert codec(4, 2) is codec(4, 2)
    assert (codec(4, 2).k, codec(4, 2).m) == (4, 2)


# Refusals.


@pytest.mark.parametrize(
    ("k", "m", "words"),
    [(0, 1, "not 0+1"), (4, 0, "not 4+0"), (-1, 5, "not -1+5"), (200, 56, "at most 255 fragments, 200+56 would have")],
)
def test_a_code_that_cannot_be_is_refused(k: int, m: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        codec(k, m)
    assert words in refused.value.message


def out(length: int) -> memoryview:
    return memoryview(bytearray(length))


@both
@pytest.mark.parametrize(
    ("data", "parity", "words"),
    [
        ([b"abc"], [out(3), out(3)], "given 1 and 2"),
        ([b"abc"] * 2, [out(3)], "given 2 and 1"),
        ([b"abc", b"ab"], [out(3), out(3)], "block 0 has 3 bytes, block 1 has 2"),
        ([b"abc", b"abc"], [out(3), out(4)], "block 0 has 3 bytes, block 3 has 4"),
        ([b"", b""], [out(0), out(4)], "block 0 has 0 bytes, block 3 has 4"),
        ([b"abc", b"abc"], [out(3), memoryview(b"abc")], "block 3 of 2+2 is to be written and is read-only"),
        ([b"abc", memoryview(b"aabbc")[::2]], [out(3), out(3)], "block 1 of 2+2 is not contiguous"),
        ([b"abc", b"abc"], [out(6)[::2], out(3)], "block 2 of 2+2 is not contiguous"),
    ],
)
def test_blocks_that_do_not_fit_are_not_encoded(
    name: str, data: list[bytes], parity: list[memoryview], words: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        codec_of(name, 2, 2).encode(data, parity)
    assert words in refused.value.message


@both
@pytest.mark.parametrize(
    ("have", "want", "words"),
    [
        ({}, {0: out(3)}, "from any 2 fragments, it was given 0"),
        ({3: b"abc"}, {0: out(3)}, "given 1 (3)"),
        ({0: b"abc", 4: b"abc"}, {1: out(3)}, "has fragments 0 to 3, not 4"),
        ({0: b"abc", 2: b"abc"}, {-1: out(3), 7: out(3)}, "has fragments 0 to 3, not -1, 7"),
        ({1: b"abc", 2: b"abcd"}, {0: out(3)}, "block 1 has 3 bytes, block 2 has 4"),
        ({1: b"abc", 2: b"abc"}, {0: out(2)}, "block 1 has 3 bytes, block 0 has 2"),
        ({1: b"abc", 2: b"abc"}, {1: out(2)}, "block 1 has 3 bytes, block 1 has 2"),
        ({1: b"abc", 2: b"abc"}, {0: memoryview(b"abc")}, "block 0 of 2+2 is to be written and is read-only"),
    ],
)
def test_blocks_that_do_not_fit_are_not_reconstructed(
    name: str, have: dict[int, bytes], want: dict[int, memoryview], words: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        codec_of(name, 2, 2).reconstruct(have, want)
    assert words in refused.value.message


# Which kernel.


def test_isal_is_used_where_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(erasure.KERNEL_VARIABLE, raising=False)
    assert kernel().startswith("ISA-L ")
    path = Path(kernel().partition("(")[2].rstrip(")"))
    assert path.is_absolute()
    assert path.is_file()
    assert "libisal" in path.name


def test_zfec_can_be_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(erasure.KERNEL_VARIABLE, "zfec")
    assert kernel() == f"zfec {zfec.__version__} (SDRS_ERASURE_KERNEL=zfec)"


def test_a_kernel_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(erasure.KERNEL_VARIABLE, "gpu")
    for ask in (kernel, lambda: codec(4, 2)):
        with pytest.raises(InvalidArgumentError, match="SDRS_ERASURE_KERNEL is 'gpu': set it to isal or zfec"):
            ask()


@pytest.mark.usefixtures("_nothing_chosen_yet")
@pytest.mark.parametrize("library", ["no-such-isal.so.2", "libc.so.6"])
def test_without_isal_zfec_is_used_unless_isal_is_insisted_on(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isal, "candidates", lambda: [library])
    monkeypatch.delenv(erasure.KERNEL_VARIABLE, raising=False)
    assert kernel().startswith(f"zfec {zfec.__version__} (ISA-L not found: ")
    assert library in kernel()
    monkeypatch.setenv(erasure.KERNEL_VARIABLE, "isal")
    with pytest.raises(UnsupportedError, match=r"SDRS_ERASURE_KERNEL=isal, but ISA-L not found: .*\. Install libisal2"):
        kernel()


@pytest.mark.usefixtures("_nothing_chosen_yet")
@pytest.mark.parametrize("broken", ["init_tables", "encode_data", "_invert_matrix"])
def test_an_isal_that_computes_something_else_is_not_used(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(erasure.KERNEL_VARIABLE, raising=False)
    real = isal.Isal.__init__

    def init(self: isal.Isal, path: str) -> None:
        real(self, path)
        setattr(self, broken, lambda *arguments: -1)

    monkeypatch.setattr(isal.Isal, "__init__", init)
    with pytest.warns(RuntimeWarning, match="computes another code than zfec and is not used: replace it"):
        assert kernel().startswith("zfec ")
    assert "libisal" in kernel()


@pytest.mark.usefixtures("_nothing_chosen_yet")
def test_the_next_isal_is_tried_where_the_first_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = erasure._chosen("isal")[1]
    erasure._chosen.cache_clear()
    real = list(isal.candidates())
    monkeypatch.setattr(isal, "candidates", lambda: ["libc.so.6", *real])
    assert erasure._chosen("isal")[1] == found


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = "import sys, sdrs_core.erasure; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert not {"zfec", "ctypes", "numpy", "pyeclib", "xxhash", "sdrs_core.isal"} & set(loaded.stdout.split())
