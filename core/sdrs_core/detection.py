"""Who is alive, judged from what was heard of each node (P20): facts in, verdicts out. No clock, no socket.

A verdict only affects availability (I8): a node that is judged wrongly is fenced by its group's epoch (I3), and what it
holds still counts. So a killed process may be judged at once; what the rules guard against is judging many wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId

# All nodes together send at most so many beats a second: more is a burden for the controller, not a faster verdict.
MAX_BEATS_PER_SECOND = 2000.0
MIN_INTERVAL_SECONDS = 0.05
# So many beats must be missing before silence means anything: one is lost easily.
BEATS_UNTIL_SUSPECT = 4


@dataclass(frozen=True, slots=True)
class Heard:
    """What one controller knows of one node."""

    # When its last beat came, by the controller's own monotonic clock; None: never to this controller.
    last_seconds: float | None
    # Its heartbeat stream is open.
    linked: bool
    # A probe after a broken stream found its port closed: the process is gone.
    refused: bool


def judge(
    heard: Mapping[NodeId, Heard],
    *,
    now: float,
    leading_since: float,
    suspect_after_seconds: float,
    deaf_until: float = -inf,
) -> dict[NodeId, Liveness]:
    """Each node's liveness. ``leading_since`` is when this controller began to listen, or restarted its timers;
    ``deaf_until`` when silence last told nothing.

    - a closed port counts at once: DOWN
    - heard within ``suspect_after_seconds``: UP, even if its stream broke a moment ago
    - never heard, while this controller has listened for less than twice as long: UNKNOWN, it may still call
    - silent: DOWN, but only while silence is telling, and has been for as long as a node may be silent: when a blip
      ends, those who are heard a moment later than the others were no less cut off. Otherwise UNKNOWN, and nobody is
      demoted
    """
    verdicts = {
        node: _verdict(facts, now=now, leading_since=leading_since, suspect_after_seconds=suspect_after_seconds)
        for node, facts in heard.items()
    }
    is_telling = is_silence_telling(
        heard, now=now, leading_since=leading_since, suspect_after_seconds=suspect_after_seconds
    )
    is_judged = is_telling and now - deaf_until >= suspect_after_seconds
    silent = Liveness.DOWN if is_judged else Liveness.UNKNOWN
    return {node: verdict or silent for node, verdict in verdicts.items()}


def is_silence_telling(
    heard: Mapping[NodeId, Heard], *, now: float, leading_since: float, suspect_after_seconds: float
) -> bool:
    """Whether at least as many nodes are heard as are silent; otherwise the fault is more likely the network's or the
    controller's own.

    Only who is up with its beats is heard in this sense: when all fall silent at once, some are found silent first.
    """
    silent_count = fresh_count = 0
    for facts in heard.values():
        verdict = _verdict(facts, now=now, leading_since=leading_since, suspect_after_seconds=suspect_after_seconds)
        silent_count += verdict is None
        if verdict is Liveness.UP and facts.last_seconds is not None:
            fresh_count += now - facts.last_seconds <= suspect_after_seconds / 2
    return fresh_count >= silent_count


def _verdict(facts: Heard, *, now: float, leading_since: float, suspect_after_seconds: float) -> Liveness | None:
    """By itself, without looking at the others; None: it is silent."""
    if facts.refused and not facts.linked:
        return Liveness.DOWN
    if facts.last_seconds is not None and now - facts.last_seconds <= suspect_after_seconds:
        return Liveness.UP
    if facts.last_seconds is None and now - leading_since < 2 * suspect_after_seconds:
        return Liveness.UNKNOWN
    return None


def heartbeat_interval_seconds(node_count: int, suspect_after_seconds: float) -> float:
    """How often each node beats: slower in a large cluster, so that the controller can bear all of them."""
    return max(suspect_after_seconds / BEATS_UNTIL_SUSPECT, node_count / MAX_BEATS_PER_SECOND, MIN_INTERVAL_SECONDS)


def effective_suspect_after(node_count: int, suspect_after_seconds: float) -> float:
    """The patience that goes with the interval: never less than a few beats, whatever was configured."""
    return max(
        suspect_after_seconds, BEATS_UNTIL_SUSPECT * heartbeat_interval_seconds(node_count, suspect_after_seconds)
    )


def is_flapping(downs: Sequence[float], now: float, *, window_seconds: float = 300.0, limit: int = 3) -> bool:
    """Whether a node went down too often of late; after a quiet window it is like any other again.

    ``downs`` are the moments at which it was found down; older ones than a window may be forgotten by the caller.
    """
    return sum(now - down <= window_seconds for down in downs) >= limit
