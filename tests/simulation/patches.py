"""What production code takes from the outside by itself, replaced for the length of one run: chance, time, logs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import sdrs_storaged
from sdrs_core import ids

_MODULES: list[ModuleType] = []


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
def patched(random: Random, now: Callable[[], float], log: SimulatedLog) -> Iterator[None]:
    clock = SimpleNamespace(monotonic=now)
    with ExitStack() as stack:
        chance = SimpleNamespace(token_hex=lambda count: random.randbytes(count).hex())
        stack.enter_context(patch.object(ids, "secrets", chance))
        for module in _daemon_modules():
            for name, replacement in (("log", log), ("random", random), ("time", clock)):
                known = getattr(module, name, None)
                if known is not None and (name == "log" or isinstance(known, ModuleType)):
                    stack.enter_context(patch.object(module, name, replacement))
        yield


def _daemon_modules() -> list[ModuleType]:
    if not _MODULES:
        for found in pkgutil.walk_packages(sdrs_storaged.__path__, "sdrs_storaged."):
            if not found.name.endswith("__main__"):
                _MODULES.append(importlib.import_module(found.name))
    return _MODULES
