"""A mutation that is asked for again is not done again.

A caller whose answer was lost, or whose deadline came too early, repeats the very same request, with the same request
id. It gets the first one's answer, or joins it while it is under way. What failed is forgotten, so that trying again
tries again. This lives as long as the process: across a restart the records themselves tell what was done.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import xxhash
from google.protobuf.message import Message

_MAX_REMEMBERED = 4096
# I10. Larger ones are lists (what was dropped): asking for that again does no harm.
_MAX_ANSWER_BYTES = 4096


class Repeats:
    """Of one method."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, asyncio.Future[Any]] = OrderedDict()

    async def once(self, raw: bytes, work: Callable[[], Awaitable[Any]]) -> Any:
        """The answer of ``work``, done at most once for each request that succeeds."""
        key = xxhash.xxh3_128_digest(raw)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = asyncio.ensure_future(work())
            answer.add_done_callback(lambda done: self._keep(key, done))
        # A caller that hangs up must not leave a change half done: it is carried through, bounded by its own waits.
        return await asyncio.shield(answer)

    def _keep(self, key: bytes, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None or _is_large(done.result()):
            self._answers.pop(key, None)
        while len(self._answers) > _MAX_REMEMBERED:
            self._answers.popitem(last=False)


def _is_large(answer: Any) -> bool:
    return isinstance(answer, Message) and answer.ByteSize() > _MAX_ANSWER_BYTES
