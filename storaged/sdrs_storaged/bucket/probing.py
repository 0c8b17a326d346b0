"""Whether a target can be used from this machine, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sdrs_core.backup.targets import Target


@dataclass(frozen=True, slots=True)
class Step:
    """``detail``: what went wrong and the permission or setting that it needs, or what was found."""

    name: str
    ok: bool
    detail: str = ""


def probe(target: Target) -> Iterator[Step]:
    """open, owner, write, read, read-range, list, multipart, overwrite-if-none, delete; each as it is done.

    Touches nothing but ``probe/RANDOM`` under the prefix, and cleans that up. After the first that fails, those that
    need it are left out.
    """
    raise NotImplementedError
