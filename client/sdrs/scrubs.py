"""Looking at all that a cluster stores: start a scrub, stop it, see how far it is and what it found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sdrs.process import Process
from sdrs_core.ids import random_id
from sdrs_core.scrub import Depth
from sdrs_proto.v1 import control_pb2 as messages

_DEPTHS = {messages.SCRUB_DEPTH_SHALLOW: Depth.SHALLOW, messages.SCRUB_DEPTH_DEEP: Depth.DEEP}
# All checkpoints are counted before it begins.
_START_MS = 30_000
# It ends at the next answer of a node.
_STOP_MS = 10_000


@dataclass(frozen=True, slots=True)
class Scrub:
    """``problems`` are the first ones, in sentences. ``ended_unix_ms`` is 0 while it goes on."""

    id: str
    depth: Depth
    # None: all checkpoints.
    job: str | None
    trigger: str
    started_unix_ms: int
    ended_unix_ms: int
    checked_checkpoints: int
    total_checkpoints: int
    checked_fragments: int
    checked_bytes: int
    bytes_per_second: int
    bad_fragments: int
    missing_fragments: int
    # Of those, the ones that were made again.
    repaired_fragments: int
    # Nobody could look at them: their node is down, say.
    undecided_fragments: int
    # On a node and on no record.
    unknown_fragments: int
    damaged_checkpoints: int
    problems: tuple[str, ...]
    # It was ended before it was through.
    is_stopped: bool = False

    @property
    def is_under_way(self) -> bool:
        return not self.ended_unix_ms


@dataclass(frozen=True, slots=True)
class ScrubState:
    """The scrub that is under way, or else the last one; and when each kind went through all checkpoints, or 0."""

    scrub: Scrub | None
    shallow_done_unix_ms: int
    deep_done_unix_ms: int


class Scrubs(ABC):
    """The part of ``Cluster`` that is about scrubs."""

    @abstractmethod
    def process(self) -> Process:
        """What this process keeps for the cluster."""

    def start_scrub(self, deep: bool = False, job: str | None = None) -> Scrub:
        """Look at all checkpoints, or at one job's: whether everything is there, or (``deep``) every stored byte.

        What is bad is replaced from what is good. One at a time: the same is joined, another one is a ``RefusedError``.
        """
        depth = messages.SCRUB_DEPTH_DEEP if deep else messages.SCRUB_DEPTH_SHALLOW
        request = messages.StartScrubRequest(request_id=random_id(), depth=depth, job=job or "")
        return _scrub_from(self.process().control.call("start_scrub", request, wait_ms=_START_MS).scrub)

    def stop_scrub(self) -> Scrub:
        """End the one under way, else tell of the last: what it found stands, and the next one begins anew.

        It may be under way for a moment more, until a node that is asked has answered.
        """
        request = messages.StopScrubRequest(request_id=random_id())
        return _scrub_from(self.process().control.call("stop_scrub", request, wait_ms=_STOP_MS).scrub)

    def scrub_status(self) -> ScrubState:
        answer = self.process().control.call("get_scrub", messages.GetScrubRequest())
        scrub = _scrub_from(answer.scrub) if answer.HasField("scrub") else None
        return ScrubState(scrub, answer.shallow_done_unix_ms, answer.deep_done_unix_ms)


def _scrub_from(message: messages.ScrubStatus) -> Scrub:
    return Scrub(
        id=message.id,
        depth=_DEPTHS[message.depth],
        job=message.job or None,
        trigger=message.trigger,
        started_unix_ms=message.started_unix_ms,
        ended_unix_ms=message.ended_unix_ms,
        checked_checkpoints=message.checked_checkpoints,
        total_checkpoints=message.total_checkpoints,
        checked_fragments=message.checked_fragments,
        checked_bytes=message.checked_bytes,
        bytes_per_second=message.bytes_per_second,
        bad_fragments=message.bad_fragments,
        missing_fragments=message.missing_fragments,
        repaired_fragments=message.repaired_fragments,
        undecided_fragments=message.undecided_fragments,
        unknown_fragments=message.unknown_fragments,
        damaged_checkpoints=message.damaged_checkpoints,
        problems=tuple(message.problems),
        is_stopped=message.stopped,
    )
