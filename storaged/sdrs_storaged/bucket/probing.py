"""Whether a target can be used from this machine, step by step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from sdrs_core.backup.targets import Target
from sdrs_core.errors import AlreadyExistsError, CorruptDataError, SdrsError, UnsupportedError
from sdrs_core.ids import random_id
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.opening import open_bucket
from sdrs_storaged.bucket.patience import Patience
from sdrs_storaged.bucket.s3 import fill

_DATA_BYTES = 64 * 1024
# Somebody waits for the answer.
_PATIENCE = Patience(connect_seconds=5.0, read_seconds=20.0, quick_tries=2, tries=1)


@dataclass(frozen=True, slots=True)
class Step:
    """``detail``: what went wrong and the permission or setting that it needs, or what was found."""

    name: str
    ok: bool
    detail: str = ""


def probe(target: Target, patience: Patience = _PATIENCE) -> Iterator[Step]:
    """open, owner, write, read, read-range, list, multipart, overwrite-if-none, delete; each as it is done.

    Touches nothing but ``probe/RANDOM`` under the prefix, and cleans that up. Without an open target nothing else is
    tried; after another step that fails the rest is, so that all that is missing is told at once.
    """
    try:
        bucket = open_bucket(target, patience)
    except SdrsError as error:
        yield Step("open", False, str(error))
        return
    with bucket:
        yield Step("open", True)
        yield from _Probe(bucket).steps()


class _Probe:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._store = bucket.store
        self._folder = f"probe/{random_id()}/"
        self._data = os.urandom(_DATA_BYTES)

    def steps(self) -> Iterator[Step]:
        # Of other clusters' backups nothing but reading is wanted (P25).
        is_read_only = bool(self._bucket.target.source_cluster_id)
        steps = [("owner", self._owner), ("list", self._list)]
        if not is_read_only:
            steps = [
                ("owner", self._owner),
                ("write", self._write),
                ("read", self._read),
                ("read-range", self._read_range),
                ("list", self._list),
                ("multipart", self._multipart),
                ("overwrite-if-none", self._overwrite_if_none),
                ("delete", self._delete),
            ]
        try:
            for name, action in steps:
                yield _tried(name, action)
        finally:
            if not is_read_only:
                self._clean_up()

    def _owner(self) -> str:
        owner = ManifestStore(self._bucket, "").read_owner()
        return f"cluster {owner.cluster_id}" if owner else "nobody's yet"

    def _write(self) -> str:
        self._store.put(self._folder + "object", self._data)
        return ""

    def _read(self) -> str:
        if self._store.get(self._folder + "object", _DATA_BYTES) != self._data:
            raise CorruptDataError(
                "other bytes came back than were written: something between here and the store is broken"
            )
        return ""

    def _read_range(self) -> str:
        into = bytearray(1000)
        stream = self._store.open(self._folder + "object", 100, len(into))
        try:
            fill(stream, memoryview(into))
        finally:
            stream.close()
        if into != self._data[100:1100]:
            raise CorruptDataError(
                "a range came back with other bytes than were written: the store must support ranges"
            )
        return ""

    def _list(self) -> str:
        if self._bucket.target.source_cluster_id:
            next(self._store.list(""), None)
            return ""
        found = [found.key for found in self._store.list(self._folder)]
        if self._folder + "object" not in found:
            raise CorruptDataError("what was written is not listed: the store must list what it has at once")
        return ""

    def _multipart(self) -> str:
        key = self._folder + "parts"
        upload_id = self._store.begin_upload(key)
        part = self._store.put_part(key, upload_id, 1, self._data)
        if upload_id not in [upload.upload_id for upload in self._store.uploads(key)]:
            raise CorruptDataError("an upload that was begun is not listed: it could not be gone on with after a crash")
        if [found.number for found in self._store.parts(key, upload_id)] != [1]:
            raise CorruptDataError("a part that was sent is not listed: it would be sent again after a crash")
        self._store.complete_upload(key, upload_id, [part])
        if self._store.head(key).size_bytes != _DATA_BYTES:
            raise CorruptDataError("an upload in parts has another size than was sent")
        # Parts of uploads that are not wanted any more are thrown away.
        self._store.abort_upload(key, self._store.begin_upload(key))
        return ""

    def _overwrite_if_none(self) -> str:
        """Not needed: it only makes it less likely that two clusters claim one prefix in the same instant."""
        key = self._folder + "once"
        try:
            self._store.put(key, b"1", only_if_absent=True)
            self._store.put(key, b"2", only_if_absent=True)
        except AlreadyExistsError:
            return "supported"
        except UnsupportedError:
            pass
        return "not supported by this store: do not add one prefix to two clusters at the same time"

    def _delete(self) -> str:
        keys = [self._folder + name for name in ("object", "parts", "once")]
        for refused in self._store.delete(keys).values():
            raise refused
        if next(self._store.list(self._folder), None):
            raise CorruptDataError("what was deleted is still listed: the store must list what it has at once")
        return ""

    def _clean_up(self) -> None:
        # Whatever is in the way was told by a step already.
        with suppress(SdrsError):
            for upload in list(self._store.uploads(self._folder)):
                self._store.abort_upload(upload.key, upload.upload_id)
        with suppress(SdrsError):
            self._store.delete([self._folder + name for name in ("object", "parts", "once")])


def _tried(name: str, action: Callable[[], str]) -> Step:
    try:
        return Step(name, True, action())
    except SdrsError as error:
        return Step(name, False, str(error))
