"""The parts of one upload, several at a time, through buffers that all uploads share."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.errors import NotFoundError, UnavailableError
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.failures import where
from sdrs_storaged.bucket.store import Part
from sdrs_storaged.bucket.transfer_memory import Loan

# The content's bytes that are dealt with, and the bytes that went over the wire for it: what is there already does not.
Progress = Callable[[int, int], None]


class UploadGoneError(UnavailableError):
    """Somebody completed or aborted it; or this process completed it, and the answer was lost."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the upload of {key} was aborted by somebody: try again")


class PartSender:
    """One thread fills buffers and hands them in; ``at_once`` others send them. Ends with the first error."""

    def __init__(
        self,
        bucket: Bucket,
        place: ObjectPlace,
        upload_id: str,
        there: frozenset[Part],
        progress: Progress,
        check: Callable[[], None],
        part_bytes: int,
        at_once: int,
        loan: Loan,
    ) -> None:
        self._bucket = bucket
        self._place = place
        self._upload_id = upload_id
        self._there = there
        self._progress = progress
        self._check_caller = check
        self._workers = ThreadPoolExecutor(at_once, thread_name_prefix="part")
        self._part_bytes = part_bytes
        self._loan = loan
        # One is filled while the others are sent.
        self._max_out = at_once + 1
        self._out = 0
        self._sent: list[Future[Part]] = []
        self._lock = threading.Lock()
        self._came_back = threading.Condition(self._lock)
        self._failure: BaseException | None = None
        self._is_closed = False
        self._done_bytes = self._sent_bytes = 0

    def take_buffer(self) -> memoryview:
        """Waits for one; raises what went wrong with an earlier part."""
        with self._lock:
            while True:
                self._raise_failure()
                if self._out < self._max_out and (buffer := self._loan.take(self._part_bytes)) is not None:
                    self._out += 1
                    return buffer
                # One of this upload's own, for there is one that is being sent: never another upload's.
                self._came_back.wait()

    def give_buffer(self, buffer: memoryview) -> None:
        """One that is not sent."""
        with self._lock:
            self._out -= 1
            self._loan.give(buffer)
            self._came_back.notify()

    def send(self, number: int, buffer: memoryview, size_bytes: int) -> None:
        sent = self._workers.submit(self._send, number, buffer[:size_bytes])
        # Also after an error, or if its turn never came; whoever waits for a buffer then hears of it.
        sent.add_done_callback(lambda _: self.give_buffer(buffer))
        self._sent.append(sent)

    def finish(self) -> list[Part]:
        """All parts, once all are there."""
        wait(self._sent)
        # The first that went wrong: others only gave up because of it.
        self._raise_failure()
        return [sent.result() for sent in self._sent]

    def close(self) -> None:
        """What is being sent comes to its end first: it uses the buffers."""
        self._is_closed = True
        self._workers.shutdown(cancel_futures=True)

    def _send(self, number: int, data: memoryview) -> Part:
        try:
            return self._confirmed(number, data)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            raise

    def _confirmed(self, number: int, data: memoryview) -> Part:
        sent_bytes = 0
        # Hashed for nothing where there is none: the store does it again when it sends.
        part = Part(number, len(data), _md5(data) if self._there else "")
        if part not in self._there:
            part = self._put(number, data)
            sent_bytes = len(data)
        with self._lock:
            self._sent_bytes += sent_bytes
            # Encryption adds a little to it.
            self._done_bytes = min(self._done_bytes + len(data), self._place.size_bytes)
            self._progress(self._done_bytes, self._sent_bytes)
        return part

    def _put(self, number: int, data: memoryview) -> Part:
        store, key = self._bucket.store, self._place.key
        try:
            return self._bucket.patience.persist(
                lambda: store.put_part(key, self._upload_id, number, data), self._check
            )
        except NotFoundError as error:
            raise UploadGoneError(key) from error
        except UnavailableError as error:
            raise UnavailableError(
                f"part {number} of {key} could not be sent to {where(self._bucket.target)}, tried "
                f"{self._bucket.patience.tries} times; what was sent stays, and the next try goes on with it: {error}",
                **error.facts,
            ) from error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check(self) -> None:
        if self._is_closed or self._failure is not None:
            raise UnavailableError(f"the upload of {self._place.key} was given up")
        self._check_caller()


def _md5(data: memoryview) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
