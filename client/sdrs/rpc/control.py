"""Calls to the controllers: the active one is found by trying, and unavailability is waited out for a while.

Repeating a call is safe: requests that change something carry a request id, or name a save by its id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message

from sdrs.rpc.channels import Channels, InterruptedByForkError, call_once, send_requests, stream_responses
from sdrs_core.backoff import backoff
from sdrs_core.errors import DeadlineExceededError, SdrsError, StaleTermError, UnavailableError, is_answered
from sdrs_proto.limits import CALL_SECONDS, MAX_PAGE_SIZE
from sdrs_proto.services import CONTROL

# With another controller to go to, one that does not answer is not waited for as long as a lone one.
ADDRESS_SECONDS = 3.0

# Another controller may know better: this one is gone, frozen, not active, or no longer.
_ASK_THE_NEXT = (UnavailableError, DeadlineExceededError, StaleTermError)


class Control:
    def __init__(self, channels: Channels, addresses: tuple[str, ...], patience_seconds: float) -> None:
        self._channels = channels
        self._addresses = addresses
        self._patience_seconds = patience_seconds
        # The address that answered last; racing threads may both move it, which costs one more try.
        self._current = 0

    def call(
        self,
        method: str,
        request: Message,
        *,
        wait_ms: int = 0,
        patience_seconds: float | None = None,
        is_held_up_by_forks: bool = False,
    ) -> Any:
        """Ask until a controller answers, or until they were all out of reach for ``patience_seconds``.

        ``wait_ms`` is how long the controller may hold its answer back; it does not count as being out of reach.
        Such a call is stopped when the process forks, and made again; so is one that ``is_held_up_by_forks``, instead
        of having a fork wait for it.
        """
        patience_seconds = self._patience_seconds if patience_seconds is None else patience_seconds
        out_of_reach_since: float | None = None
        pauses = backoff()
        while True:
            started = time.monotonic()
            try:
                return self._ask_each(method, request, wait_ms, wait_ms > 0 or is_held_up_by_forks)
            except InterruptedByForkError:
                continue
            except _ASK_THE_NEXT:
                out_of_reach_since = started if out_of_reach_since is None else out_of_reach_since
                pause_seconds = next(pauses)
                if time.monotonic() + pause_seconds > out_of_reach_since + patience_seconds:
                    raise
                time.sleep(pause_seconds)

    def _ask_each(self, method: str, request: Message, wait_ms: int, long_poll: bool) -> Any:
        """Ask each controller once, beginning with the one that answered last."""
        failures: list[SdrsError] = []
        call_seconds = CALL_SECONDS if len(self._addresses) == 1 else ADDRESS_SECONDS
        for _ in self._addresses:
            address = self._addresses[self._current % len(self._addresses)]
            stub = self._channels.stub(address, CONTROL)
            try:
                return call_once(
                    getattr(stub, method),
                    request,
                    timeout_seconds=call_seconds + wait_ms / 1000,
                    peer=f"the controller at {address}",
                    long_poll=long_poll,
                )
            except _ASK_THE_NEXT as error:
                failures.append(error)
                self._current += 1
        assert failures, "a cluster has at least one controller"
        # What the active one says tells more than that another is standing by, and that more than that one is gone.
        raise min(failures, key=lambda error: ("standby" in error.facts, not is_answered(error)))

    def stream(self, method: str, request: Message, *, timeout_seconds: float) -> Iterator[Any]:
        address = self._addresses[self._current % len(self._addresses)]
        stub = self._channels.stub(address, CONTROL)
        return stream_responses(
            getattr(stub, method), request, timeout_seconds=timeout_seconds, peer=f"the controller at {address}"
        )

    def send(self, method: str, requests: Iterable[Message], *, timeout_seconds: float) -> Any:
        """Send a stream of requests, once: what it was made from may not be there a second time."""
        address = self._addresses[self._current % len(self._addresses)]
        stub = self._channels.stub(address, CONTROL)
        return send_requests(
            getattr(stub, method), requests, timeout_seconds=timeout_seconds, peer=f"the controller at {address}"
        )

    def pages(self, method: str, request: Any, *, wait_ms: int = 0) -> Iterator[Any]:
        """Every page of a list; ``wait_ms`` is for each, as ``call`` has it."""
        request.page_size = request.page_size or MAX_PAGE_SIZE
        while True:
            page = self.call(method, request, wait_ms=wait_ms)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
