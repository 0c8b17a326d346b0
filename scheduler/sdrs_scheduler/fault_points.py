"""Named places where a test can make the scheduler die or stand still.

``SDRS_SCHEDULER_FAULT_POINTS="job.starting.recorded=kill"`` in its environment arms one; ``=stop`` freezes the process
right there, ``=kill@3`` fires at the third visit. Without the variable a point costs one look into an empty dict.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_visits: Counter[str] = Counter()


def _parse(text: str) -> dict[str, str]:
    pairs = (entry.strip().partition("=") for entry in text.split(",") if entry.strip())
    return {name: action for name, _, action in pairs}


_armed = _parse(os.environ.get("SDRS_SCHEDULER_FAULT_POINTS", ""))


def reach(name: str) -> None:
    """Pass the point ``name``: nothing happens unless a test armed it."""
    action = _armed.get(name)
    if action is None:
        return
    what, _, visit = action.partition("@")
    _visits[name] += 1
    if not visit or _visits[name] == int(visit):
        os.kill(os.getpid(), _SIGNALS[what])
