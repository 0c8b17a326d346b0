"""Readings by NVML, the library of the driver. Without it, without a driver or without GPUs: no readings."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sdrs_scheduler.health.probe import GpuReading, Xid

T = TypeVar("T")

# A driver may be loaded later; until then each try opens libraries in vain.
_RETRY_SECONDS = 60.0
_MAX_XIDS = 32
_MAX_EVENTS_PER_READ = 256
_BRANDS = {"nvidia", "tesla", "geforce", "quadro", "titan", "graphics"}
_FAMILIES = {"rtx", "gtx"}


@dataclass
class _Gpu:
    index: int
    # NVML's, opaque.
    handle: Any
    gpu_type: str
    slowdown_celsius: int | None
    xids: list[Xid] = field(default_factory=list)


class NvmlProbe:
    def __init__(self, nvml: Any = None, clock: Callable[[], float] = time.time) -> None:
        """``nvml`` is the module pynvml, or one that looks like it."""
        self._nvml = nvml if nvml is not None else _import_nvml()
        self._clock = clock
        self._gpus: list[_Gpu] | None = None
        self._events: Any = None
        self._next_try_unix = 0.0

    def read(self) -> Sequence[GpuReading]:
        if self._gpus is None and not self._open():
            return []
        self._take_events()
        return [self._read_one(gpu) for gpu in self._gpus or ()]

    def close(self) -> None:
        if self._gpus is None:
            return
        self._gpus = None
        if self._events is not None:
            self._attempt(lambda: self._nvml.nvmlEventSetFree(self._events), None)
            self._events = None
        self._attempt(self._nvml.nvmlShutdown, None)

    def _open(self) -> bool:
        if self._nvml is None or self._clock() < self._next_try_unix:
            return False
        nvml = self._nvml
        self._next_try_unix = self._clock() + _RETRY_SECONDS
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return False
        count = self._attempt(nvml.nvmlDeviceGetCount, 0)
        if not count:
            self._attempt(nvml.nvmlShutdown, None)
            return False
        self._events = self._attempt(nvml.nvmlEventSetCreate, None)
        self._gpus = [self._open_one(index) for index in range(count)]
        return True

    def _open_one(self, index: int) -> _Gpu:
        nvml = self._nvml
        # A GPU that is lost before we come has no handle: its place stays, so that indexes of the others are right.
        handle = self._attempt(lambda: nvml.nvmlDeviceGetHandleByIndex(index), None)
        if handle is None:
            return _Gpu(index, None, "", None)
        name = self._attempt(lambda: nvml.nvmlDeviceGetName(handle), "")
        slowdown = self._attempt(
            lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN), None
        )
        if self._events is not None:
            # GPUs for games and virtual ones know no events; then their Xids stay unknown.
            self._attempt(
                lambda: nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events), None
            )
        # Older bindings tell names as bytes.
        return _Gpu(index, handle, gpu_type(name.decode() if isinstance(name, bytes) else name), slowdown)

    def _take_events(self) -> None:
        if self._events is None or self._gpus is None:
            return
        for _ in range(_MAX_EVENTS_PER_READ):
            try:
                event = self._nvml.nvmlEventSetWait(self._events, 0)
                index = self._nvml.nvmlDeviceGetIndex(event.device)
            except self._nvml.NVMLError:
                return  # a timeout: there are no more. Or the GPU is lost, which its reading tells.
            if event.eventType & self._nvml.nvmlEventTypeXidCriticalError and index < len(self._gpus):
                xids = self._gpus[index].xids
                xids.append(Xid(int(event.eventData), int(self._clock() * 1000)))
                del xids[:-_MAX_XIDS]

    def _read_one(self, gpu: _Gpu) -> GpuReading:
        nvml = self._nvml
        known = GpuReading(gpu.index, gpu_type=gpu.gpu_type, xids=tuple(gpu.xids))
        if gpu.handle is None:
            return replace(known, is_lost=True)
        try:
            temperature = nvml.nvmlDeviceGetTemperature(gpu.handle, nvml.NVML_TEMPERATURE_GPU)
        except nvml.NVMLError_GpuIsLost:
            return replace(known, is_lost=True)
        except nvml.NVMLError:
            temperature = None
        ecc = self._attempt(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                gpu.handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
            0,  # most without ECC memory
        )
        utilization = self._attempt(lambda: nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100, None)
        return replace(
            known,
            ecc_uncorrected=ecc,
            temperature_celsius=temperature,
            slowdown_celsius=gpu.slowdown_celsius,
            utilization=utilization,
        )

    def _attempt(self, call: Callable[[], T], otherwise: T) -> T:
        """Not every GPU can tell everything."""
        try:
            return call()
        except self._nvml.NVMLError:
            return otherwise


def gpu_type(name: str) -> str:
    """As people and Slurm write it: "NVIDIA A100-SXM4-80GB" is an a100, "NVIDIA GeForce RTX 4090" an rtx-4090."""
    words = [word for word in re.split(r"[\s-]+", name.lower()) if word and word not in _BRANDS]
    return "-".join(words[: 2 if words[:1] and words[0] in _FAMILIES else 1])


def _import_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
