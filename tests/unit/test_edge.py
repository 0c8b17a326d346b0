"""What every served call passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from sdrs_core.errors import StaleAttemptError
from sdrs_proto.services import CONTROL, methods
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.rpc.edge import serve


def test_a_refusal_that_its_caller_did_not_wait_for_is_no_defect() -> None:
    async def run() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def behavior(request: pb.GetClusterRequest) -> pb.GetClusterResponse:
            reached.set()
            await go_on.wait()
            raise StaleAttemptError("superseded")

        method = next(method for method in methods(CONTROL) if method.name == "GetCluster")
        call = asyncio.create_task(serve(method, behavior)(b"", None))
        await reached.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        go_on.set()
        for _ in range(5):
            await asyncio.sleep(0)
        return told

    assert asyncio.run(run()) == []


class StalledContext:
    """A caller that took one answer, and then no more."""

    def __init__(self) -> None:
        self.taken = 0
        self.aborted: grpc.StatusCode | None = None

    async def write(self, response: Any) -> None:
        self.taken += 1
        if self.taken > 1:
            await asyncio.Event().wait()

    async def abort(self, code: grpc.StatusCode, message: str, details: Any) -> None:
        self.aborted = code


def test_a_stream_whose_caller_takes_nothing_ends_and_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdrs_storaged.rpc.edge.STALL_SECONDS", 0.05)
    held = True

    async def behavior(request: pb.VerifyCheckpointRequest) -> AsyncIterator[pb.VerifyCheckpointResponse]:
        nonlocal held
        try:
            while True:
                yield pb.VerifyCheckpointResponse()
        finally:
            held = False

    async def run() -> None:
        method = next(method for method in methods(CONTROL) if method.name == "VerifyCheckpoint")
        context = StalledContext()
        async with asyncio.timeout(5):
            await serve(method, behavior)(b"", context)
        assert (context.taken, context.aborted) == (2, grpc.StatusCode.UNAVAILABLE)

    asyncio.run(run())
    assert not held
