"""The cluster's map, followed while somebody sends: whoever sends to a group learns at once that it has moved.

A primary that was killed says so itself, by a broken connection. One that is frozen or cut off says nothing; the
controller notices, and the map is how that reaches those who wait for it. Following is an optimisation: without it
(an older controller, or none in reach) a stalled transfer ends by its own deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sdrs.rpc.control import Control
from sdrs_core.backoff import backoff
from sdrs_core.cluster import Group, describe_move
from sdrs_core.errors import SdrsError, UnsupportedError
from sdrs_core.ids import GroupId, PoolName
from sdrs_proto.convert import group_from
from sdrs_proto.v1.control_pb2 import MapVersion, WatchMapRequest, WatchMapResponse

# Short, because a frozen controller holds the answer back for as long, and then some.
WATCH_WAIT_MS = 5_000
# For how long a controller that has no map is not asked again.
UNSUPPORTED_SECONDS = 60.0
# An answer without news that comes sooner was not held back: asking again at once would not end.
_HELD_BACK_SECONDS = 1.0

Moved = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    group: Group
    moved: Moved


class Maps:
    """Belongs to one process."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._followers: dict[PoolName, MapFollower] = {}

    @contextmanager
    def watching(self, group: Group, moved: Moved) -> Iterator[None]:
        """While inside, ``moved`` is called once, from another thread, if ``group`` is no longer what it was.

        It is told what became of the group, and must not block.
        """
        with self._lock:
            follower = self._followers.setdefault(group.pool, MapFollower(self._control, group.pool))
        watch = follower.add(group, moved)
        try:
            yield
        finally:
            follower.remove(watch)


class MapFollower:
    """The map of one pool. Its thread runs while there are watches, and until its last question is answered."""

    def __init__(self, control: Control, pool: PoolName, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._pool = pool
        self._clock = clock
        self._changed = threading.Condition()
        self._watches: set[_Watch] = set()
        self._is_running = False
        self._unsupported_until: float | None = None
        # What the running thread was told last; nothing is known while none runs.
        self._version = MapVersion()
        self._groups: dict[GroupId, Group] | None = None

    def add(self, group: Group, moved: Moved) -> object:
        watch = _Watch(group, moved)
        with self._changed:
            news = "" if self._groups is None else describe_move(group, self._groups)
            if not news:
                self._watches.add(watch)
                self._start()
        if news:
            moved(news)
        return watch

    def remove(self, watch: object) -> None:
        with self._changed:
            self._watches = {kept for kept in self._watches if kept is not watch}
            self._changed.notify_all()

    def _start(self) -> None:
        is_unsupported = self._unsupported_until is not None and self._clock() < self._unsupported_until
        if self._is_running or is_unsupported:
            return
        self._is_running = True
        try:
            threading.Thread(target=self._follow, name=f"sdrs-map-{self._pool}", daemon=True).start()
        except RuntimeError:  # an interpreter that is shutting down starts no more threads
            self._is_running = False

    def _follow(self) -> None:
        pauses = backoff()
        while self._is_wanted():
            asked = self._clock()
            request = WatchMapRequest(pool=self._pool, known=self._version, wait_ms=WATCH_WAIT_MS)
            try:
                response = self._control.call("watch_map", request, wait_ms=WATCH_WAIT_MS, patience_seconds=0.0)
            except UnsupportedError:
                self._stop_asking()
                return
            except SdrsError:
                self._pause(next(pauses))
                continue
            if self._take(response) or self._clock() - asked >= _HELD_BACK_SECONDS:
                pauses = backoff()
            else:
                self._pause(next(pauses))

    def _is_wanted(self) -> bool:
        with self._changed:
            if not self._watches:
                self._end()
            return self._is_running

    def _stop_asking(self) -> None:
        with self._changed:
            self._unsupported_until = self._clock() + UNSUPPORTED_SECONDS
            self._end()

    def _end(self) -> None:
        self._is_running = False
        self._version = MapVersion()
        self._groups = None

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._watches, seconds)

    def _take(self, response: WatchMapResponse) -> bool:
        """Wake those whose group has moved; whether the map is another than before."""
        with self._changed:
            if self._groups is not None and response.version == self._version:
                return False
            self._version = response.version
            groups = self._groups = {group.id: group for group in map(group_from, response.groups)}
            news = {watch: describe_move(watch.group, groups) for watch in self._watches}
            self._watches = {watch for watch in self._watches if not news[watch]}
        for watch, what in news.items():
            if what:
                watch.moved(what)
        return True
