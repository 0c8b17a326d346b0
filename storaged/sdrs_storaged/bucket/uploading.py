"""One object into a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.node.pacing import Pace

# The content's bytes that are dealt with, and the bytes that went over the wire for it: what is there already does not.
Progress = Callable[[int, int], None]


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

    Goes on with a multipart upload of the same key that is there, whoever began it; sends only what it lacks. Returns
    once the whole object is in the bucket; at once if it is already, without asking for a block. The BLAKE3 is computed
    on the way and compared before anything becomes visible: CorruptDataError if it is another one, and what was sent is
    thrown away. After any other error the upload stays, to go on with.

    ``check`` is called between blocks, and whatever it raises ends the upload.
    """
    raise NotImplementedError
