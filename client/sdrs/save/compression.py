"""Whether saves are stored compressed, as their user asks."""

from __future__ import annotations

import os
from typing import Literal, get_args

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.zstd import check_installed

Compress = Literal["zstd", "none"]
VARIABLE = "SDRS_COMPRESS"


def resolve_compression(given: Compress | None) -> str:
    """What a save's order says: empty for none. Without ``given`` the environment decides."""
    what, method = ("compress", given) if given is not None else (VARIABLE, os.environ.get(VARIABLE) or "none")
    if method not in get_args(Compress):
        raise InvalidArgumentError(f"{what} is {method!r}: choose one of {', '.join(get_args(Compress))}")
    if method == "none":
        return ""
    check_installed(f"{what}={method}")
    return method
