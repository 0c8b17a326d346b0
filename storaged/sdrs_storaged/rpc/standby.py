"""The services of a controller while it leads, and a refusal that names the active one while it stands by.

The port is served all the time. Callers take UnavailableError for "try the next controller", so that is what they get
between terms; calls and streams that a term leaves behind are ended with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from sdrs_core.errors import StaleTermError, UnavailableError
from sdrs_proto.services import methods

_END = object()


class Switchboard:
    def __init__(self, active_address: Callable[[], str]) -> None:
        self._active_address = active_address
        # By the name of the service; empty while this controller stands by.
        self._services: dict[str, object] = {}
        self._under_way: set[asyncio.Timeout] = set()

    def front(self, service: ServiceDescriptor) -> object:
        """What is served in the place of ``service``, in every term."""
        return _Front(self, service)

    @contextmanager
    def switched_to(self, services: dict[str, object]) -> Iterator[None]:
        self._services = services
        try:
            yield
        finally:
            self._services = {}
            now = asyncio.get_running_loop().time()
            for call in self._under_way:
                call.reschedule(now)

    @property
    def services(self) -> dict[str, object]:
        """Those of the term that is served now."""
        if not self._services:
            raise self._standing_by()
        return self._services

    def _standing_by(self) -> UnavailableError:
        if address := self._active_address():
            return UnavailableError(f"this controller stands by: the active one is {address}", standby=address)
        return UnavailableError("this controller stands by, and none is active yet: try again in a moment", standby="")

    @asynccontextmanager
    async def within_term(self, services: dict[str, object]) -> AsyncIterator[None]:
        """As long as ``services`` are the ones that are served; a call of theirs outlives none of them."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                if self._services is not services:
                    raise self._standing_by()
                self._under_way.add(scope)
                try:
                    yield
                finally:
                    self._under_way.discard(scope)
        except StaleTermError as error:
            raise self._standing_by() from error
        except TimeoutError:
            if scope.expired():
                raise self._standing_by() from None
            raise


class _Front:
    def __init__(self, switchboard: Switchboard, service: ServiceDescriptor) -> None:
        for method in methods(service):
            answers_once = method.shape.endswith("_unary")
            make = _once if answers_once else _streaming
            setattr(self, method.python_name, make(switchboard, service.name, method.python_name))


def _once(switchboard: Switchboard, service: str, method: str) -> Any:
    async def call(request: Any) -> Any:
        services = switchboard.services
        async with switchboard.within_term(services):
            return await getattr(services[service], method)(request)

    return call


def _streaming(switchboard: Switchboard, service: str, method: str) -> Any:
    async def call(request: Any) -> AsyncIterator[Any]:
        services = switchboard.services
        async with aclosing(getattr(services[service], method)(request)) as responses:
            while True:
                # Around each step only: between two of them the caller's own code runs, and the term may end.
                async with switchboard.within_term(services):
                    response = await anext(responses, _END)
                if response is _END:
                    return
                yield response

    return call
