"""A fragment is looked at where it lies: every block against its own table, parity also against the data (P9).

A bit that was flipped before a stripe was encoded makes parity that is wrong and has good checksums. So a fragment of
parity is computed anew from the others, wherever they are, and compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from sdrs_core import checksums
from sdrs_core.errors import CorruptDataError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId, check_random_id
from sdrs_proto import convert
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.pacing import Background
from sdrs_storaged.node.transfers import Slots
from sdrs_storaged.rpc.fragment_streams import fragment_stream
from sdrs_storaged.rpc.pulling import sources_from
from sdrs_storaged.rpc.sources import BlobFacts, Sources
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.engine import FragmentStore, Verification

if TYPE_CHECKING:
    from sdrs_storaged.store.reader import FragmentReader

_SLOT_SECONDS = 60.0
_PROGRESS_SECONDS = 0.2
# Longer than any pause on purpose, and than peers are waited for.
_STALL_SECONDS = 120.0
# So many readings that hang give their slots back; with more of them the disks are what has to be looked at.
_MAX_HUNG = 4


class Verifying:
    def __init__(
        self, store: FragmentStore, sources: Sources, background: Background, *, slots: Slots, workers: Workers
    ) -> None:
        self._store = store
        self._sources = sources
        self._background = background
        self._slots = slots
        self._workers = workers
        # What is read since long ago, by a thread that nothing can end.
        self._hung: set[tuple[str, int]] = set()

    async def verify(self, request: pb.VerifyFragmentRequest) -> AsyncGenerator[pb.VerifyFragmentResponse, None]:
        check_random_id(request.blob_id, "blob id")
        name = (request.blob_id, request.fragment_index)
        if name in self._hung:
            raise _hangs(request)
        look = _Look(self._store, self._sources, self._background, request)
        await self._slots.take(_SLOT_SECONDS)
        work = asyncio.ensure_future(self._workers.run(look.run))
        # Until the reading has ended, which is later than this call if its caller hangs up.
        work.add_done_callback(partial(self._verified, name))
        clock = asyncio.get_running_loop().time
        read_bytes, moved = 0, clock()
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_PROGRESS_SECONDS)
                if look.read_bytes != read_bytes:
                    read_bytes, moved = look.read_bytes, clock()
                if not work.done() and clock() - moved > _STALL_SECONDS:
                    if len(self._hung) < _MAX_HUNG:
                        # P21: nobody keeps a slot by being silent. The thread is given up, once for each fragment.
                        self._hung.add(name)
                        self._slots.give()
                    raise _hangs(request)
                yield pb.VerifyFragmentResponse(checked_bytes=look.checked_bytes)
        finally:
            look.is_wanted = False
        found = work.result()
        yield pb.VerifyFragmentResponse(
            checked_bytes=look.checked_bytes, verdict=convert.verdict_to(found.verdict), detail=found.detail
        )

    def _verified(self, name: tuple[str, int], work: asyncio.Future[Verification]) -> None:
        if name in self._hung:
            self._hung.discard(name)
        else:
            self._slots.give()
        if not work.cancelled():
            work.exception()  # heard, also if nobody asks for it


def _hangs(request: pb.VerifyFragmentRequest) -> UnavailableError:
    return UnavailableError(
        f"fragment {request.fragment_index} of blob {request.blob_id} is being read, and nothing came of it for "
        f"{_STALL_SECONDS:.0f} s: its disk does not answer"
    )


class _Look:
    """One fragment; ``run`` in a thread, the rest from any."""

    def __init__(
        self, store: FragmentStore, sources: Sources, background: Background, request: pb.VerifyFragmentRequest
    ) -> None:
        self.is_wanted = True
        self._store = store
        self._sources = sources
        self._background = background
        self._request = request
        # What has to be read for each byte of the fragment itself.
        self._reading_count = 1 + len(request.sources)
        self.read_bytes = 0
        self._pace = None
        if request.max_bytes_per_second:
            self._pace = background.pace(request.max_bytes_per_second * self._reading_count)

    @property
    def checked_bytes(self) -> int:
        return self.read_bytes // self._reading_count

    def run(self) -> Verification:
        request = self._request
        return self._store.verify(
            BlobId(request.blob_id),
            request.fragment_index,
            request.expected_hash or None,
            self._progress,
            self._compare if request.sources else None,
        )

    def _progress(self, read_bytes: int) -> None:
        if not self.is_wanted:
            raise UnavailableError("nobody waits for this verification any more")
        self._background.check_running()
        more_bytes, self.read_bytes = read_bytes - self.read_bytes, read_bytes
        if self._pace is not None:
            self._pace.spent(more_bytes)

    def _compare(self, reader: FragmentReader) -> None:
        blob = BlobFacts(reader.key.blob_id, reader.source_size_bytes, reader.source_hash, reader.meta.code)
        code, index = blob.erasure_code, reader.key.fragment_index
        if code is None or index < code.data:
            return  # its checksums are those of the blob: opening it compared them
        sources = [source for source in sources_from(self._request.sources, blob) if source.fragment_index != index]
        try:
            with fragment_stream(self._sources.open, self._sources.buffers, blob, sources, index) as stream:
                for number, (digest, _) in enumerate(stream.blocks()):
                    if digest != checksums.table_entry(reader.table, number):
                        raise _WrongParityError(number)
                    self._progress(reader.size_bytes + stream.received_bytes)
        except _WrongParityError as error:
            raise CorruptDataError(
                f"fragment {index} of blob {blob.id} is not what its data gives: its parity is wrong from block "
                f"{error} on, though its checksums are right ({reader.path})",
                blob_id=blob.id,
            ) from None
        except SdrsError as error:
            # What is wrong with the others says nothing about this one.
            raise UnavailableError(
                f"the parity in fragment {index} of blob {blob.id} could not be computed anew: {error.message}"
            ) from error


class _WrongParityError(Exception):
    """At this block."""
