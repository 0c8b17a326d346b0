"""A blob put together again from what its holders have, with the SDK's own checks and arithmetic (I5, P9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sdrs.memory import PAGE_BYTES, allocate
from sdrs.restore.blocks import BlockTable, ParityTable
from sdrs.restore.decoding import Decoding, Scratch
from sdrs.restore.stripes import stripes
from sdrs.transfer import Summary
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import Code, parse_code
from sdrs_proto.framing import Frame
from sdrs_proto.v1 import storage_pb2 as pb
from tests.simulation.frames import blocks_of

_SCRATCH = Scratch()


@dataclass
class BlobReading:
    blob: Blob
    _blocks: dict[int, list[bytes]] = field(default_factory=dict)
    _plain: BlockTable | None = None

    @property
    def _code(self) -> Code:
        return parse_code(self.blob.code) or Code(1, 0)

    def lacks(self, holder: Holder) -> bool:
        return holder.fragment_index not in self._blocks

    def take(self, holder: Holder, frames: Sequence[Frame]) -> None:
        """A fragment as a node sent it; CorruptDataError if it is not what is on record."""
        summary, code, index = _summary(frames[0]), self._code, holder.fragment_index
        plain = BlockTable(self.blob, summary)
        parity = ParityTable(self.blob, code, holder, summary) if index >= code.data else None
        blocks = blocks_of(b"".join(bytes(frame.data) for frame in frames[1:]))
        stripe_bytes = code.stripe_bytes
        for number, block in enumerate(blocks):
            if parity is not None:
                parity.check(number, memoryview(block))
            else:
                plain.check(number * stripe_bytes + index * (stripe_bytes // code.data), memoryview(block))
        self._plain = plain
        self._blocks[index] = blocks

    def result(self) -> bytes | None:
        """None while too little of it was read, or what was read does not fit together."""
        if self._plain is None:
            return None
        size_bytes = self.blob.size_bytes
        # Where a block is put reaches to the end of its page.
        window = allocate(size_bytes + PAGE_BYTES)
        for stripe in stripes(self._code, size_bytes, 0, size_bytes):
            decoding = Decoding(stripe, window[stripe.start :], _SCRATCH)
            for index, blocks in self._blocks.items():
                if stripe.bytes_of(index):
                    block = blocks[stripe.number]
                    decoding.place(index)[: len(block)] = block
                    decoding.add(index)
            if not decoding.complete(self._plain):
                return None
        return bytes(window[:size_bytes])


def _summary(frame: Frame) -> Summary:
    told = pb.BlobSummary.FromString(frame.open)
    if not told.source_table:
        return Summary.of_copy(told.size_bytes, told.hash, told.table)
    return Summary(told.size_bytes, told.hash, told.table, told.source_size_bytes, told.source_hash, told.source_table)
