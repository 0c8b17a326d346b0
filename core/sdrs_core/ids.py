"""Names: what may be one, and how the random ones are made."""

from __future__ import annotations

import re
import secrets
from typing import NewType

from sdrs_core.errors import InvalidArgumentError

ClusterId = NewType("ClusterId", str)
NodeId = NewType("NodeId", str)
DiskId = NewType("DiskId", str)
GroupId = NewType("GroupId", str)
PoolName = NewType("PoolName", str)
JobName = NewType("JobName", str)
SaveId = NewType("SaveId", str)
BlobId = NewType("BlobId", str)

MAX_NAME_CHARS = 128
MAX_STEP = 2**53 - 1  # the largest whole number that JSON readers agree on
MAX_WORLD_SIZE = 100_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_RANDOM = re.compile(r"[0-9a-f]{32}\Z")


def random_id() -> str:
    """128 random bits: never reused, so a wiped or forgotten thing cannot come back under its old name (P2)."""
    return secrets.token_hex(16)


def check_random_id(value: str, what: str) -> str:
    """Ids become file names and keys, so nothing else than hex may pass."""
    if not _RANDOM.match(value):
        raise InvalidArgumentError(f"{what} {value[:80]!r} is not an id: 32 hexadecimal digits are expected")
    return value


def check_name(value: str, what: str) -> str:
    """Names of jobs, pools and nodes; they become keys, file names and parts of URLs."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not _NAME.match(value):
        raise InvalidArgumentError(
            f"{what} {str(value)[:80]!r} is not a valid name: use letters, digits, '.', '_' and '-', "
            f"starting with a letter or digit, at most {MAX_NAME_CHARS} characters"
        )
    return value


def check_step(step: int) -> int:
    if isinstance(step, bool) or not isinstance(step, int):
        raise InvalidArgumentError(f"step {step!r} is not a whole number")
    if not 0 <= step <= MAX_STEP:
        raise InvalidArgumentError(f"step {step} is out of range: it runs from 0 to {MAX_STEP}")
    return step


def check_rank(rank: int, world_size: int) -> None:
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"{name} {value!r} is not a whole number")
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise InvalidArgumentError(f"world_size {world_size} is out of range: it runs from 1 to {MAX_WORLD_SIZE}")
    if not 0 <= rank < world_size:
        raise InvalidArgumentError(
            f"rank {rank} does not exist with world_size {world_size}: ranks run from 0 to {world_size - 1}"
        )
