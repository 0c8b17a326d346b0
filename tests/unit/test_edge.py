"""What every served call passes."""

from __future__ import annotations

import asyncio
from typing import Any

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
