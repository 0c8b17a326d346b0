"""Staging with the daemon of this host: a save is copied into memory that the daemon owns, sealed, and on its way.

Who finds no such daemon, or no room, streams instead: the same save, with a longer stall. That is said once.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from sdrs.rpc.control import Control
from sdrs.save.mapped_segment import Copier, MappedSegment, layout
from sdrs.save.order import SaveOrder
from sdrs.save.payload import Payload
from sdrs.save.stage_session import SilentDaemonError, StageSession, Ticket
from sdrs_core.cluster import Node
from sdrs_core.errors import FullError, SdrsError, UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto.convert import attempt_to, kind_to, level_to, node_from
from sdrs_proto.dial import is_local
from sdrs_proto.v1.control_pb2 import BeginSaveRequest, ListNodesRequest
from sdrs_proto.v1.staging_pb2 import StagedBlob, StagedShard

# How often it is looked whether a node came to this host, or its daemon back.
LOOK_SECONDS = 30.0
# How long a frozen daemon is left alone.
PAUSE_SECONDS = 10.0

log = logging.getLogger("sdrs")


class BusyError(Exception):
    """No room now, and there will be when an earlier save of this process is in."""


class LocalStage:
    """Belongs to one process."""

    def __init__(
        self,
        control: Control,
        *,
        limit_bytes: int | None,
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limit_bytes``: what this process takes at most; None: what the daemon gives."""
        self._control = control
        self._limit_bytes = limit_bytes
        self._patience_ms = int(1000 * patience_seconds)
        self._clock = clock
        self._copier = Copier()
        self._changed = threading.Condition()
        self._session: StageSession | None = None
        self._idle: list[MappedSegment] = []  # last used last: it is the warmest
        self._busy: set[MappedSegment] = set()
        self._nodes: list[Node] = []
        self._looked: float | None = None
        self._told: set[str] = set()
        # A daemon that accepts and then says nothing is not asked again before.
        self._pause_until = 0.0

    # Room

    def take(self, payload: Payload, rank: int, *, may_wait: bool) -> MappedSegment | None:
        """Room for all of it, to be filled and sealed, or given back. None: it is to be streamed.

        BusyError, unless it may wait, if there will be room.
        """
        _, size_bytes = layout([blob.size_bytes for blob in payload.blobs])
        if self._limit_bytes is not None and size_bytes > self._limit_bytes:
            return None
        while True:
            session = self._open_session(rank)
            if session is None:
                return None
            found, too_small = self._take_idle(size_bytes)
            if found is not None:
                return found
            try:
                for segment in too_small:
                    session.free(segment)
                return self._reserve(session, size_bytes)
            except FullError as error:
                if not self._will_have_room(size_bytes):
                    self._tell_once("room", f"the daemon of this host has no room for this save ({error})")
                    return None
            except SdrsError as error:
                self._tell_once("gone", f"the daemon of this host does not stage ({error})")
                return None
            if not may_wait:
                raise BusyError
            self._await_room(session)

    def _take_idle(self, size_bytes: int) -> tuple[MappedSegment | None, list[MappedSegment]]:
        """One that is warm and large enough; else those to be given back first."""
        with self._changed:
            fitting = [segment for segment in self._idle if segment.size_bytes >= size_bytes]
            if fitting:
                chosen = min(reversed(fitting), key=lambda segment: segment.size_bytes)
                self._idle.remove(chosen)
                self._busy.add(chosen)
                return chosen, []
            too_small, self._idle = self._idle, []
            return None, too_small

    def _reserve(self, session: StageSession, size_bytes: int) -> MappedSegment:
        with self._changed:
            held_bytes = sum(segment.size_bytes for segment in (*self._busy, *self._idle))
        if self._limit_bytes is not None and held_bytes + size_bytes > self._limit_bytes:
            raise FullError(f"this process stages at most {self._limit_bytes} bytes")
        segment = session.reserve(size_bytes)
        with self._changed:
            self._busy.add(segment)
        return segment

    def _will_have_room(self, size_bytes: int) -> bool:
        with self._changed:
            return any(segment.size_bytes >= size_bytes for segment in (*self._busy, *self._idle))

    def _await_room(self, session: StageSession) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._idle or session.is_over, LOOK_SECONDS)

    def give_back(self, segment: MappedSegment) -> None:
        """Of this process again: not sealed, or in. One of a daemon that is gone is gone with it."""
        with self._changed:
            if segment in self._busy:
                self._busy.discard(segment)
                self._idle.append(segment)
            self._changed.notify_all()

    # Sealing and following

    def fill(self, segment: MappedSegment, order: SaveOrder, payload: Payload) -> StagedShard:
        """Copy all of it; what is to be sealed then."""
        sizes_bytes = [blob.size_bytes for blob in payload.blobs]
        offsets, _ = layout(sizes_bytes)
        self._copier.copy(payload, offsets, segment)
        return StagedShard(
            id=random_id(),
            segment_id=segment.id,
            order=BeginSaveRequest(
                job=order.job,
                step=order.step,
                rank=order.rank,
                world_size=order.world_size,
                attempt=attempt_to(order.attempt),
                pool=order.pool,
                level=level_to(order.level),
                kind=kind_to(order.kind),
                host=socket.gethostname(),
            ),
            blobs=[
                StagedBlob(offset=offset, size_bytes=size) for offset, size in zip(offsets, sizes_bytes, strict=True)
            ],
            patience_ms=self._patience_ms,
            compression=order.compression,
        )

    def seal(self, shard: StagedShard, segment: MappedSegment) -> Ticket | None:
        """None: the daemon is gone, or does not take it; nothing is lost, the state is still the caller's."""
        session = self._session
        if session is None:
            return None
        try:
            return session.seal(shard, segment)
        except SdrsError as error:
            self._tell_once("seal", f"the daemon of this host did not take the save ({error})")
            return None

    def rejoin(self, ticket: Ticket) -> bool:
        """Whether the daemon is there again; NotFoundError if it does not know the shard any more."""
        session = self._open_session(0, look=False)
        if session is None:
            return False
        try:
            session.follow(ticket)
        except UnavailableError:
            return False
        return True

    def lose(self, ticket: Ticket) -> None:
        """A daemon that is frozen is left as one that is gone: what is not answered would stop the training too."""
        session = self._session
        if session is not None and session.holds(ticket):
            session.close()
            self._pause_until = self._clock() + PAUSE_SECONDS

    def cancel(self, ticket: Ticket) -> None:
        session = self._session
        if session is not None:
            session.cancel(ticket)

    def done(self, ticket: Ticket) -> None:
        session = self._session
        if session is not None:
            session.forget(ticket)
        self.give_back(ticket.segment)

    # The daemon

    def _open_session(self, rank: int, *, look: bool = True) -> StageSession | None:
        with self._changed:
            if self._session is not None and not self._session.is_over:
                return self._session
            # Its segments went with it; those that are still being filled are told when they are sealed.
            self._session = None
            self._idle.clear()
            self._busy.clear()
        if self._clock() < self._pause_until:
            return None
        why = "no node of the cluster runs here"
        for node in self.nodes(rank, look=look):
            try:
                session = StageSession(node.endpoints.unix)
            except SilentDaemonError as error:
                self._pause_until = self._clock() + PAUSE_SECONDS
                why = f"node {node.id}: {error}"
                continue
            except SdrsError as error:
                why = f"node {node.id}: {error}"
                continue
            with self._changed:
                if self._session is None or self._session.is_over:
                    self._session = session
                    return session
                ours = self._session
            session.close()  # another thread was first
            return ours
        if look:
            self._tell_once("none", f"no daemon on this host stages saves of this process ({why})")
        return None

    def nodes(self, rank: int, *, look: bool = True) -> list[Node]:
        """Those of this host, first the one that stages this rank; none if this process takes nothing of theirs."""
        if self._limit_bytes == 0:
            return []
        now = self._clock()
        if look and (self._looked is None or now - self._looked >= LOOK_SECONDS):
            self._looked = now
            request = ListNodesRequest(host=socket.gethostname())
            try:
                answer = self._control.call("list_nodes", request, patience_seconds=0.0)
                self._nodes = sorted(map(node_from, answer.nodes), key=lambda node: node.id)
            except SdrsError as error:
                log.debug("the nodes of this host are not known: %s", error)
        local = [node for node in self._nodes if is_local(node)]
        # Several nodes of one host share its ranks.
        start = rank % len(local) if local else 0
        return local[start:] + local[:start]

    def _tell_once(self, what: str, message: str) -> None:
        with self._changed:
            is_new = what not in self._told
            self._told.add(what)
        if is_new:
            level = logging.INFO if what == "none" and not self._nodes else logging.WARNING
            log.log(level, "%s: saves are streamed, and return later", message)

    def close(self) -> None:
        with self._changed:
            session, self._session = self._session, None
            self._idle.clear()
            self._busy.clear()
        if session is not None:
            session.close()
        self._copier.close()
