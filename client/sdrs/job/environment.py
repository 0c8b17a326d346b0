"""What the scheduler and the launcher say by variables of the environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sdrs_core.errors import InvalidArgumentError

DEFAULT_GRACE_SECONDS = 60.0
_MAX_DIGITS = 18  # fits 64 bits
# By launcher, the most specific one first: mpirun inside of a Slurm job leaves Slurm's own variables as they were.
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("SDRS_NODE_RANK", "SDRS_NODE_COUNT"),
)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One process of one start of a job."""

    id: str
    name: str
    attempt: int
    # From where it goes on; None: from the beginning.
    resume_step: int | None
    grace_seconds: float
    # Whose checkpoints it saves and restores.
    history: str
    pool: str
    level: str
    # Between two saves; 0: nobody wishes any.
    interval_seconds: float
    node: str
    node_rank: int
    rank: int
    world_size: int


def read_environment(environment: Mapping[str, str]) -> JobFacts | None:
    """None outside of a job."""
    job_id = environment.get("SDRS_JOB_ID", "")
    if not job_id:
        return None
    attempt = _whole(environment, "SDRS_ATTEMPT")
    if attempt is None:
        raise InvalidArgumentError(
            f'this is job "{job_id}" by SDRS_JOB_ID, but SDRS_ATTEMPT is not set: start it with `sdrs job submit`, or '
            "set SDRS_ATTEMPT to a number that is higher at each start"
        )
    if _whole(environment, "TORCHELASTIC_RESTART_COUNT"):
        # Its saves would be those of the ranks that failed, and it would go on from where those began.
        raise InvalidArgumentError(
            f'torchrun has started the ranks of job "{job_id}" again by itself: the scheduler does that, so leave '
            "--max-restarts at 0"
        )
    name = environment.get("SDRS_JOB_NAME") or job_id
    rank, world_size = _place(environment)
    return JobFacts(
        id=job_id,
        name=name,
        attempt=attempt,
        resume_step=_whole(environment, "SDRS_RESUME_STEP"),
        grace_seconds=_seconds(environment, "SDRS_GRACE_SECONDS", DEFAULT_GRACE_SECONDS),
        history=environment.get("SDRS_HISTORY") or name,
        pool=environment.get("SDRS_POOL", ""),
        level=environment.get("SDRS_LEVEL", ""),
        interval_seconds=save_interval(environment),
        node=environment.get("SDRS_NODE", ""),
        node_rank=_whole(environment, "SDRS_NODE_RANK") or 0,
        rank=rank,
        world_size=world_size,
    )


def resume_limit(environment: Mapping[str, str], history: str) -> int | None:
    """The step that this job goes on from, if ``history`` is its own; None: the newest there is."""
    facts = read_environment(environment)
    return facts.resume_step if facts and facts.history == history else None


def save_interval(environment: Mapping[str, str]) -> float:
    """SDRS_SAVE_INTERVAL_SECONDS; 0 if it is not set."""
    return _seconds(environment, "SDRS_SAVE_INTERVAL_SECONDS", 0.0)


def launched_world_size(environment: Mapping[str, str]) -> int:
    return _place(environment)[1]


def _place(environment: Mapping[str, str]) -> tuple[int, int]:
    for rank_name, size_name in _RANKS:
        rank = _whole(environment, rank_name)
        if rank is not None:
            return rank, max(rank + 1, _whole(environment, size_name) or 1)
    return 0, 1


def _whole(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidArgumentError(f"{name} is {text[:80]!r}: a whole number is expected, or nothing")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidArgumentError(f"{name} is {text[:80]!r}: a number of seconds is expected, or nothing")
    return seconds
