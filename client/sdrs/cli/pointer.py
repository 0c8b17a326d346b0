"""The note that ``sdrs up`` leaves, so that later commands find the cluster without being told."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pointer:
    url: str
    dir: Path


def pointer_path() -> Path:
    state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state_home) / "sdrs" / "current.json"


def read_pointer() -> Pointer | None:
    try:
        note = json.loads(pointer_path().read_text(encoding="utf-8"))
        return Pointer(str(note["url"]), Path(note["dir"]))
    except (OSError, ValueError, KeyError, TypeError):
        # A convenience, not a truth: a damaged one counts as none, and the next `sdrs up` writes it anew.
        return None


def write_pointer(pointer: Pointer) -> None:
    path = pointer_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"url": pointer.url, "dir": str(pointer.dir)}) + "\n")


def remove_pointer(directory: Path) -> None:
    """Unless a cluster in another folder has taken it over since."""
    pointer = read_pointer()
    if pointer is not None and pointer.dir == directory:
        pointer_path().unlink(missing_ok=True)


def replace_file(path: Path, text: str) -> None:
    """All or nothing for whoever reads it meanwhile."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
