"""Who is alive, judged from what was heard of each node (P20): facts in, verdicts out. No clock, no socket.

A verdict only affects availability (I8): a node that is judged wrongly is fenced by its group's epoch (I3), and what it
holds still counts. So a killed process may be judged at once; what the rules guard against is judging many wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    heard: Mapping[NodeId, Heard], *, now: float, leading_since: float, suspect_after_seconds: float
) -> dict[NodeId, Liveness]:
    """Each node's liveness. ``leading_since`` is when this controller began to listen, or restarted its timers.

    - a closed port counts at once: DOWN
    - heard within ``suspect_after_seconds``: UP, even if its stream broke a moment ago
    - never heard, while this controller has listened for less than twice as long: UNKNOWN, it may still call
    - silent: DOWN, but only while at least as many nodes are heard as are silent. Otherwise the fault is more likely
      the network's or the controller's own: UNKNOWN, and nobody is demoted
    """
    verdicts: dict[NodeId, Liveness] = {}
    silent: list[NodeId] = []
    for node, facts in heard.items():
        if facts.refused and not facts.linked:
            verdicts[node] = Liveness.DOWN
        elif facts.last_seconds is not None and now - facts.last_seconds <= suspect_after_seconds:
            verdicts[node] = Liveness.UP
        elif facts.last_seconds is None and now - leading_since < 2 * suspect_after_seconds:
            verdicts[node] = Liveness.UNKNOWN
        else:
            silent.append(node)
    heard_count = sum(verdict is Liveness.UP for verdict in verdicts.values())
    is_silence_telling = heard_count >= len(silent)
    verdicts.update(dict.fromkeys(silent, Liveness.DOWN if is_silence_telling else Liveness.UNKNOWN))
    return verdicts


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
