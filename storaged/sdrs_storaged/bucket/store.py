"""What is asked of an object store. ``s3.py`` is the one there is; another has to pass the same contract suite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sdrs_core.checksums import Buffer
from sdrs_core.errors import SdrsError


@dataclass(frozen=True, slots=True)
class StoredObject:
    """``etag`` without quotes; an MD5 of the bytes only where the store says so (``md5`` of a part)."""

    key: str
    size_bytes: int
    etag: str
    modified_unix_ms: int


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    upload_id: str
    begun_unix_ms: int


@dataclass(frozen=True, slots=True)
class Part:
    """``number`` from 1. ``etag`` is the MD5 of its bytes, in hex, where the store keeps it so."""

    number: int
    size_bytes: int
    etag: str


class ByteStream(Protocol):
    def readinto(self, into: memoryview) -> int:
        """The next bytes, at most as many as fit, at least one; 0 at the end of what was asked for.

        An UnavailableError if the connection breaks, also where the store sends less than it announced.
        """

    def close(self) -> None: ...


class ObjectStore(ABC):
    """Objects under the prefix of one target: keys are relative to it, and nothing outside of it is ever touched.

    Safe for use by several threads. All calls have deadlines. They raise

    - ``UnavailableError`` for what may pass by itself: no answer, 5xx, SlowDown and other throttling. The store's wish,
      if it gave one, is in ``facts["retry_after_seconds"]``. A few quick tries were made already: the caller tries
      again later.
    - ``PermissionDeniedError``, ``RefusedError`` or ``InvalidArgumentError`` for what somebody has to mend:
      credentials, permissions, the bucket, the clock. The message says what, where, and what to do.
    - ``NotFoundError`` for a key or an upload that is not there.
    - ``CorruptDataError`` where the store confirms other bytes than were sent, again and again.

    No message, fact or repr holds a secret.
    """

    @abstractmethod
    def head(self, key: str) -> StoredObject: ...

    @abstractmethod
    def get(self, key: str, max_bytes: int) -> bytes:
        """A small object as a whole; RefusedError if it is larger than ``max_bytes`` (I10)."""

    @abstractmethod
    def open(self, key: str, offset: int, size_bytes: int) -> ByteStream:
        """``size_bytes`` (> 0) of it from ``offset`` on, which must exist. To be closed, also after an error."""

    @abstractmethod
    def put(self, key: str, data: Buffer, *, only_if_absent: bool = False) -> None:
        """All or nothing, in place of what is there. The store compares an MD5 that is sent along.

        ``only_if_absent``: AlreadyExistsError if it is there already. UnsupportedError where the store says that it has
        no such condition; some stores just ignore it (``probing`` finds out), so nothing safe may depend on it.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[StoredObject]:
        """In the order of their keys, page by page; an error on the way is raised: a listing that ends is complete."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> dict[str, SdrsError]:
        """Any number of them; those that are not there are as good as deleted.

        Returns the keys that the store refused to delete (a lock, a permission), each with its reason; errors that
        concern the whole call are raised.
        """

    @abstractmethod
    def begin_upload(self, key: str) -> str:
        """The id of a new multipart upload."""

    @abstractmethod
    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Those under way whose keys begin so, page by page."""

    @abstractmethod
    def parts(self, key: str, upload_id: str) -> Iterator[Part]:
        """What has arrived. NotFoundError if the upload is not (or no more) there.

        Of a part that was sent twice with different bytes, some stores list both.
        """

    @abstractmethod
    def put_part(self, key: str, upload_id: str, number: int, data: Buffer) -> Part:
        """In place of one that has the same number. The store compares an MD5 that is sent along.

        May be called again with other bytes; which ones are meant is told by the ETag when the upload is completed.
        """

    @abstractmethod
    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        """The object is there, as a whole, from here on. NotFoundError if the upload is not there."""

    @abstractmethod
    def abort_upload(self, key: str, upload_id: str) -> None:
        """Its parts are thrown away; one that is not there is as good as aborted."""

    @abstractmethod
    def close(self) -> None: ...
