"""What production code takes from the outside by itself, replaced for the length of one run: chance, time, threads,
logs; and how large or long things are, so that a blob of a few hundred bytes has all the parts of a large one, and a
story of a minute all that would take a cluster an hour.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import sdrs_storaged
from sdrs_core import checksums, ids
from sdrs_core.balance import Balance
from sdrs_storaged.store import buffers

BLOCK_BYTES = 64
_SIZES = {"BLOCK_BYTES": BLOCK_BYTES, "BUFFER_BYTES": buffers.BLOCKS_PER_BUFFER * BLOCK_BYTES}
_WHOLE_SIZES = {"BLOCK_BYTES": checksums.BLOCK_BYTES, "BUFFER_BYTES": buffers.BUFFER_BYTES}
# Of the daemon: how long somebody is waited for, avoided or turned away.
_SECONDS = {
    "_SHUN_SECONDS": 10.0,
    "_FULL_SECONDS": 10.0,
    "_TURNED_AWAY_SECONDS": 8.0,
    "_FIRST_SECONDS": 2.0,
    "_LONGEST_SECONDS": 16.0,
    "_LONG_SECONDS": 12.0,
    "_VERIFY_SECONDS": 12.0,
    "_HEAR_SECONDS": 6.0,
    "_IDLE_PATIENCE_SECONDS": 6.0,
    "_BUSY_PATIENCE_SECONDS": 20.0,
}
_PACKAGES = ("sdrs_core.", "sdrs_storaged.", "sdrs.")

_MODULES: list[ModuleType] = []
_SCALED: list[tuple[ModuleType, str, float]] = []


class SimulatedLog:
    """Stands in for a module's logger: what it says goes into the trace."""

    def __init__(self, say: Callable[[str], None], defect: Callable[[str, BaseException], None]) -> None:
        self._say = say
        self._defect = defect

    def _told(self, event: str, **facts: Any) -> None:
        self._say(f"{event} " + " ".join(f"{name}={value}" for name, value in facts.items()))

    debug = info = warning = _told

    def error(self, event: str, **facts: Any) -> None:
        self._told(event, **facts)
        error = facts.get("exc_info")
        if isinstance(error, BaseException):
            # Where production code survives its own defects, the simulator does not.
            self._defect(event, error)


@contextmanager
def patched(
    random: Random, now: Callable[[], float], log: SimulatedLog, threads: SimpleNamespace, *, balances: bool
) -> Iterator[None]:
    """``balances``: whether differences of bytes, not gigabytes, are worth evening out."""
    clock = SimpleNamespace(monotonic=now)
    chance = SimpleNamespace(token_hex=lambda count: random.randbytes(count).hex())
    stand_ins = {"log": log, "random": random, "time": clock, "threading": threads, "secrets": chance}
    with ExitStack() as stack:
        stack.enter_context(patch.object(ids, "secrets", chance))
        for module in _daemon_modules():
            for name, replacement in stand_ins.items():
                known = getattr(module, name, None)
                if known is not None and (name == "log" or isinstance(known, ModuleType)):
                    stack.enter_context(patch.object(module, name, replacement))
            if balances and getattr(module, "Balance", None) is Balance:
                stack.enter_context(patch.object(module, "Balance", partial(Balance, least_bytes=1)))
        for module, name, value in _scaled():
            stack.enter_context(patch.object(module, name, value))
        yield


def _daemon_modules() -> list[ModuleType]:
    if not _MODULES:
        for found in pkgutil.walk_packages(sdrs_storaged.__path__, "sdrs_storaged."):
            if not found.name.endswith("__main__"):
                _MODULES.append(importlib.import_module(found.name))
    return _MODULES


def _scaled() -> list[tuple[ModuleType, str, float]]:
    """Wherever one of these is known by its name."""
    if not _SCALED:
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith(_PACKAGES):
                for name, size in _SIZES.items():
                    if getattr(module, name, None) == _WHOLE_SIZES[name]:
                        _SCALED.append((module, name, size))
        for name, seconds in _SECONDS.items():
            found = [module for module in _daemon_modules() if hasattr(module, name)]
            assert found, f"{name} is not the daemon's any more"
            _SCALED.extend((module, name, seconds) for module in found)
    return _SCALED
