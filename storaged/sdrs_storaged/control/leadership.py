"""One controller leads, the others stand by: campaign, lead while the term lasts, campaign again.

Nothing here decides what is safe: whatever a leader writes compares its term (I2, I3), so a controller that believes in
a term that is over only fails. This loop sees to it that it stops believing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing

from sdrs_core.errors import DeadlineExceededError, FullError, SdrsError, StaleTermError, UnavailableError
from sdrs_storaged.control.meta import election
from sdrs_storaged.control.meta.store import MetaStore, Term
from sdrs_storaged.logs import get_log

log = get_log("leadership")

# The store is out of reach or full, or another one leads: it passes. Anything else ends the daemon, and says why.
_PASSING = (UnavailableError, DeadlineExceededError, FullError, StaleTermError)
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0

# Leads for one term: it returns by being cancelled only, or raises.
Lead = Callable[[Term], Awaitable[None]]


class Leadership:
    def __init__(self, store: MetaStore, candidate: str, lead: Lead) -> None:
        """``candidate`` begins with the address of this controller: those who stand by tell it."""
        self._store = store
        self._candidate = candidate
        self._lead = lead
        self._leader: Term | None = None
        self._old: Term | None = None
        # This controller leads, or knows who does, or that it cannot know now.
        self.settled = asyncio.Event()

    @property
    def active_address(self) -> str:
        """Of whoever leads, as last heard; empty if nobody does."""
        return self._leader.candidate.partition(" ")[0] if self._leader else ""

    async def run(self) -> None:
        """For good. Cancelled, it resigns, so that the next one takes over at once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_leaders())
            pauses = _pauses()
            while True:
                try:
                    # One that could not be given up stands in the way of all, ourselves included.
                    await self._give_up_old()
                    term = await self._store.campaign(self._candidate)
                    pauses = _pauses()
                    await self._serve_term(term)
                except _PASSING as error:
                    log.warning("not_leading", why=error.message)
                    self.settled.set()
                    await asyncio.sleep(next(pauses))

    async def _serve_term(self, term: Term) -> None:
        log.info("term_won", term=term.number)
        leading = asyncio.ensure_future(self._lead(term))
        losing = asyncio.ensure_future(self._until_lost(term))
        try:
            await asyncio.wait({leading, losing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leading, losing):
                task.cancel()
            await asyncio.wait({leading, losing})
            log.info("term_over", term=term.number)
            await self._resign(term)
        for task in (leading, losing):
            if not task.cancelled():
                task.result()

    async def _until_lost(self, term: Term) -> None:
        while True:
            try:
                return await self._store.lost(term)
            except UnavailableError:
                # Nobody is demoted because the store is out of reach.
                await asyncio.sleep(_MAX_PAUSE_SECONDS)

    async def _resign(self, term: Term) -> None:
        self._old = term
        try:
            await self._give_up_old()
        except SdrsError as error:
            log.warning("not_resigned", term=term.number, why=error.message)

    async def _give_up_old(self) -> None:
        if self._old:
            await self._store.resign(self._old)
            self._old = None

    async def _follow_leaders(self) -> None:
        while True:
            try:
                async with aclosing(election.leaders(self._store)) as leaders:
                    async for self._leader in leaders:
                        if self._leader and self._leader.candidate != self._candidate:
                            self.settled.set()
            except _PASSING as error:
                log.debug("leader_not_known", why=error.message)
                self._leader = None
                await asyncio.sleep(_MAX_PAUSE_SECONDS)


def _pauses() -> Iterator[float]:
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        yield pause_seconds
        pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)
