"""The erasure code: k data blocks give m parity blocks, and any k of these k + m give the others.

The code is zfec's (systematic Reed-Solomon over GF(2^8)); what is on disk is defined by it alone. Two kernels compute
it, bit for bit the same: ISA-L wherever it is found, fed with zfec's very matrix, and zfec's own, which is many times
slower, elsewhere. ``SDRS_ERASURE_KERNEL=isal|zfec`` insists on one. Nothing is loaded before the first use.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from sdrs_core.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from sdrs_core.checksums import Buffer
    from sdrs_core.isal import Isal, Matrix

KERNEL_VARIABLE = "SDRS_ERASURE_KERNEL"
MAX_FRAGMENTS = 255
_CODECS_KEPT = 32
_PATTERNS_KEPT = 64  # inverted matrices of one codec: a repair meets the same few losses over and over


class Codec:
    """One code. Fragments 0 to k-1 are the data, k to k+m-1 the parity. Any number of threads may share it.

    Blocks are contiguous memory of any length, all equally long; inputs may be read-only, and outputs must not overlap
    them. Reuse the outputs: fresh memory costs several times what the arithmetic does. The GIL is released.
    """

    def __init__(self, k: int, m: int, kernel: Kernel) -> None:
        self.k, self.m = k, m
        self._kernel = kernel

    def __repr__(self) -> str:
        return f"Codec({self.k}+{self.m})"

    def encode(self, data: Sequence[Buffer], parity: Sequence[memoryview]) -> None:
        """Writes the parity of k data blocks into m blocks."""
        if (len(data), len(parity)) != (self.k, self.m):
            raise InvalidArgumentError(
                f"{self.k}+{self.m} encodes {self.k} data blocks into {self.m} parity blocks, "
                f"it was given {len(data)} and {len(parity)}"
            )
        inputs = self._views(dict(enumerate(data)))
        outputs = self._views(dict(enumerate(parity, self.k)), writable=True)
        if self._common_length(inputs | outputs):
            self._kernel.encode(list(inputs.values()), list(outputs.values()))

    def reconstruct(self, have: Mapping[int, Buffer], want: Mapping[int, memoryview]) -> None:
        """Writes the wanted fragments' blocks, data or parity, from those of at least k fragments, by index.

        Of more than k it uses k, data first.
        """
        strangers = sorted(index for index in {*have, *want} if not 0 <= index < self.k + self.m)
        if strangers:
            raise InvalidArgumentError(
                f"{self.k}+{self.m} has fragments 0 to {self.k + self.m - 1}, not {_listed(strangers)}"
            )
        if len(have) < self.k:
            raise InvalidArgumentError(
                f"{self.k}+{self.m} reconstructs from any {self.k} fragments, it was given {len(have)}"
                + (f" ({_listed(sorted(have))})" if have else "")
            )
        inputs = self._views({index: have[index] for index in sorted(have)[: self.k]})
        outputs = self._views({index: want[index] for index in sorted(want)}, writable=True)
        # An index may be on both sides, so the two are compared one after the other.
        if self._common_length(inputs, outputs) and outputs:
            self._kernel.reconstruct(inputs, outputs)

    def _views(self, blocks: Mapping[int, Buffer], *, writable: bool = False) -> dict[int, memoryview]:
        views = {}
        for index, block in blocks.items():
            view = memoryview(block)
            if not view.c_contiguous:
                raise InvalidArgumentError(f"block {index} of {self.k}+{self.m} is not contiguous: copy it first")
            if writable and view.readonly:
                raise InvalidArgumentError(f"block {index} of {self.k}+{self.m} is to be written and is read-only")
            is_plain = (view.format == "B" and view.ndim == 1) or not view.nbytes
            views[index] = view if is_plain else view.cast("B")
        return views

    def _common_length(self, *groups: Mapping[int, memoryview]) -> int:
        lengths = [(index, view.nbytes) for group in groups for index, view in group.items()]
        first, length = lengths[0]
        for index, other in lengths:
            if other != length:
                raise InvalidArgumentError(
                    f"blocks of {self.k}+{self.m} must be equally long: block {first} has {length} bytes, "
                    f"block {index} has {other}"
                )
        return length


def _listed(indexes: list[int]) -> str:
    return ", ".join(map(str, indexes))


def codec(k: int, m: int) -> Codec:
    """The codec for k data and m parity fragments, made once."""
    return _codec(k, m, os.environ.get(KERNEL_VARIABLE, ""))


def kernel() -> str:
    """What computes the code here, for logs and people, and why it is not ISA-L where it is not."""
    return _chosen(os.environ.get(KERNEL_VARIABLE, ""))[1]


class Kernel(Protocol):
    """Computes one code. Blocks are checked already: contiguous bytes, equally long, not empty, by rising index."""

    def encode(self, data: list[memoryview], parity: list[memoryview]) -> None: ...
    def reconstruct(self, have: dict[int, memoryview], want: dict[int, memoryview]) -> None:
        """``have`` are exactly k."""


class ZfecKernel:
    """zfec itself. It allocates what it computes, so every result is copied once."""

    def __init__(self, k: int, m: int) -> None:
        import zfec

        self._k = k
        self._encoder, self._decoder = zfec.Encoder(k, k + m), zfec.Decoder(k, k + m)

    def encode(self, data: list[memoryview], parity: list[memoryview]) -> None:
        self._write_parity(data, dict(enumerate(parity, self._k)))

    def reconstruct(self, have: dict[int, memoryview], want: dict[int, memoryview]) -> None:
        # The decoder sorts the lists that it is given, in place: they must be ours.
        data = self._decoder.decode(list(have.values()), list(have))
        for index, block in want.items():
            if index < self._k:
                block[:] = data[index]
        self._write_parity(data, {index: block for index, block in want.items() if index >= self._k})

    def _write_parity(self, data: list[memoryview], want: dict[int, memoryview]) -> None:
        if want:
            for block, parity in zip(want.values(), self._encoder.encode(data, tuple(want)), strict=True):
                block[:] = parity


class IsalKernel:
    """zfec's matrix in ISA-L's hands. A loss is undone by the inverse of those k rows that are left of it."""

    def __init__(self, k: int, m: int, isal: Isal) -> None:
        self._isal = isal
        # The unit matrix as data has zfec's coefficients as its parity.
        units = [bytes(row == column for column in range(k)) for row in range(k)]
        parity = [bytearray(k) for _ in range(m)]
        ZfecKernel(k, m).encode([memoryview(row) for row in units], [memoryview(row) for row in parity])
        self._rows = [*units, *map(bytes, parity)]
        self._parity = isal.matrix(self._rows[k:])
        self._recovery = lru_cache(maxsize=_PATTERNS_KEPT)(self._make_recovery)

    def encode(self, data: list[memoryview], parity: list[memoryview]) -> None:
        self._parity.multiply(data, parity)

    def reconstruct(self, have: dict[int, memoryview], want: dict[int, memoryview]) -> None:
        self._recovery(tuple(have), tuple(want)).multiply(list(have.values()), list(want.values()))

    def _make_recovery(self, have: tuple[int, ...], want: tuple[int, ...]) -> Matrix:
        """The matrix that turns the blocks in hand into the wanted ones: their rows times the inverse of ours."""
        inverse = self._isal.invert([self._rows[index] for index in have])
        rows = [bytearray(len(have)) for _ in want]
        wanted = self._isal.matrix([self._rows[index] for index in want])
        wanted.multiply([memoryview(row) for row in inverse], [memoryview(row) for row in rows])
        return self._isal.matrix([bytes(row) for row in rows])


@lru_cache(maxsize=_CODECS_KEPT)
def _codec(k: int, m: int, wish: str) -> Codec:
    if k < 1 or m < 1:
        raise InvalidArgumentError(f"an erasure code has at least 1 data and 1 parity fragment, not {k}+{m}")
    if k + m > MAX_FRAGMENTS:
        raise InvalidArgumentError(
            f"an erasure code has at most {MAX_FRAGMENTS} fragments, {k}+{m} would have {k + m}: use fewer"
        )
    isal = _chosen(wish)[0]
    return Codec(k, m, ZfecKernel(k, m) if isal is None else IsalKernel(k, m, isal))


@lru_cache(maxsize=8)
def _chosen(wish: str) -> tuple[Isal | None, str]:
    """ISA-L or None for zfec, and what to call it."""
    if wish not in ("", "isal", "zfec"):
        raise InvalidArgumentError(f"{KERNEL_VARIABLE} is {wish!r}: set it to isal or zfec, or unset it")
    why = f"{KERNEL_VARIABLE}=zfec"
    if wish != "zfec":
        isal, problems = _find_isal()
        if isal is not None:
            return isal, str(isal)
        why = f"ISA-L not found: {'; '.join(problems)}"
        if wish == "isal":
            raise UnsupportedError(f"{KERNEL_VARIABLE}=isal, but {why}. Install libisal2 or pyeclib, or unset it")
    import zfec

    return None, f"zfec {zfec.__version__} ({why})"


def _find_isal() -> tuple[Isal | None, list[str]]:
    from sdrs_core import isal

    problems = []
    for path in isal.candidates():
        try:
            found = isal.Isal(path)
        except (OSError, AttributeError) as error:
            problems.append(str(error))
            continue
        if _agrees_with_zfec(found):
            return found, problems
        problems.append(f"{found.path} computes another code than zfec")
        warnings.warn(f"{problems[-1]} and is not used: replace it", RuntimeWarning, stacklevel=2)
    return None, problems


def _agrees_with_zfec(isal: Isal) -> bool:
    """A small code both ways, over lengths that end inside of a vector and after several."""
    k, m = 3, 2
    kernels = (ZfecKernel(k, m), IsalKernel(k, m, isal))
    for length in (1, 47, 300):
        data = [memoryview(bytes((7 * at * at + 89 * index + 1) % 256 for at in range(length))) for index in range(k)]
        results = []
        for one in kernels:
            outputs = [memoryview(bytearray(length)) for _ in range(m + 2)]
            one.encode(data, outputs[:m])
            try:
                one.reconstruct({1: data[1], 3: outputs[0], 4: outputs[1]}, {0: outputs[m], 2: outputs[m + 1]})
            except ArithmeticError:  # it finds no inverse where there is one
                return False
            results.append([bytes(output) for output in outputs])
        if results[0] != results[1]:
            return False
    return True
