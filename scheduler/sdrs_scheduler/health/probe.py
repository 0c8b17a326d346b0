"""Readings of GPUs, by NVML or from a file that stands in for it where there is no GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sdrs_core.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported; NVIDIA numbers them."""

    number: int
    unix_ms: int


@dataclass(frozen=True, slots=True)
class GpuReading:
    index: int
    # Empty: this machine. Stand-in nodes are named.
    node: str = ""
    # Short and in lower case: h100.
    gpu_type: str = ""
    is_lost: bool = False
    # Those of late, oldest first.
    xids: tuple[Xid, ...] = ()
    # Since the driver was loaded, or the GPU reset.
    ecc_uncorrected: int = 0
    temperature_celsius: int | None = None
    # From here on it slows down to save itself.
    slowdown_celsius: int | None = None
    # 0 to 1.
    utilization: float | None = None


class Probe(Protocol):
    def read(self) -> Sequence[GpuReading]:
        """All GPUs as they are now; none where there are none. Returns soon. UnavailableError: nothing is known."""


class ScriptedProbe:
    """Reads a JSON list of readings from a file; no file: no GPU has anything.

    ``[{"node": "n1", "index": 0, "xids": [79]}]``: fields are those of GpuReading, all but ``index`` optional. Xids are
    numbers, of the time at which the file was written, or ``{"number": 79, "unix_ms": ...}``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Sequence[GpuReading]:
        try:
            written_ms = self._path.stat().st_mtime_ns // 1_000_000
            entries = json.loads(self._path.read_bytes())
            return [_reading_from(entry, written_ms) for entry in entries]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnavailableError(
                f"{self._path} is no list of GPU readings ({error}): mend it, or remove it"
            ) from error


def _reading_from(entry: Mapping[str, Any], written_ms: int) -> GpuReading:
    fields = dict(entry)
    xids = (
        Xid(xid, written_ms) if isinstance(xid, int) else Xid(xid["number"], xid["unix_ms"])
        for xid in fields.pop("xids", ())
    )
    return GpuReading(**fields, xids=tuple(xids))
