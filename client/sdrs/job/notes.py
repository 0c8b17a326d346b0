"""The notes between the ranks, the scheduler and the controller, as JSON: small, and read by others than us."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from sdrs.job.agreement import Phase, Proposal, Vote
from sdrs.job.causes import Cause


@dataclass(frozen=True, slots=True)
class Beat:
    """``beat/JOB/ATTEMPT/RANK``: what this rank does right now."""

    step: int | None
    unix_ms: int
    rank: int
    pid: int
    loss: float | None = None
    # The first step whose loss was not a number.
    nan_step: int | None = None
    saving: bool = False
    # Of its GPU, 0 to 1.
    utilization: float | None = None
    # "leaving": it ends by itself, after a warning; "ended": its interpreter shuts down.
    event: str = ""
    # Between the ranks: when this one was warned, and what it says to rank 0's proposal.
    warned_unix_ms: int = 0
    agreed: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """``orders/JOB/ATTEMPT``: what the scheduler wants of the job."""

    save: bool = False
    deadline_unix_ms: int = 0
    # 0: as the environment says.
    interval_seconds: float = 0.0


def beat_to(beat: Beat) -> bytes:
    return json.dumps(asdict(beat), allow_nan=False).encode()


def votes_from(value: bytes) -> tuple[int, int, Vote]:
    """Rank, when it was warned, its vote."""
    found = _object(value)
    vote = Vote(_whole(found, "agreed"), _whole(found, "passed"))
    return _whole(found, "rank", -1), _whole(found, "warned_unix_ms"), vote


def orders_from(value: bytes) -> Orders:
    found = _object(value)
    interval = found.get("interval_seconds")
    return Orders(
        save=found.get("save") is True,
        deadline_unix_ms=_whole(found, "deadline_unix_ms"),
        interval_seconds=float(interval) if isinstance(interval, int | float) and interval > 0 else 0.0,
    )


def proposal_to(proposal: Proposal) -> bytes:
    return json.dumps(asdict(proposal)).encode()


def proposal_from(value: bytes) -> Proposal | None:
    found = _object(value)
    try:
        return Proposal(int(found["number"]), int(found["step"]), Cause(found["cause"]), Phase(found["phase"]))
    except (KeyError, TypeError, ValueError):
        return None


def _object(value: bytes) -> dict[str, Any]:
    """Empty for what is none: a note of another version must not end anything here."""
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _whole(found: dict[str, Any], name: str, default: int = 0) -> int:
    value = found.get(name)
    return value if isinstance(value, int) else default
