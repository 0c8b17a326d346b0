"""The failure policies' patterns, looked for in a log by a process of its own.

A pattern like ``(a+)+b`` may take longer than anybody lives, and holds the interpreter all the time: whoever searches
has to be one that can be killed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# For all patterns of a job together; a sane one needs milliseconds for the tail of a log.
SEARCH_SECONDS = 8.0
_MAX_FOUND_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class LogSearch:
    """``found``: what each pattern that was found matches first. ``failed``: why one could not be looked for."""

    found: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def search_log(patterns: Sequence[str], text: str, seconds: float = SEARCH_SECONDS) -> LogSearch:
    """In the order of ``patterns``; what comes after one that takes too long is looked for in half of what is left."""
    found: dict[str, str] = {}
    failed: dict[str, str] = {}
    left = [pattern for pattern in dict.fromkeys(patterns) if pattern]
    while left:
        seconds /= 2
        for pattern, match, problem in _answers(left, text, seconds):
            left.remove(pattern)
            if problem:
                failed[pattern] = problem
            elif match is not None:
                found[pattern] = match
        if left:
            failed[left.pop(0)] = f"it was not done after {seconds:.2g} s"
    return LogSearch(found, failed)


def _answers(patterns: Sequence[str], text: str, seconds: float) -> list[tuple[str, str | None, str]]:
    """Pattern, match, problem: of as many patterns as it has time for."""
    request = json.dumps({"patterns": patterns, "text": text}).encode()
    try:
        said = subprocess.run(
            [sys.executable, "-I", __file__],
            input=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
    whole_lines = said[: said.rfind(b"\n") + 1].splitlines()
    return [tuple(json.loads(line)) for line in whole_lines]


def _search() -> None:
    """The process: a line for each pattern, as soon as it is known."""
    asked = json.load(sys.stdin)
    for pattern in asked["patterns"]:
        match, problem = None, ""
        try:
            found = re.search(pattern, asked["text"])
            match = found[0][:_MAX_FOUND_CHARACTERS] if found else None
        except (re.error, RecursionError, OverflowError, MemoryError) as error:
            problem = f"it is no regular expression ({error})"
        sys.stdout.write(json.dumps([pattern, match, problem]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _search()
