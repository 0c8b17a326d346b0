"""Stripes of a blob, read from whoever has them: what is missing is computed from what is there.

A source that fails, stalls or sends something damaged counts as an erasure (I5): another one takes over from the very
stripe where it failed, as long as enough are left.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import combinations, islice

from sdrs_core import checksums
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.codes import Code
from sdrs_core.erasure import codec
from sdrs_core.errors import CorruptDataError, NotFoundError, SdrsError, UnavailableError
from sdrs_storaged.logs import get_log
from sdrs_storaged.rpc.sources import AnySource, BlobFacts, CheckedFragment, OpenSource, open_checked
from sdrs_storaged.store.buffers import BUFFER_BYTES, BufferPool

log = get_log("rebuild")

WHOLE = Code(1, 0)  # a blob that is not coded: each block is a stripe
# So many blocks are received in vain rather than asking the source anew from where they end.
_MAX_SKIPPED_BLOCKS = 8
# Ways to choose among parity fragments of which some are wrong: more are not tried.
_MAX_CHOICES = 64


class Rooms:
    """Memory for one block each, by number; reused, and given back together."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._free: list[memoryview] = []
        self._rooms: dict[int, memoryview] = {}
        self._buffers: list[mmap.mmap] = []

    def __getitem__(self, number: int) -> memoryview:
        if number not in self._rooms:
            if not self._free:
                buffer = self._pool.take()
                self._buffers.append(buffer)
                self._free = [
                    memoryview(buffer)[start : start + BLOCK_BYTES] for start in range(0, BUFFER_BYTES, BLOCK_BYTES)
                ]
            self._rooms[number] = self._free.pop()
        return self._rooms[number]

    def close(self) -> None:
        for buffer in self._buffers:
            self._pool.give(buffer)
        self._rooms, self._free, self._buffers = {}, [], []


