from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sdrs_storaged.seeing_through import see_through


def test_who_is_cancelled_waits_for_the_thread_and_its_failure_is_no_defect() -> None:
    began, may_end, told = threading.Event(), threading.Event(), list[dict[str, Any]]()
    ended = False

    def work() -> None:
        nonlocal ended
        began.set()
        may_end.wait(10)
        ended = True
        raise ValueError("nobody asks any more")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        waiting = asyncio.ensure_future(see_through(asyncio.to_thread(work)))
        await asyncio.to_thread(began.wait, 10)
        waiting.cancel()
        asyncio.get_running_loop().call_later(0.01, may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ended

    asyncio.run(main())
    assert not told


def test_what_the_work_gives_or_raises_reaches_who_waits() -> None:
    async def main() -> None:
        assert await see_through(asyncio.to_thread(lambda: 7)) == 7
        with pytest.raises(ZeroDivisionError):
            await see_through(asyncio.to_thread(lambda: 1 // 0))

    asyncio.run(main())
