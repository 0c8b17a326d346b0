"""The name of a folder of local runs, kept in it: two schedulers must not take each other's runs for gone."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from sdrs_core.errors import RefusedError

_FILE = "home"
_ID_BYTES = 4


def home_of(folder: Path) -> str:
    """Given once, by who is there first. It stays when the machine is renamed; machine and path are for people."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (name := _read(folder)):
            _give(folder, f"{socket.gethostname()}:{folder} #{secrets.token_hex(_ID_BYTES)}")
            name = _read(folder)
    except OSError as error:
        raise RefusedError(f"{folder} cannot be used for local runs: {error}: look at its disk and rights") from error
    if not name:
        raise RefusedError(f"{folder / _FILE} is empty: is the disk full? Delete the file and start again")
    return name


def _read(folder: Path) -> str:
    try:
        return (folder / _FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _give(folder: Path, name: str) -> None:
    part = folder / f".{_FILE}.{os.getpid()}"
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename it does not replace what another one gave at the same time.
        os.link(part, folder / _FILE)
    except FileExistsError:
        return
    finally:
        part.unlink(missing_ok=True)