class StripeReader:
    """One caller at a time; it blocks. Holds a stripe and a table of checksums, however large the blob is (I10)."""

    def __init__(
        self, open_source: OpenSource, blob: BlobFacts, sources: Sequence[AnySource], buffers: BufferPool
    ) -> None:
        self.blob = blob
        self.code = blob.erasure_code or WHOLE
        self.received_bytes = 0
        self.failures: dict[AnySource, SdrsError] = {}
        self._open_source = open_source
        self._sources = list(dict.fromkeys(sources))
        self._open: dict[int, CheckedFragment] = {}
        self._plain_table: bytes | None = None
        self._rooms = Rooms(buffers)

    @property
    def plain_table(self) -> bytes:
        """The checksums of the blob's plain blocks, as they are on record (P9)."""
        while self._plain_table is None:
            source = next(self._live(), None)
            if source is None:
                raise self._exhausted()
            self._at(source, 0)
        return self._plain_table

    def read(self, stripe: int, into: Mapping[int, memoryview]) -> None:
        """Write the stripe's block of each wanted fragment into its room, which holds a whole block; stripes rise."""
        have: dict[int, memoryview] = {}
        refuted: set[frozenset[int]] = set()
        while True:
            chosen = self._choose(stripe, into.keys(), refuted)
            if not self._fetch(stripe, chosen, into, have):
                continue
            if into.keys() <= chosen:
                return
            if self._decode(stripe, {index: have[index] for index in chosen}, into):
                if refuted:
                    self._erase_wrong(stripe, chosen, have)
                return
            refuted.add(chosen)

    def close(self) -> None:
        for index in list(self._open):
            self._shut(index)
        self._rooms.close()

    # What to read

    def _live(self, index: int | None = None) -> Iterator[AnySource]:
        for source in self._sources:
            if source not in self.failures and index in (None, source.fragment_index):
                yield source

    def _choose(self, stripe: int, wanted: Set[int], refuted: set[frozenset[int]]) -> frozenset[int]:
        """The fragments to read: those that are wanted, or as many as bring them back, plain ones first."""
        there = dict.fromkeys(source.fragment_index for source in self._live())
        # What a short last stripe has nothing of is known.
        there |= dict.fromkeys(index for index in range(self.code.total) if not self._block_bytes(stripe, index))
        if wanted <= there.keys():
            return frozenset(wanted)
        data = [index for index in there if index < self.code.data]
        parity = [index for index in there if index >= self.code.data]
        missing_count = self.code.data - len(data)
        if missing_count > len(parity):
            raise self._exhausted()
        for some in islice(combinations(parity, missing_count), _MAX_CHOICES):
            chosen = frozenset((*data, *some))
            if chosen not in refuted:
                return chosen
        for index in parity:
            self._erase_parity(index)
        raise self._exhausted()

    def _exhausted(self) -> SdrsError:
        told = "; ".join(f"{source}: {error.message}" for source, error in self.failures.items()) or "none was named"
        # If one of them may come back with a good fragment, it is worth another try.
        is_lost = bool(self.failures) and all(
            isinstance(error, CorruptDataError | NotFoundError) for error in self.failures.values()
        )
        kind = CorruptDataError if is_lost else UnavailableError
        left, needed = len({source.fragment_index for source in self._live()}), self.code.data
        counted = f"{left} of {needed} fragments that are needed of" if self.code.parity else "no good copy of"
        return kind(f"{counted} blob {self.blob.id} can be read ({told})", blob_id=self.blob.id)

    # Reading

    def _fetch(
        self,
        stripe: int,
        chosen: Set[int],
        into: Mapping[int, memoryview],
        have: dict[int, memoryview],
    ) -> bool:
        """False: a fragment is out of reach, and others have to be chosen."""
        for index in sorted(chosen - have.keys()):
            room = into[index] if index in into else self._rooms[index]
            if not self._read_block(stripe, index, room[: self._block_bytes(stripe, index)]):
                return False
            have[index] = room
        return True

    def _read_block(self, stripe: int, index: int, block: memoryview) -> bool:
        if not block:
            return True
        while (source := self._serving(index)) is not None:
            fragment = self._at(source, stripe)
            if fragment is None:
                continue
            try:
                fragment.read(block)
            except SdrsError as error:
                self._erase(source, error)
                continue
            self.received_bytes += len(block)
            return True
        return False

    def _serving(self, index: int) -> AnySource | None:
        fragment = self._open.get(index)
        return fragment.source if fragment else next(self._live(index), None)

    def _at(self, source: AnySource, stripe: int) -> CheckedFragment | None:
        """The source's fragment, about to read the block of this stripe; None if that failed."""
        index = source.fragment_index
        try:
            fragment = self._open.get(index)
            if fragment is not None and stripe - fragment.next_block > _MAX_SKIPPED_BLOCKS:
                self._shut(index)
                fragment = None
            if fragment is None:
                fragment, plain_table = open_checked(self._open_source, source, self.blob, stripe)
                self._open[index] = fragment
                self._plain_table = self._plain_table or plain_table
            while fragment.next_block < stripe:
                fragment.skip(self._rooms[index])
                self.received_bytes += BLOCK_BYTES
            return fragment
        except SdrsError as error:
            self._erase(source, error)
            return None

    def _erase(self, source: AnySource, error: SdrsError) -> None:
        self.failures[source] = error
        self._shut(source.fragment_index)
        log.warning("source_failed", blob=self.blob.id, source=str(source), why=error.message)

    def _shut(self, index: int) -> None:
        fragment = self._open.pop(index, None)
        if fragment is not None:
            fragment.close()

    # Computing

    def _block_bytes(self, stripe: int, index: int) -> int:
        return self.code.block_bytes(self.blob.size_bytes, stripe, index)

    def _decode(self, stripe: int, have: Mapping[int, memoryview], into: Mapping[int, memoryview]) -> bool:
        """False: what came out is not the blob (P9)."""
        wanted = set(into.keys() - have.keys())
        if any(index >= self.code.data for index in wanted):
            # Nothing tells what parity should be, but that of the right data is right.
            wanted |= set(range(self.code.data)) - have.keys()
        outputs = {index: into[index] if index in into else self._rooms[index] for index in wanted}
        self._reconstruct(stripe, have, outputs)
        return all(self._is_plain(stripe, index, room) for index, room in outputs.items() if index < self.code.data)

    def _reconstruct(self, stripe: int, have: Mapping[int, memoryview], want: Mapping[int, memoryview]) -> None:
        """In the last stripe, what is short counts as filled up with zeros."""
        length = self._block_bytes(stripe, 0)
        for index, room in have.items():
            size_bytes = self._block_bytes(stripe, index)
            room[size_bytes:length] = bytes(length - size_bytes)
        codec(self.code.data, self.code.parity).reconstruct(
            {index: room[:length] for index, room in have.items()},
            {index: room[:length] for index, room in want.items()},
        )

    def _is_plain(self, stripe: int, index: int, room: memoryview) -> bool:
        size_bytes, length = self._block_bytes(stripe, index), self._block_bytes(stripe, 0)
        entry = checksums.table_entry(self.plain_table, stripe * self.code.data + index)
        is_filled_up = bytes(room[size_bytes:length]) == bytes(length - size_bytes)
        return is_filled_up and checksums.digest(room[:size_bytes]) == entry

    def _erase_wrong(self, stripe: int, proven: Set[int], have: Mapping[int, memoryview]) -> None:
        """Once one choice brought the blob back, it shows which of the others' parity is wrong."""
        scratch, length = self._rooms[-1], self._block_bytes(stripe, 0)
        for index in have.keys() - proven:
            self._reconstruct(stripe, {good: have[good] for good in proven}, {index: scratch})
            if checksums.digest(scratch[:length]) != checksums.digest(have[index][:length]):
                self._erase_parity(index)

    def _erase_parity(self, index: int) -> None:
        source = self._serving(index)
        if source is not None:
            why = (
                f"fragment {index} of blob {self.blob.id} is sound, but its parity is wrong: it was made of other bytes"
            )
            self._erase(source, CorruptDataError(why, blob_id=self.blob.id))
