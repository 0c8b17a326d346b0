"""Standing by, leading and losing the post, in one process: the loop of Leadership, and what callers get meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sdrs_core.errors import CorruptDataError, FullError, StaleTermError, UnavailableError
from sdrs_proto.services import CONTROL, MEMBERSHIP
from sdrs_storaged.control.leadership import Leadership
from sdrs_storaged.control.meta.memory import MemoryMetaStore
from sdrs_storaged.control.meta.store import LEADER_KEY, Delete, MetaStore, Term
from sdrs_storaged.rpc.standby import Switchboard

DEADLINE_SECONDS = 20


def run(test: Callable[[MemoryMetaStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            store = MemoryMetaStore()
            await test(store)
            await store.close()

    asyncio.run(main())


class Candidate:
    """One controller: ``terms`` are those that it began, ``is_leading`` tells of the present."""

    def __init__(self, store: MetaStore, name: str, failures: list[Exception] | None = None) -> None:
        self.terms: list[Term] = []
        self.is_leading = False
        self._began = asyncio.Condition()
        self._failures = failures or []
        self.leadership = Leadership(store, f"{name} 1", self._lead)
        self.task = asyncio.ensure_future(self.leadership.run())

    async def _lead(self, term: Term) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.is_leading = True
        async with self._began:
            self.terms.append(term)
            self._began.notify_all()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_leading = False

    async def began(self, count: int) -> None:
        async with self._began:
            await self._began.wait_for(lambda: len(self.terms) >= count)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody sets an event for it
        await asyncio.sleep(0)


def test_one_leads_the_other_stands_by_and_follows_when_it_stops() -> None:
    async def test(store: MemoryMetaStore) -> None:
        first = Candidate(store, "a:1")
        await first.began(1)
        second = Candidate(store, "b:1")
        await second.leadership.settled.wait()
        assert (second.is_leading, second.leadership.active_address) == (False, "a:1")
        await first.stop()
        await second.began(1)
        assert not first.is_leading
        assert second.terms[0].number > first.terms[0].number
        await until(lambda: second.leadership.active_address == "b:1")
        await second.stop()
        assert await store.get(LEADER_KEY) is None

    run(test)


def test_a_term_that_is_taken_away_is_given_up_and_campaigned_for_again() -> None:
    async def test(store: MemoryMetaStore) -> None:
        candidate = Candidate(store, "a:1")
        await candidate.began(1)
        await store.txn([], [Delete(LEADER_KEY)])
        await candidate.began(2)
        assert candidate.terms[1].number > candidate.terms[0].number
        await candidate.stop()

    run(test)


@pytest.mark.parametrize("failure", [UnavailableError("etcd is away"), StaleTermError("another one leads")])
def test_what_passes_is_tried_again(failure: Exception) -> None:
    async def test(store: MemoryMetaStore) -> None:
        candidate = Candidate(store, "a:1", [failure])
        await candidate.began(1)
        assert candidate.terms[0].number == 2
        await candidate.stop()

    run(test)


def test_a_term_that_could_not_be_given_up_at_once_does_not_stand_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(store: MemoryMetaStore) -> None:
        resign, tries = store.resign, []

        async def resign_later(term: Term) -> None:
            tries.append(term)
            if len(tries) == 1:
                raise FullError("no room even for that")
            await resign(term)

        monkeypatch.setattr(store, "resign", resign_later)
        candidate = Candidate(store, "a", [UnavailableError("the first term does not begin well")])
        await candidate.began(1)
        assert len(tries) == 2
        await candidate.stop()

    run(test)


def test_what_does_not_pass_ends_the_daemon() -> None:
    async def test(store: MemoryMetaStore) -> None:
        candidate = Candidate(store, "a:1", [CorruptDataError("a record cannot be read")])
        await asyncio.wait([candidate.task])
        with pytest.raises(ExceptionGroup) as raised:
            candidate.task.result()
        assert raised.group_contains(CorruptDataError)
        assert await store.get(LEADER_KEY) is None

    run(test)


def test_an_outage_of_the_store_demotes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: MemoryMetaStore) -> None:
        asked = asyncio.Event()

        async def lost(term: Term) -> None:
            asked.set()
            raise UnavailableError("etcd is away")

        monkeypatch.setattr(store, "lost", lost)
        candidate = Candidate(store, "a:1")
        await candidate.began(1)
        await asked.wait()
        await store.get("anything")
        assert candidate.is_leading
        await candidate.stop()

    run(test)


class Service:
    """Stands for the controller's services."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.ended = False

    async def get_cluster(self, request: str) -> str:
        return f"cluster for {request}"

    async def wait_save(self, request: str) -> str:
        self.called.set()
        await asyncio.Event().wait()
        return "never"

    async def begin_save(self, request: str) -> str:
        raise StaleTermError("this controller no longer leads")

    async def heartbeat(self, requests: AsyncIterator[str]) -> AsyncIterator[str]:
        try:
            async for request in requests:
                yield f"heard {request}"
        finally:
            self.ended = True


