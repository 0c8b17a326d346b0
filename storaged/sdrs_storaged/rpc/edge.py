"""What every served call passes: requests are decoded, errors become status, and a defect is logged instead of sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from sdrs_core.errors import InternalError, ProtocolError, SdrsError, UnavailableError
from sdrs_proto.limits import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, STALL_SECONDS
from sdrs_proto.services import Method
from sdrs_proto.status import DETAILS_KEY, code_of, to_status
from sdrs_storaged.logs import get_log
from sdrs_storaged.rpc.repeats import Repeats

log = get_log("rpc")

_MAX_MESSAGE_CHARS = 2000  # errors travel in headers, which are small
# The event loop alone holds tasks weakly: one whose caller hung up could be thrown away half done.
_carried_through: set[asyncio.Task[Any]] = set()


def serve(method: Method, behavior: Any) -> Any:
    """``behavior`` as gRPC calls it: it takes the request, or an iterator of them, and gives or yields the response."""
    if method.shape == "unary_unary":
        repeats = Repeats()

        async def unary(raw: bytes, context: Any) -> Any:
            try:
                request = _decode(method, raw)
                if getattr(request, "request_id", ""):
                    answer = await repeats.once(raw, lambda: behavior(request))
                else:
                    # Also what only looks may bring something on (a commit that failed before): it is carried through.
                    look = asyncio.create_task(_answer(behavior, request))
                    _carried_through.add(look)
                    look.add_done_callback(_carried_through.discard)
                    answer = await asyncio.shield(look)
            except Exception as error:
                answer = error
            if isinstance(answer, Exception):
                await _abort(context, method, answer)
            return answer

        return unary

    if method.shape == "stream_unary":

        async def collecting(raws: AsyncIterator[bytes], context: Any) -> Any:
            try:
                return await behavior(_decode_all(method, raws))
            except Exception as error:
                await _abort(context, method, error)

        return collecting

    async def streaming(raw: Any, context: Any) -> None:
        try:
            request = _decode_all(method, raw) if method.shape == "stream_stream" else _decode(method, raw)
            async with aclosing(behavior(request)) as responses:
                async for response in responses:
                    await _write(context, response)
        except Exception as error:
            await _abort(context, method, error)

    return streaming


async def _write(context: Any, response: Any) -> None:
    """A caller that takes nothing any more must not hold for ever what the call holds."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await context.write(response)
    except TimeoutError:
        raise UnavailableError(f"the caller took nothing for {STALL_SECONDS} s: the stream stalled") from None


async def _answer(behavior: Any, request: Any) -> Any:
    """The response, or our error: returned, since a refusal that nobody waits for any more is no defect."""
    try:
        return await behavior(request)
    except SdrsError as error:
        return error


def _decode(method: Method, raw: bytes) -> Any:
    try:
        return method.decode_request(raw)
    except DecodeError as error:
        raise ProtocolError(f"the request of {method.name} cannot be read: {error}") from error


async def _decode_all(method: Method, raws: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for raw in raws:
        yield _decode(method, raw)


async def _abort(context: Any, method: Method, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, SdrsError):
        log.error("call_failed", method=method.name, exc_info=error)
        error = InternalError(
            f"{method.name} failed by a defect of storaged ({type(error).__name__}); its log tells more"
        )
    error.message = error.message[:_MAX_MESSAGE_CHARS]
    details = ((DETAILS_KEY, to_status(error).SerializeToString()),)
    await context.abort(code_of(error), error.message, details)


def page_size(asked: int) -> int:
    return min(asked, MAX_PAGE_SIZE) if asked else DEFAULT_PAGE_SIZE
