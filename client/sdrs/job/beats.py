"""The thread that beats: it posts what this rank does, and reads what the others and the scheduler want.

It never disturbs the training. While no controller answers nothing is told and nothing is heard; that is logged once. A
process that is stopped does not beat, which is how others notice; one whose main thread hangs does, and its step stands
still.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sdrs.job.environment import JobFacts
from sdrs.job.gpus import Utilization
from sdrs.job.notes import beat_to, orders_from, proposal_from, proposal_to, votes_from
from sdrs.job.rank import Rank

if TYPE_CHECKING:
    from sdrs.records import Records

# An interpreter that ends waits so long for the last beat.
LAST_BEAT_SECONDS = 2.0

log = logging.getLogger("sdrs")


class Beats:
    def __init__(self, facts: JobFacts, rank: Rank, records: Callable[[], Records]) -> None:
        self._facts = facts
        self._rank = rank
        self._records = records
        self._utilization = Utilization()
        self._is_over = False
        self._is_heard = False
        self._is_silence_logged = False
        run = f"{facts.id}/{facts.attempt}"
        self._others, self._orders, self._save_at = f"beat/{run}/", f"orders/{run}", f"save_at/{run}"
        self._own = f"{self._others}{facts.rank}"
        # A daemon: a training that ends does not wait for it.
        self._thread = threading.Thread(target=self._run, name="sdrs-beats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, event: str) -> None:
        """The last beat says ``event``."""
        self._rank.end(event)
        self._is_over = True
        self._rank.wakes.put(None)
        self._thread.join(LAST_BEAT_SECONDS)

    def _run(self) -> None:
        while not self._is_over:
            self._beat()
            self._pause()
        if self._is_heard:
            self._beat()

    def _pause(self) -> None:
        try:
            self._rank.wakes.get(timeout=self._rank.pause_seconds())
            while True:
                self._rank.wakes.get_nowait()
        except queue.Empty:
            pass

    def _beat(self) -> None:
        try:
            self._exchange(self._records())
            self._is_heard = True
        except Exception as error:  # whatever it is, the training goes on without it
            self._is_heard = False
            if not self._is_silence_logged:
                self._is_silence_logged = True
                log.warning("job %s is not heard by its scheduler for now, and goes on: %s", self._facts.id, error)

    def _exchange(self, records: Records) -> None:
        if self._facts.rank == 0:
            self._lead(records)
        else:
            self._follow(records)

    def _lead(self, records: Records) -> None:
        orders = records.post(self._own, self._value(), answer=self._orders)
        if orders:
            self._rank.hear_orders(orders_from(orders.value))
        if self._facts.world_size == 1 or self._is_over:
            return
        proposal = self._rank.hear_beats([votes_from(note.value) for note in records.notes(self._others)])
        if proposal:
            records.post(self._save_at, proposal_to(proposal))
            self._rank.told(proposal)

    def _follow(self, records: Records) -> None:
        note = records.post(self._own, self._value(), answer=self._save_at)
        proposal = proposal_from(note.value) if note else None
        if proposal and self._rank.hear_proposal(proposal):
            records.post(self._own, self._value())  # rank 0 waits for it

    def _value(self) -> bytes:
        return beat_to(self._rank.beat(self._utilization.read()))
