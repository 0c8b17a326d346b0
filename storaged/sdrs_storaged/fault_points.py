"""Named places where a test can make the process die or an operation fail.

``SDRS_FAULT_POINTS="fragment.renamed=kill,fragment.fsync=EIO"`` in the environment of a daemon arms them; an entry
``name=kill@3`` fires on the third visit only, ``name=ENOSPC@2+`` from the second on; ``name=stop`` freezes the process
right there. Without the variable a point costs one look into an empty dict. If the variable is a path (starts with
``/``), the file is read at each visit instead, so that a test can arm and disarm a running daemon.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter

_setting = os.environ.get("SDRS_FAULT_POINTS", "")
_visits: Counter[str] = Counter()
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def _parse(text: str) -> dict[str, str]:
    pairs = (entry.strip().partition("=") for entry in text.replace("\n", ",").split(",") if entry.strip())
    return {name: action for name, _, action in pairs}


_armed = {} if _setting.startswith("/") else _parse(_setting)


def _read_file() -> dict[str, str]:
    try:
        with open(_setting, encoding="utf-8") as file:
            return _parse(file.read())
    except FileNotFoundError:
        return {}


def reach(name: str) -> None:
    """Pass the point ``name``: nothing happens unless a test armed it."""
    if not _setting:
        return
    action = (_read_file() if _setting.startswith("/") else _armed).get(name)
    if action is None:
        return
    what, _, when = action.partition("@")
    _visits[name] += 1
    if when and not (_visits[name] == int(when.rstrip("+")) or (when.endswith("+") and _visits[name] > int(when[:-1]))):
        return
    if what in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[what])
        return
    raise OSError(getattr(errno, what), f"{os.strerror(getattr(errno, what))} (fault point {name})")
