"""One object out of a bucket, read ahead in several ranges at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.encryption import CHUNK_BYTES, SEALED_CHUNK_BYTES, TAG_BYTES, sealed_bytes

# So many chunks are asked for at a time.
CHUNKS_PER_SPAN = 8
# Read from the connection at once.
_READ_BYTES = 1 << 20


class ObjectReader:
    """The plain content of an object from some offset to its end; ``rpc.sources.Opened``. For one thread.

    Holds a span for each of ``target.concurrency`` threads, and one that is being read from (I10).
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
        self._spans = self._cut(offset // CHUNK_BYTES)
        span_count = -(-(self._left_bytes + self._skip_bytes) // (CHUNKS_PER_SPAN * CHUNK_BYTES))
        self._ahead = min(bucket.target.concurrency, span_count)
        # A single span needs no thread.
        self._workers = ThreadPoolExecutor(self._ahead, thread_name_prefix="range") if self._ahead > 1 else None
        self._coming: deque[Future[memoryview]] = deque()
        self._plain = memoryview(b"")
        # Memory that the last span was in: the next one goes there.
        self._spare: list[bytearray] = []
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
        self._plain = memoryview(b"")
        if self._workers:
            self._workers.shutdown(wait=False, cancel_futures=True)

    def _cut(self, first_chunk: int) -> Iterator[tuple[int, int]]:
        """(first chunk, content's bytes) of each span."""
        for chunk in range(first_chunk, -(-self._place.size_bytes // CHUNK_BYTES), CHUNKS_PER_SPAN):
            yield chunk, min(CHUNKS_PER_SPAN * CHUNK_BYTES, self._place.size_bytes - chunk * CHUNK_BYTES)

    def _next_span(self) -> memoryview:
        if self._workers is None:
            return self._fetch(*next(self._spans), bytearray())
        if self._plain.obj is not None and isinstance(self._plain.obj, bytearray):
            self._spare.append(self._plain.obj)
        while len(self._coming) < self._ahead and (span := next(self._spans, None)):
            memory = self._spare.pop() if self._spare else bytearray()
            self._coming.append(self._workers.submit(self._fetch, *span, memory))
        return self._coming.popleft().result()

    def _fetch(self, first_chunk: int, plain_bytes: int, memory: bytearray) -> memoryview:
        """Into ``memory``, which is made larger if need be."""
        offset, size_bytes = first_chunk * CHUNK_BYTES, plain_bytes
        if self._cipher:
            offset, size_bytes = first_chunk * SEALED_CHUNK_BYTES, sealed_bytes(plain_bytes)
        if len(memory) < size_bytes:
            memory = bytearray(size_bytes)
        view = memoryview(memory)
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
