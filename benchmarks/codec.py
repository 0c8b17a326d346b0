"""The erasure code on blocks of 1 MiB in reused memory, against raw ISA-L and against zfec's own kernel."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import zfec

from benchmarks.results import Result, alternate
from sdrs_core import erasure
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.isal import Isal, candidates

CODES = [(4, 2), (8, 3), (10, 4)]
STRIPES = 8  # together more than the caches hold: in use, blocks come from a socket or a disk
ROUNDS = 9

Stripe = list[memoryview]  # k data blocks, then m parity blocks


def codec(folder: Path) -> Iterator[Result]:
    """GB/s of user data: parity of k data blocks, and the same k blocks back when m of them are lost."""
    library = _load_isal()
    for k, m in CODES:
        random = np.random.default_rng(7)
        stripes = [
            [memoryview(random.integers(0, 256, BLOCK_BYTES, dtype=np.uint8)) for _ in range(k + m)]
            for _ in range(STRIPES)
        ]
        works = {"encode": _encode(library, k, m), "reconstruct": _reconstruct(library, k, m)}
        for name, ways in works.items():
            ours, raw, zfecs = alternate(ROUNDS, *(_rate(way, stripes, k) for way in ways))
            figure = f"codec_{k}+{m}_{name}"
            yield Result(figure, ours, "GB/s", "raw ISA-L ec_encode_data", ours / raw)
            yield Result(f"{figure}_over_zfec", ours, "GB/s", "zfec alone", ours / zfecs)


Way = Callable[[Stripe], object]


def _encode(library: Isal, k: int, m: int) -> list[Way]:
    ours, zfecs = erasure.codec(k, m), zfec.Encoder(k, k + m)
    parity = range(k, k + m)
    return [
        lambda stripe: ours.encode(stripe[:k], stripe[k:]),
        _raw(library, range(k), parity),
        lambda stripe: zfecs.encode(stripe[:k], parity),
    ]


def _reconstruct(library: Isal, k: int, m: int) -> list[Way]:
    ours, zfecs = erasure.codec(k, m), zfec.Decoder(k, k + m)
    lost, left = range(m), range(m, k + m)
    return [
        lambda stripe: ours.reconstruct({at: stripe[at] for at in left}, {at: stripe[at] for at in lost}),
        _raw(library, left, lost),
        lambda stripe: zfecs.decode(stripe[m:], left),
    ]


def _raw(library: Isal, sources: range, outputs: range) -> Way:
    """The call alone: no checks, the addresses known. What the coefficients are does not matter to it."""
    k, m = len(sources), len(outputs)
    tables = ctypes.create_string_buffer(32 * k * m)
    library.init_tables(k, m, bytes(range(1, k * m + 1)), tables)
    pointers: dict[int, tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]] = {}

    def multiply(stripe: Stripe) -> None:
        if id(stripe) not in pointers:
            addresses = [np.frombuffer(block, np.uint8).ctypes.data for block in stripe]
            pointers[id(stripe)] = (
                (ctypes.c_void_p * k)(*(addresses[at] for at in sources)),
                (ctypes.c_void_p * m)(*(addresses[at] for at in outputs)),
            )
        library.encode_data(BLOCK_BYTES, k, m, tables, *pointers[id(stripe)])

    return multiply


def _rate(way: Way, stripes: list[Stripe], k: int) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        for stripe in stripes:
            way(stripe)
        return k * BLOCK_BYTES * len(stripes) / (time.perf_counter() - start) / 1e9

    return measure


def _load_isal() -> Isal:
    for path in candidates():
        try:
            return Isal(path)
        except OSError:
            continue
    raise SystemExit(f"no ISA-L to compare with: this machine runs {erasure.kernel()}")
