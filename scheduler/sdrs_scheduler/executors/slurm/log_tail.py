"""The ends of several logs as one text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def tail_of(files: Sequence[str], max_bytes: int) -> str:
    """Each has the same share; what short ones leave, the longer ones after them get."""
    sizes = {name: Path(name).stat().st_size for name in files}
    by_size = sorted((name for name in files if sizes[name]), key=lambda name: sizes[name])
    tails: dict[str, bytes] = {}
    left_bytes = max_bytes
    for index, name in enumerate(by_size):
        heading = f"==> {Path(name).stem} <==\n".encode() if len(by_size) > 1 else b""
        share_bytes = left_bytes // (len(by_size) - index)
        body = _tail(name, max(0, share_bytes - len(heading) - 1))
        tails[name] = (heading + body + (b"" if body.endswith(b"\n") else b"\n"))[:share_bytes]
        left_bytes -= len(tails[name])
    # A character that the cut went through counts for less than the limit.
    return b"".join(tails[name] for name in files if name in tails).decode(errors="ignore")


def _tail(name: str, max_bytes: int) -> bytes:
    with open(name, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
        return file.read(max_bytes)
