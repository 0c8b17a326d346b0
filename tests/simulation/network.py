"""Messages between processes: delayed, lost, repeated, held back by partitions; and the connections to nobody.

A pair of processes is as one connection: what is sent first arrives first. What a partition holds back may arrive once
it is over, long after its sender gave up, or never. Whoever is paused hears everything later; whoever is dead refuses,
unless the refusal is held back too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from sdrs_core.errors import DeadlineExceededError, SdrsError, UnavailableError
from tests.simulation.loop import Process, VirtualLoop

Deliver = Callable[[], None]


class Served(Protocol):
    """Something behind an address."""

    process: Process
    # Its ends of streams, to be cancelled when it stops serving.
    streams: list[asyncio.Task[Any]]

    def find(self, method: str) -> Callable[[Any], Any]:
        """What serves ``method`` now; UnavailableError if nothing does."""


@dataclass
class Weather:
    """How bad the network is, for everybody."""

    loss: float = 0.0
    repeat: float = 0.0
    slow: float = 0.0

    def clear(self) -> None:
        self.loss = self.repeat = self.slow = 0.0


@dataclass
class Network:
    loop: VirtualLoop
    random: Random
    note: Callable[[str], None]
    defect: Callable[[str, BaseException], None]
    weather: Weather = field(default_factory=Weather)
    # Told of each request as it is sent: (sender, address, method, request).
    on_request: Callable[[str, str, str, Any], None] = lambda *_: None

    def __post_init__(self) -> None:
        # In nobody's context: what is on its way arrives whatever becomes of its sender.
        self._nobody = copy_context()
        self._served: dict[str, Served] = {}
        self._cut: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], list[tuple[Deliver, bool]]] = {}
        self._arrived: dict[tuple[str, str], float] = {}
        self.slow_processes: dict[str, float] = {}

    def listen(self, address: str, served: Served) -> None:
        self._served[address] = served

    def find(self, address: str) -> Served | None:
        return self._served.get(address)

    # Partitions

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing passes from one to the other; cuts are counted."""
        self._cut[sender, receiver] = self._cut.get((sender, receiver), 0) + 1

    def join(self, sender: str, receiver: str, *, is_kept: bool | None = None) -> None:
        """``is_kept``: whether what was held back arrives after all; by chance, unless told."""
        pair = (sender, receiver)
        left = self._cut.get(pair, 0) - 1
        if left > 0:
            self._cut[pair] = left
            return
        self._cut.pop(pair, None)
        # Retransmitted, or the connection was given up meanwhile; a stream that lives on has no gaps.
        is_kept = self.random.random() < 0.7 if is_kept is None else is_kept
        for deliver, is_stream in self._held.pop(pair, []):
            if is_kept or is_stream:
                self._post(pair, deliver, is_stream)

    def join_all(self) -> None:
        for pair in list(self._cut):
            self._cut[pair] = 1
            self.join(*pair)

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cut

    # Messages

    def send(self, sender: str, receiver: str, deliver: Deliver, *, is_stream: bool = False) -> None:
        pair = (sender, receiver)
        if pair in self._cut:
            self._held.setdefault(pair, []).append((deliver, is_stream))
        else:
            self._post(pair, deliver, is_stream)

    def _post(self, pair: tuple[str, str], deliver: Deliver, is_stream: bool) -> None:
        arrives = max(self.loop.time() + self._delay_seconds(pair), self._arrived.get(pair, 0.0))
        self._arrived[pair] = arrives

        def arrive() -> None:
            if pair in self._cut:
                self._held.setdefault(pair, []).append((deliver, is_stream))
            else:
                deliver()

        self.loop.call_at(arrives, arrive, context=self._nobody)

    def _delay_seconds(self, pair: tuple[str, str]) -> float:
        delay = 0.0002 + 0.002 * self.random.random()
        delay *= max(self.slow_processes.get(pair[0], 1.0), self.slow_processes.get(pair[1], 1.0))
        return delay + self.random.random() if self.random.random() < self.weather.slow else delay

    # Calls

    def call(
        self, caller: Process, address: str, method: str, request: Any, timeout_seconds: float
    ) -> asyncio.Future[Any]:
        """The answer of whoever serves ``address``, or an error of ours."""
        answer = self.loop.create_future()
        loss, sender = self.weather.loss, caller.name
        self.on_request(sender, address, method, request)

        def fail(error: SdrsError) -> None:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # heard, also if its caller is dead

        deadline = self.loop.call_later(
            timeout_seconds, fail, DeadlineExceededError(f"{address} did not answer {method} in time")
        )
        answer.add_done_callback(lambda _: deadline.cancel())
        is_lost = loss > 0 and self.random.random() < loss
        if is_lost:
            # With its connection, before or after it was heard.
            lost = UnavailableError(f"{address}: connection lost")
            self.loop.call_later(min(timeout_seconds, 2 * self.random.random()), fail, lost)
            if self.random.random() < 0.5:
                return answer

        def answer_back(outcome: Any) -> None:
            if answer.done() or is_lost:
                return
            if isinstance(outcome, SdrsError):
                fail(type(outcome)(outcome.message, **outcome.facts))
            else:
                answer.set_result(outcome)

        def deliver() -> None:
            self._serve(sender, address, method, request, answer_back)

        self.send(sender, address, deliver)
        # A socket repeats nothing.
        if self.weather.repeat and method != "receive_blocks" and self.random.random() < self.weather.repeat:
            self.send(sender, address, deliver)
        return answer

    def _serve(self, sender: str, address: str, method: str, request: Any, answer_back: Callable[[Any], None]) -> None:
        served = self._served.get(address)
        if served is None or not served.process.is_alive:
            self.note(f"{sender} -> {address} {method}: refused")
            self.send(address, sender, lambda: answer_back(UnavailableError(f"{address}: connection refused")))
            return
        process = served.process

        def reply(outcome: Any) -> None:
            process.on_death.pop(reply, None)
            self.note(f"{sender} <- {address} {method}: {_brief(outcome)}")
            self.send(address, sender, lambda: answer_back(outcome))

        process.on_death[reply] = lambda: reply(UnavailableError(f"{address}: connection reset"))

        async def run() -> None:
            self.note(f"{sender} -> {address} {method}")
            try:
                outcome = await served.find(method)(request)
            except SdrsError as error:
                outcome = error
            except Exception as error:
                self.defect(f"{method} of {address}", error)
                return
            reply(outcome)

        process.spawn(run())

    async def is_refused(self, caller: Process, address: str, timeout_seconds: float) -> bool:
        """A connection is tried: True if there is nobody, False if there is, or if that cannot be told."""
        found = self.loop.create_future()

        def knock() -> None:
            served = self._served.get(address)
            is_refused = served is None or not served.process.is_alive
            self.send(address, caller.name, lambda: found.done() or found.set_result(is_refused))

        self.send(caller.name, address, knock)
        try:
            async with asyncio.timeout(timeout_seconds):
                return bool(await found)
        except TimeoutError:
            return False


def _brief(outcome: Any) -> str:
    return outcome.reason if isinstance(outcome, SdrsError) else "ok"
