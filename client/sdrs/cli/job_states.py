"""How many jobs a scheduler has, and in which states: all that is read of its records here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from sdrs_core.errors import UnsupportedError

if TYPE_CHECKING:
    from sdrs import Cluster

_JOBS = "schedule/job/"
# `status -w` asks twice a second.
MAX_COUNTED = 1000
# In the order in which people look for them; others come after.
_ORDER = ("failed", "running", "checkpointing", "starting", "scheduled", "preempted", "queued", "submitted", "held")
_UNREADABLE = "unreadable"


def job_states(cluster: Cluster) -> dict[str, int]:
    """Of up to ``MAX_COUNTED`` jobs; empty: there is none, or the controller knows nothing of schedulers."""
    try:
        values = [record.value for record in islice(cluster.records.range(_JOBS), MAX_COUNTED)]
    except UnsupportedError:
        return {}
    return dict(sorted(Counter(map(_state_of, values)).items(), key=lambda entry: _place(entry[0])))


def _state_of(value: bytes) -> str:
    """Whatever else is in it is the scheduler's business."""
    try:
        state = json.loads(value)["state"]
    except (ValueError, KeyError, TypeError):
        return _UNREADABLE
    return state if isinstance(state, str) and state.isidentifier() else _UNREADABLE


def _place(state: str) -> tuple[int, str]:
    return (_ORDER.index(state) if state in _ORDER else len(_ORDER)), state


def job_words(states: Mapping[str, int]) -> str:
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{words}, and more" if sum(states.values()) >= MAX_COUNTED else words
