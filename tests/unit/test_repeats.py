"""A repeated request gets the first one's answer; one that failed is tried again."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.errors import UnavailableError
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.rpc import repeats
from sdrs_storaged.rpc.repeats import Repeats


class Work:
    def __init__(self) -> None:
        self.count = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.count += 1
        await self.go.wait()
        if self.error:
            raise self.error
        return self.count


def test_a_repeat_joins_and_then_gets_the_same_answer() -> None:
    async def run() -> None:
        once, work = Repeats(), Work()
        first = asyncio.ensure_future(once.once(b"request", work))
        second = asyncio.ensure_future(once.once(b"request", work))
        await asyncio.sleep(0)
        work.go.set()
        assert await first == await second == await once.once(b"request", work) == 1
        assert await once.once(b"another", work) == 2

    asyncio.run(run())


def test_a_caller_that_hangs_up_does_not_stop_the_work() -> None:
    async def run() -> None:
        once, work = Repeats(), Work()
        first = asyncio.ensure_future(once.once(b"request", work))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        work.go.set()
        assert await once.once(b"request", work) == 1

    asyncio.run(run())


def test_what_failed_is_tried_again() -> None:
    async def run() -> None:
        once, work = Repeats(), Work()
        work.go.set()
        work.error = UnavailableError("later")
        with pytest.raises(UnavailableError):
            await once.once(b"request", work)
        work.error = None
        assert await once.once(b"request", work) == 2

    asyncio.run(run())


def test_only_so_many_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_MAX_REMEMBERED", 3)

    async def run() -> None:
        once, work = Repeats(), Work()
        work.go.set()
        for number in range(10):
            await once.once(str(number).encode(), work)
        assert await once.once(b"9", work) == 10  # remembered
        assert await once.once(b"0", work) == 11  # forgotten, so done again

    asyncio.run(run())


def test_a_large_answer_is_not_kept() -> None:
    """I10: thousands of lists would add up; asking for what they tell is harmless."""

    async def run() -> None:
        once, count = Repeats(), 0

        async def drop() -> pb.DropFragmentsResponse:
            nonlocal count
            count += 1
            names = [pb.FragmentName(blob_id="b" * 32, fragment_index=index) for index in range(500)]
            return pb.DropFragmentsResponse(dropped=names)

        await once.once(b"request", drop)
        await once.once(b"request", drop)
        assert count == 2

    asyncio.run(run())
