"""What readings of GPUs mean: which GPUs get no work, and in which words. No clock in here.

The Xids and what they call for are NVIDIA's: docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from sdrs_scheduler.health.probe import GpuReading, Xid


class Fault(Enum):
    HARDWARE = auto()  # until somebody resets or replaces it
    CONTAINED = auto()  # it cost the run, the GPU goes on
    PROGRAM = auto()  # the run's own doing, as a rule
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """For how long an Xid is held against a GPU."""

    hardware_seconds: float = 86_400.0
    # Long enough for whoever asks why a run has ended.
    contained_seconds: float = 300.0


_HARDWARE = {
    48: "an uncorrectable ECC error",
    62: "its microcontroller halted",
    64: "it could not retire bad memory",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    95: "an ECC error that spread",
    110: "a security fault",
    119: "its GSP does not answer",
    120: "a GSP error",
    121: "a C2C link error",
    140: "an unrecovered ECC error",
    143: "it could not be initialized",
}
_CONTAINED = {92: "too many correctable ECC errors", 94: "a contained ECC error"}
_PROGRAM = {
    13: "a graphics engine exception",
    31: "a memory page fault",
    43: "it stopped a program",
    45: "programs were cleaned up after an earlier error",
    69: "a graphics engine class error",
}


def fault_of(xid: int) -> Fault:
    if xid in _HARDWARE:
        return Fault.HARDWARE
    if xid in _CONTAINED:
        return Fault.CONTAINED
    return Fault.PROGRAM if xid in _PROGRAM else Fault.UNKNOWN


def describe_xid(xid: int) -> str:
    meaning = _HARDWARE.get(xid) or _CONTAINED.get(xid) or _PROGRAM.get(xid) or "NVIDIA's list of Xids tells more"
    return f"Xid {xid}: {meaning}"


def bad_gpus(
    readings: Sequence[GpuReading], now_unix_ms: int, tolerance: Tolerance | None = None
) -> Mapping[str, Mapping[int, str]]:
    """By node and index, those that get no work, each with a sentence."""
    found: dict[str, dict[int, str]] = {}
    for reading in readings:
        problem = problem_of(reading, now_unix_ms, tolerance or Tolerance())
        if problem:
            found.setdefault(reading.node, {})[reading.index] = problem
    return found


def problem_of(reading: GpuReading, now_unix_ms: int, tolerance: Tolerance) -> str:
    """Empty: none. The worst is told first, since the rest follows from it."""
    if reading.is_lost:
        return "it has fallen off the bus: reset it, or restart the machine"
    held = [xid for xid in reading.xids if _is_held(xid, now_unix_ms, tolerance)]
    for fault, what_to_do in ((Fault.HARDWARE, "reset it, then restart the scheduler"), (Fault.CONTAINED, "")):
        of_kind = [xid.number for xid in held if fault_of(xid.number) is fault]
        if of_kind:
            return describe_xid(of_kind[-1]) + (f"; {what_to_do}" if what_to_do else "")
    if reading.ecc_uncorrected:
        return f"{reading.ecc_uncorrected} uncorrectable ECC errors since its last reset: reset it"
    temperature, limit = reading.temperature_celsius, reading.slowdown_celsius
    if temperature is not None and limit is not None and temperature >= limit:
        return f"{temperature} °C, and it slows down from {limit} °C on: look at its cooling"
    return ""


def _is_held(xid: Xid, now_unix_ms: int, tolerance: Tolerance) -> bool:
    seconds = {Fault.HARDWARE: tolerance.hardware_seconds, Fault.CONTAINED: tolerance.contained_seconds}
    return now_unix_ms - xid.unix_ms < seconds.get(fault_of(xid.number), 0.0) * 1000