async def endless(first: str) -> AsyncIterator[str]:
    yield first
    await asyncio.Event().wait()


def test_callers_reach_the_controller_only_while_it_leads() -> None:
    async def test(store: MemoryMetaStore) -> None:
        active = [""]
        switchboard = Switchboard(lambda: active[0])
        control: Any = switchboard.front(CONTROL)
        membership: Any = switchboard.front(MEMBERSHIP)
        with pytest.raises(UnavailableError, match="none is active yet"):
            await control.get_cluster("x")
        service = Service()
        with switchboard.switched_to({CONTROL.name: service, MEMBERSHIP.name: service}):
            assert await control.get_cluster("x") == "cluster for x"
            beats = membership.heartbeat(endless("beat"))
            assert await anext(beats) == "heard beat"
            waiting = asyncio.ensure_future(control.wait_save("x"))
            beating = asyncio.ensure_future(anext(beats))
            await service.called.wait()
            active[0] = "b:1"
            # The fence speaks before the loop knows: to callers it is the same.
            with pytest.raises(UnavailableError, match="b:1"):
                await control.begin_save("x")
        for left_behind in (waiting, beating):
            with pytest.raises(UnavailableError, match="the active one is b:1"):
                await left_behind
        assert service.ended
        with pytest.raises(UnavailableError, match="the active one is b:1"):
            await control.get_cluster("x")
        with pytest.raises(UnavailableError, match="the active one is b:1"):
            await anext(membership.heartbeat(endless("beat")))

    run(test)


def test_a_stream_ends_with_its_term_also_between_two_of_its_answers() -> None:
    async def test(store: MemoryMetaStore) -> None:
        async def two() -> AsyncIterator[str]:
            yield "1"
            yield "2"

        switchboard = Switchboard(lambda: "")
        membership: Any = switchboard.front(MEMBERSHIP)
        with switchboard.switched_to({MEMBERSHIP.name: Service()}):
            answers = membership.heartbeat(two())
            assert await anext(answers) == "heard 1"
        # Nobody waited for the next answer when the term ended; the next term is not the one that was asked.
        with switchboard.switched_to({MEMBERSHIP.name: Service()}):
            with pytest.raises(UnavailableError, match="stands by"):
                await anext(answers)

    run(test)


def test_a_stream_that_ends_by_itself_just_ends() -> None:
    async def test(store: MemoryMetaStore) -> None:
        async def two() -> AsyncIterator[str]:
            yield "1"
            yield "2"

        switchboard = Switchboard(lambda: "")
        membership: Any = switchboard.front(MEMBERSHIP)
        with switchboard.switched_to({MEMBERSHIP.name: Service()}):
            assert [answer async for answer in membership.heartbeat(two())] == ["heard 1", "heard 2"]

    run(test)
