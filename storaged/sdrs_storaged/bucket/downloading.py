"""One object out of a bucket."""

from __future__ import annotations

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_storaged.bucket.bucket import Bucket


class ObjectReader:
    """The plain content of an object from some offset to its end; ``rpc.sources.Opened``. For one thread."""

    def receive(self, into: memoryview) -> None:
        """The next bytes, exactly as many as fit.

        Broken connections are opened again at the position, so many times. UnavailableError when that is in vain,
        NotFoundError if the object is not there, CorruptDataError if it is shorter than its record says or does not
        decrypt. Bytes of objects that are not encrypted are to be checked by the caller (I5).
        """
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def open_object(bucket: Bucket, place: ObjectPlace, offset: int = 0) -> ObjectReader:
    """``offset`` in its content."""
    raise NotImplementedError
