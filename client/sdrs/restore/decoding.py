"""One stripe: the blocks of it that are verified, and the others computed from these."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from sdrs.memory import allocate, round_up
from sdrs.restore.blocks import BlockTable
from sdrs.restore.stripes import Stripe
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.erasure import Codec, codec

# Of parity that is wrong all combinations are tried; with many fragments that would never end.
MAX_COMBINATIONS = 64


class Scratch:
    """Blocks that one thread uses over and over: fresh memory costs more than the arithmetic."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, int], memoryview] = {}

    def block(self, use: str, index: int) -> memoryview:
        key = (use, index)
        if key not in self._blocks:
            self._blocks[key] = allocate(BLOCK_BYTES)
        return self._blocks[key]


class Decoding:
    """``window`` takes the stripe's wanted bytes.

    Blocks are read to where ``place`` says and told by ``add`` once they are verified, until ``complete``.
    """

    def __init__(self, stripe: Stripe, window: memoryview, scratch: Scratch) -> None:
        self.stripe = stripe
        self.missing = set(stripe.wanted)
        # Fragments whose blocks match their own checksums, and not the blob's (P9).
        self.wrong: set[int] = set()
        self._window = window
        self._scratch = scratch
        self._code = stripe.code
        self._have: dict[int, memoryview] = {}
        # Of a short stripe the blocks that it lacks are known: they are zeros.
        self._absent = frozenset(index for index in range(self._code.data) if not stripe.bytes_of(index))
        self._tried: set[tuple[int, ...]] = set()

    @property
    def have(self) -> frozenset[int]:
        return self._absent.union(self._have)

    @property
    def needed(self) -> int:
        """How many more blocks are needed to compute what is missing; one more if what there was did not fit."""
        return max(self._code.data - len(self._absent) - len(self._have), 1 if self._tried else 0)

    @property
    def doubtful(self) -> frozenset[int]:
        """The parity among which something is wrong."""
        return frozenset(index for combination in self._tried for index in combination if index >= self._code.data)

    def place(self, index: int) -> memoryview:
        """Where to read a fragment's block to."""
        if index not in self.stripe.wanted:
            return self._scratch.block("read", index)
        start = self.stripe.start_of(index) - self.stripe.start
        return self._window[start : start + round_up(self.stripe.bytes_of(index))]

    def add(self, index: int) -> None:
        """The block at its place is verified."""
        self._have[index] = self.place(index)[: self.stripe.bytes_of(index)]
        self.missing.discard(index)

    def complete(self, plain: BlockTable | None) -> bool:
        """Whether all wanted blocks are there and verified; computes those that can be (P9)."""
        if not self.missing:
            return True
        if plain is None or len(self.have) < self._code.data:
            return False
        coder = codec(self._code.data, self._code.parity)
        for inputs in self._untried():
            if self._decode(coder, inputs, plain):
                if self._tried:
                    self._find_wrong(coder, inputs)
                self.missing.clear()
                return True
            self._tried.add(tuple(inputs))
        return False

    def _untried(self) -> Iterator[list[int]]:
        # A plain block that matches is right, whatever else is wrong.
        data = sorted(index for index in self.have if index < self._code.data)
        parity = sorted(index for index in self._have if index >= self._code.data)
        left = MAX_COMBINATIONS - len(self._tried)
        combinations = itertools.combinations(parity, self._code.data - len(data))
        fresh = (chosen for chosen in combinations if (*data, *chosen) not in self._tried)
        for chosen in itertools.islice(fresh, max(left, 0)):
            yield [*data, *chosen]

    def _decode(self, coder: Codec, inputs: list[int], plain: BlockTable) -> bool:
        length = self.stripe.bytes_of(0)
        outputs = {index: self._output(index) for index in self.missing}
        coder.reconstruct(
            {index: self._padded(index, length) for index in inputs},
            {index: output[:length] for index, output in outputs.items()},
        )
        for index, output in outputs.items():
            size_bytes = self.stripe.bytes_of(index)
            if not plain.matches(self.stripe.start_of(index), output[:size_bytes]):
                return False
            if size_bytes < length:
                self.place(index)[:size_bytes] = output[:size_bytes]
        return True

    def _output(self, index: int) -> memoryview:
        """Its place, unless the arithmetic would write beyond that."""
        is_short = self.stripe.bytes_of(index) < self.stripe.bytes_of(0)
        return self._scratch.block("short", index) if is_short else self.place(index)

    def _padded(self, index: int, length: int) -> memoryview:
        block = self._have.get(index, memoryview(b""))
        if len(block) == length:
            return block
        padded = self._scratch.block("padded", index)
        padded[: len(block)] = block
        padded[len(block) : length] = bytes(length - len(block))
        return padded[:length]

    def _find_wrong(self, coder: Codec, inputs: list[int]) -> None:
        length = self.stripe.bytes_of(0)
        have = {index: self._padded(index, length) for index in inputs}
        for index in self.doubtful - set(inputs):
            expected = self._scratch.block("expected", index)[:length]
            coder.reconstruct(have, {index: expected})
            if expected != self._have[index]:
                self.wrong.add(index)
