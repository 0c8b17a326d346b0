"""One object into a bucket: a small one at once, a large one in parts, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial

from blake3 import blake3 as new_blake3

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.checksums import Buffer
from sdrs_core.errors import CorruptDataError, NotFoundError, UnavailableError
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.encryption import sealed_bytes
from sdrs_storaged.bucket.failures import where
from sdrs_storaged.bucket.parts import PartSender, Progress, UploadGoneError
from sdrs_storaged.bucket.store import Part, Upload
from sdrs_storaged.bucket.transfer_memory import Loan
from sdrs_storaged.node.pacing import Pace

PART_BYTES = 8 << 20
# Stores take 10,000 at most.
_MAX_PARTS = 9000
_PART_UNIT_BYTES = 1 << 20


def part_bytes_of(stored_bytes: int) -> int:
    """By the object's size alone: whoever goes on with an upload cuts it in the same places."""
    least_bytes = -(-stored_bytes // _MAX_PARTS)
    return max(PART_BYTES, -(-least_bytes // _PART_UNIT_BYTES) * _PART_UNIT_BYTES)


def upload(
    bucket: Bucket,
    place: ObjectPlace,
    blocks: Iterator[memoryview],
    *,
    blake3: str,
    progress: Progress = lambda done_bytes, sent_bytes: None,
    pace: Pace | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """The content, in order, each block valid until the next is asked for.

    One of several parts goes on with a multipart upload of the same key that is there, whoever began it, and sends only
    what that lacks; if the whole object is there already it returns at once, without asking for a block. The BLAKE3 is
    computed on the way and compared before anything becomes visible: CorruptDataError if it is another one, and what
    was sent is thrown away. After any other error the upload stays, to go on with.

    ``check`` is called between blocks, and in pauses from any thread; whatever it raises ends the upload. ``progress``
    is called from any thread, one at a time.
    """
    cipher = bucket.cipher(place)
    stored_bytes = sealed_bytes(place.size_bytes) if cipher else place.size_bytes
    content = _Content(bucket, place, blocks, blake3, check)
    stored: Iterator[Buffer] = cipher.seal_all(iter(content)) if cipher else iter(content)
    with closing(bucket.memory.loan()) as loan:
        if stored_bytes <= part_bytes_of(stored_bytes):
            _put(bucket, place, content, _Stored(stored), stored_bytes, progress, pace, loan)
        else:
            _Multipart(bucket, place, content, _Stored(stored), stored_bytes, progress, pace, check, loan).run()


class _Content:
    """The plain blocks on their way, hashed as they pass."""

    def __init__(
        self,
        bucket: Bucket,
        place: ObjectPlace,
        blocks: Iterator[memoryview],
        blake3: str,
        check: Callable[[], None],
    ) -> None:
        self._where = f"{where(bucket.target)}: {place.key}"
        self._size_bytes = place.size_bytes
        self._blocks = blocks
        self._blake3 = blake3
        self._check = check
        self._hasher = new_blake3()
        self._seen_bytes = 0

    def __iter__(self) -> Iterator[memoryview]:
        for block in self._blocks:
            self._check()
            self._seen_bytes += len(block)
            if self._seen_bytes > self._size_bytes:
                break
            self._hasher.update(block)
            yield block

    def compare(self) -> None:
        """I5, P23: once all of it has passed, and before any of it becomes visible."""
        if self._seen_bytes != self._size_bytes:
            more = "more than " if self._seen_bytes > self._size_bytes else ""
            seen_bytes = min(self._seen_bytes, self._size_bytes)
            raise CorruptDataError(
                f"{self._where} was to have {self._size_bytes} bytes, and there are {more}{seen_bytes}: not uploaded"
            )
        if self._hasher.hexdigest() != self._blake3:
            raise CorruptDataError(
                f"{self._where} was to have BLAKE3 {self._blake3}, and its bytes have {self._hasher.hexdigest()}: "
                "not uploaded"
            )


class _Stored:
    """What goes into the object, cut as it is asked for."""

    def __init__(self, pieces: Iterator[Buffer]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def fill(self, into: memoryview, pace: Pace | None, is_sent: bool) -> int:
        """How many bytes there were, fewer than fit only at the end. Bytes that are not sent use up no allowance."""
        filled = 0
        while filled < len(into):
            if not self._rest:
                with pace.waiting() if pace else nullcontext():
                    piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            count = min(len(into) - filled, len(self._rest))
            into[filled : filled + count] = self._rest[:count]
            self._rest = self._rest[count:]
            filled += count
            if pace:
                pace.spent(count if is_sent else 0)
        return filled

    def is_empty(self) -> bool:
        return not self._rest and next(self._pieces, None) is None


def _put(
    bucket: Bucket,
    place: ObjectPlace,
    content: _Content,
    stored: _Stored,
    stored_bytes: int,
    progress: Progress,
    pace: Pace | None,
    loan: Loan,
) -> None:
    buffer = loan.take(stored_bytes)
    assert buffer is not None, "the first one is always there"
    try:
        data = buffer[:stored_bytes]
        stored.fill(data, pace, is_sent=True)
        stored.is_empty()
        content.compare()
        bucket.patience.persist(lambda: bucket.store.put(place.key, data))
    finally:
        loan.give(buffer)
    progress(place.size_bytes, stored_bytes)


class _Multipart:
    def __init__(
        self,
        bucket: Bucket,
        place: ObjectPlace,
        content: _Content,
        stored: _Stored,
        stored_bytes: int,
        progress: Progress,
        pace: Pace | None,
        check: Callable[[], None],
        loan: Loan,
    ) -> None:
        self._bucket = bucket
        self._place = place
        self._content = content
        self._loan = loan
        self._stored = stored
        self._stored_bytes = stored_bytes
        self._progress = progress
        self._pace = pace
        self._check = check
        self._part_bytes = part_bytes_of(stored_bytes)
        self._part_count = -(-stored_bytes // self._part_bytes)

    def run(self) -> None:
        if self._is_there():
            self._progress(self._place.size_bytes, 0)
            return
        upload_id, there = self._begun()
        try:
            self._complete(upload_id, self._send(upload_id, there))
        except UploadGoneError:
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        """Only what was compared is ever completed under this name, by whomever (P25)."""
        persist, store = self._bucket.patience.persist, self._bucket.store
        try:
            found = persist(lambda: store.head(self._place.key), self._check)
        except NotFoundError:
            return False
        if found.size_bytes != self._stored_bytes:
            raise CorruptDataError(
                f"{where(self._bucket.target)} has {self._place.key} with {found.size_bytes} bytes, and it ought to "
                f"have {self._stored_bytes}: give the content a fresh name"
            )
        return True

    def _begun(self) -> tuple[str, frozenset[Part]]:
        """An upload of this key, and the parts that it has. Of several the first begun, so that all agree."""
        persist, store, key = self._bucket.patience.persist, self._bucket.store, self._place.key
        found = persist(lambda: [upload for upload in store.uploads(key) if upload.key == key], self._check)
        for upload_id in (one.upload_id for one in sorted(found, key=_age)):
            try:
                return upload_id, persist(partial(self._parts, upload_id), self._check)
            except NotFoundError:
                continue
        return persist(lambda: store.begin_upload(key), self._check), frozenset()

    def _parts(self, upload_id: str) -> frozenset[Part]:
        return frozenset(self._bucket.store.parts(self._place.key, upload_id))

    def _send(self, upload_id: str, there: frozenset[Part]) -> list[Part]:
        likely = {(part.number, part.size_bytes) for part in there}
        sender = PartSender(
            self._bucket,
            self._place,
            upload_id,
            there,
            self._progress,
            self._check,
            self._part_bytes,
            self._bucket.target.concurrency,
            self._loan,
        )
        try:
            for number in range(1, self._part_count + 1):
                with self._pace.waiting() if self._pace else nullcontext():
                    buffer = sender.take_buffer()
                size_bytes = min(self._part_bytes, self._stored_bytes - (number - 1) * self._part_bytes)
                is_full = False
                try:
                    is_sent = (number, size_bytes) not in likely
                    is_full = self._stored.fill(buffer[:size_bytes], self._pace, is_sent) == size_bytes
                finally:
                    if not is_full:
                        sender.give_buffer(buffer)
                if not is_full:
                    break
                sender.send(number, buffer, size_bytes)
            self._stored.is_empty()
            with self._pace.waiting() if self._pace else nullcontext():
                return sender.finish()
        finally:
            sender.close()

    def _complete(self, upload_id: str, parts: list[Part]) -> None:
        persist, store, key = self._bucket.patience.persist, self._bucket.store, self._place.key
        try:
            self._content.compare()
        except CorruptDataError:
            # Nothing may go on with other bytes under this name: encrypted ones would share a key and nonces.
            persist(lambda: store.abort_upload(key, upload_id), self._check)
            raise
        try:
            persist(lambda: store.complete_upload(key, upload_id, parts), self._check)
        except NotFoundError as error:
            raise UploadGoneError(key) from error
        if not self._is_there():
            raise UnavailableError(f"{where(self._bucket.target)} completed {key}, and has it not: try again")


def _age(upload: Upload) -> tuple[int, str]:
    return upload.begun_unix_ms, upload.upload_id
