"""One object out of a bucket, read ahead in several ranges at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.encryption import CHUNK_BYTES, SEALED_CHUNK_BYTES, TAG_BYTES, sealed_bytes

# So many chunks are asked for at a time.
CHUNKS_PER_SPAN = 8
_SPAN_BYTES = CHUNKS_PER_SPAN * SEALED_CHUNK_BYTES
# Read from the connection at once.
_READ_BYTES = 1 << 20


class ObjectReader:
    """The plain content of an object from some offset to its end; ``rpc.sources.Opened``. For one thread.

    Holds the span that is being read from, and reads ahead for ``target.concurrency`` more as far as there is memory
    that all transfers share (I10).
    """

    def __init__(self, bucket: Bucket, place: ObjectPlace, offset: int) -> None:
        if not 0 <= offset <= place.size_bytes:
            raise InvalidArgumentError(f"{place.key} has {place.size_bytes} bytes, none at {offset}")
        self._bucket = bucket
        self._place = place
        self._cipher = bucket.cipher(place)
        self._left_bytes = place.size_bytes - offset
        # Content is read from the beginning of a chunk on.
        self._skip_bytes = offset % CHUNK_BYTES
        self._next_chunk = offset // CHUNK_BYTES
        self._chunk_count = -(-place.size_bytes // CHUNK_BYTES)
        span_count = -(-(self._chunk_count - self._next_chunk) // CHUNKS_PER_SPAN)
        self._ahead = min(bucket.target.concurrency, span_count)
        # A single span needs no thread.
        self._workers = ThreadPoolExecutor(self._ahead, thread_name_prefix="range") if self._ahead > 1 else None
        self._coming: deque[tuple[memoryview, Future[memoryview]]] = deque()
        self._plain = memoryview(b"")
        self._loan = bucket.memory.loan()
        # What ``_plain`` is in.
        self._buffer: memoryview | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def receive(self, into: memoryview) -> None:
        """The next bytes, exactly as many as fit.

        Broken connections are opened again at the position, so many times. UnavailableError when that is in vain,
        NotFoundError if the object is not there, CorruptDataError if it is shorter than its record says or does not
        decrypt. Bytes of objects that are not encrypted are to be checked by the caller (I5).
        """
        if len(into) > self._left_bytes:
            raise InvalidArgumentError(
                f"{self._place.key} has {self._left_bytes} bytes left, {len(into)} were asked for"
            )
        self._left_bytes -= len(into)
        while into:
            if not self._plain:
                self._plain = self._next_span()[self._skip_bytes :]
                self._skip_bytes = 0
            count = min(len(into), len(self._plain))
            into[:count] = self._plain[:count]
            into, self._plain = into[count:], self._plain[count:]

    def close(self) -> None:
        """Does not wait for a store that hangs: threads end by themselves, and their bytes are not used."""
        self._closed.set()
        self._give_back()
        while self._coming:
            buffer, coming = self._coming.popleft()
            # Not before the thread is through with it.
            coming.add_done_callback(partial(self._given_back, buffer))
        if self._workers:
            self._workers.shutdown(wait=False, cancel_futures=True)
        self._loan.close()

    def _give_back(self) -> None:
        self._plain = memoryview(b"")
        with self._lock:
            buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._loan.give(buffer)

    def _given_back(self, buffer: memoryview, _: Future[memoryview]) -> None:
        self._loan.give(buffer)

    def _cut(self) -> tuple[int, int]:
        """(first chunk, content's bytes) of the next span."""
        chunk = self._next_chunk
        self._next_chunk += CHUNKS_PER_SPAN
        return chunk, min(CHUNKS_PER_SPAN * CHUNK_BYTES, self._place.size_bytes - chunk * CHUNK_BYTES)

    def _next_span(self) -> memoryview:
        self._give_back()
        if self._workers is None:
            buffer = self._loan.take(_SPAN_BYTES)
            assert buffer is not None, "the first one is always there"
            return self._arrived(buffer, partial(self._fetch, *self._cut(), buffer))
        # One is to be had at least, unless one is coming.
        while self._next_chunk < self._chunk_count and len(self._coming) < self._ahead:
            buffer = self._loan.take(_SPAN_BYTES)
            if buffer is None:
                break
            self._coming.append((buffer, self._workers.submit(self._fetch, *self._cut(), buffer)))
        buffer, coming = self._coming.popleft()
        return self._arrived(buffer, coming.result)

    def _arrived(self, buffer: memoryview, fetched: Callable[[], memoryview]) -> memoryview:
        try:
            plain = fetched()
            self._check()
        except BaseException:
            self._loan.give(buffer)
            raise
        # Only from here on may somebody who closes this meanwhile give it back: nobody writes into it any more.
        with self._lock:
            self._buffer = buffer
        return plain

    def _fetch(self, first_chunk: int, plain_bytes: int, view: memoryview) -> memoryview:
        offset, size_bytes = first_chunk * CHUNK_BYTES, plain_bytes
        if self._cipher:
            offset, size_bytes = first_chunk * SEALED_CHUNK_BYTES, sealed_bytes(plain_bytes)
        self._fill(offset, view[:size_bytes])
        if not self._cipher:
            return view[:size_bytes]
        for index in range(-(-plain_bytes // CHUNK_BYTES)):
            start = index * SEALED_CHUNK_BYTES
            end = min(start + SEALED_CHUNK_BYTES, size_bytes)
            plain = self._cipher.open(first_chunk + index, view[start:end])
            view[index * CHUNK_BYTES : index * CHUNK_BYTES + end - start - TAG_BYTES] = plain
        return view[:plain_bytes]

    def _fill(self, offset: int, into: memoryview) -> None:
        failures = self._bucket.patience.failures(self._check)
        done = 0
        while done < len(into):
            before = done
            try:
                stream = self._bucket.store.open(self._place.key, offset + done, len(into) - done)
                try:
                    while done < len(into):
                        self._check()
                        count = stream.readinto(into[done : done + _READ_BYTES])
                        if not count:
                            raise UnavailableError(f"the store ended its answer {len(into) - done} bytes early")
                        done += count
                finally:
                    stream.close()
            except UnavailableError as error:
                self._check()
                if done > before:
                    failures.forget()
                failures.count(error)

    def _check(self) -> None:
        if self._closed.is_set():
            raise UnavailableError(f"{self._place.key} is not read any more")


def open_object(bucket: Bucket, place: ObjectPlace, offset: int = 0) -> ObjectReader:
    """``offset`` in its content. Asks the store for nothing yet: what is wrong is heard of with the first bytes."""
    return ObjectReader(bucket, place, offset)
