"""What a node makes of orders to upload: who may give them, and what the same order given again does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import sdrs_storaged.bucket.uploading
from sdrs_core.errors import PermissionDeniedError, UnavailableError
from sdrs_proto.signing import signature
from sdrs_proto.v1 import backup_pb2, storage_pb2
from sdrs_storaged.bucket.open_buckets import OpenBuckets
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.pacing import Background
from sdrs_storaged.node.transfers import Slots
from sdrs_storaged.rpc.storage_service import StorageService
from sdrs_storaged.rpc.uploading import Uploading
from sdrs_storaged.rpc.workers import Workers

BLOB = "b" * 32


class NoSources:
    buffers = None

    def __init__(self) -> None:
        self.buckets = OpenBuckets()

    def open(self, *asked: object) -> None:
        raise AssertionError("nothing is read in these tests")


def order(**changes: Any) -> storage_pb2.UploadBlobRequest:
    return storage_pb2.UploadBlobRequest(
        blob_id=BLOB,
        size_bytes=10,
        hash="hash",
        code="mirror",
        sources=[storage_pb2.FragmentSource(fragment_index=0)],
        target=backup_pb2.BackupTarget(name="nas", bucket="backups"),
        object=storage_pb2.BackupObject(key="c/objects/aa/aa-run", size_bytes=10),
        blake3="aa",
        **changes,
    )


@asynccontextmanager
async def uploading(monkeypatch: pytest.MonkeyPatch, upload: Callable[..., None]) -> AsyncIterator[Uploading]:
    monkeypatch.setattr(sdrs_storaged.bucket.uploading, "upload", upload)
    monkeypatch.setattr(OpenBuckets, "get", lambda buckets, target: target)
    monkeypatch.setattr(Uploading, "_stream", lambda *asked: _Nothing())
    workers, looks = Workers("upload", 2), Workers("look", 1)
    try:
        yield Uploading(
            NoSources(),  # type: ignore[arg-type]
            NodeMetrics(CollectorRegistry()),
            Background(lambda: False),
            slots=Slots("upload", 2),
            readers=workers,
            looks=looks,
        )
    finally:
        await asyncio.to_thread(workers.shutdown)
        await asyncio.to_thread(looks.shutdown)


class _Nothing:
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *ended: object) -> None:
        pass

    def blocks(self) -> Iterator[tuple[bytes, memoryview]]:
        return iter(())


def test_an_order_that_is_given_again_joins_the_upload_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()
    limits: list[int] = []

    def upload(*asked: object, pace: Any, progress: Callable[[int, int], None], **more: object) -> None:
        begun.release()
        assert may_end.wait(20)
        limits.append(pace._max_bytes_per_second)
        progress(10, 10)

    async def run() -> None:
        async with uploading(monkeypatch, upload) as node:
            first = node.upload(order())
            await anext(first)
            # Whoever waited is gone; the upload is not.
            await first.aclose()
            second = node.upload(order(max_bytes_per_second=7))
            await anext(second)
            may_end.set()
            last = [answer async for answer in second][-1]
            assert (last.is_done, last.done_bytes, last.sent_bytes) == (True, 10, 10)

    asyncio.run(run())
    assert limits == [7], "one upload, at the pace that was said last"
    assert begun.acquire(blocking=False)
    assert not begun.acquire(blocking=False)


def test_an_upload_that_is_called_off_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(*asked: object, pace: Any, **more: object) -> None:
        for _ in range(2000):
            pace.spent(0)
            threading.Event().wait(0.01)
        raise AssertionError("it was not called off")

    async def run() -> None:
        async with uploading(monkeypatch, upload) as node:
            waiting = node.upload(order())
            await anext(waiting)
            with pytest.raises(UnavailableError, match="is called off"):
                await anext(node.upload(order(called_off=True)))
            with pytest.raises(UnavailableError, match="the controller called it off"):
                async for _ in waiting:
                    pass

    asyncio.run(run())


class Secretive:
    node_id, secret = "node-1", "secret"


@pytest.mark.parametrize(
    "request_of",
    [storage_pb2.DescribeBlobRequest, storage_pb2.UploadBlobRequest, storage_pb2.ProbeTargetRequest],
)
def test_only_what_the_controller_signed_is_done(request_of: Any) -> None:
    service = StorageService.__new__(StorageService)
    service._identity = Secretive()  # type: ignore[assignment]
    request = request_of()
    request.signature = signature("another secret", request)
    with pytest.raises(PermissionDeniedError, match="only the controller"):
        asyncio.run(_first(service, request))


async def _first(service: StorageService, request: Any) -> None:
    match request:
        case storage_pb2.DescribeBlobRequest():
            await service.describe_blob(request)
        case storage_pb2.UploadBlobRequest():
            await anext(aiter(service.upload_blob(request)))
        case _:
            await anext(aiter(service.probe_target(request)))
