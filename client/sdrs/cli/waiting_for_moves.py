"""Waiting, with a bar, until a node or a disk holds nothing any more. Whatever ends the wait, the move goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from sdrs.cli.progress import byte_bar
from sdrs.cli.settings import Settings
from sdrs_core.errors import DeadlineExceededError, SdrsError, UnavailableError

_POLL_SECONDS = 0.5
_REFUSED = 4

# (bytes, blobs) that are left there.
Left = Callable[[], tuple[int, int]]


def wait_until_empty(
    settings: Settings, title: str, left: Left, is_done: Callable[[], bool], *, timeout_seconds: float | None
) -> bool:
    """True once ``is_done``; it is asked when nothing seems to be left. False if the time is over before.

    A controller that is replaced meanwhile is waited for as any call waits: the move is on record.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    total_bytes = 0
    with byte_bar(settings, title) as advance:
        while True:
            try:
                left_bytes, left_count = left()
                total_bytes = max(total_bytes, left_bytes)
                advance(total_bytes - left_bytes, total_bytes)
                if not left_count and is_done():
                    return True
            except (UnavailableError, DeadlineExceededError):
                if deadline is None:
                    raise
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)


def holds(question: Callable[[], object]) -> bool:
    """Whether the cluster says yes; a refusal is a no, and so is "nobody can tell now"."""
    try:
        question()
    except (UnavailableError, DeadlineExceededError):
        raise
    except SdrsError as error:
        if error.exit_code != _REFUSED:
            raise
        return False
    return True
