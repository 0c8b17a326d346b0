"""Answers that may be the past are told apart from those that are the truth (P17)."""

from __future__ import annotations

import warnings

from sdrs.errors import StaleCatalogWarning


def warn_if_stale(is_stale: bool, job: str) -> None:
    if is_stale:
        text = (
            f'the controller cannot reach its metadata store: of job "{job}" it tells what it knew last, and newer '
            "checkpoints may exist"
        )
        warnings.warn(StaleCatalogWarning(text), stacklevel=4)
