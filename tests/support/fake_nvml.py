"""GPUs that pynvml tells of, where there is none: with its own constants and errors, and functions that read values."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class FakeGpu:
    index: int
    name: str | bytes = "NVIDIA H100 80GB HBM3"
    temperature: int = 40
    slowdown: int | None = 90
    ecc_uncorrected: int | None = 0
    utilization: int | None = 50
    is_lost: bool = False


@dataclass
class FakeNvml:
    """Stands in for the module. Names and numbers of arguments are checked against the real one by a test."""

    gpus: list[FakeGpu] = field(default_factory=list)
    init_error: int | None = None
    events: deque[tuple[int, int]] = field(default_factory=deque)
    registered: list[int] = field(default_factory=list)
    is_open: bool = False

    def __getattr__(self, name: str) -> Any:
        # Constants and errors: the real ones. No function of the real module is reached by accident.
        value = getattr(pynvml, name)
        if callable(value) and not isinstance(value, type):
            raise AttributeError(name)
        return value

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._whole(self.gpus[index])

    def nvmlDeviceGetIndex(self, handle: FakeGpu) -> int:
        return self._whole(handle).index

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str | bytes:
        return self._whole(handle).name

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._whole(handle).temperature

    def nvmlDeviceGetTemperatureThreshold(self, handle: FakeGpu, threshold: int) -> int:
        assert threshold == pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return _supported(self._whole(handle).slowdown)

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeGpu, errorType: int, counterType: int) -> int:
        assert (errorType, counterType) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return _supported(self._whole(handle).ecc_uncorrected)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=_supported(self._whole(handle).utilization), memory=0)

    def nvmlEventSetCreate(self) -> object:
        return self.events

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, eventTypes: int, eventSet: object) -> None:
        assert eventTypes == pynvml.nvmlEventTypeXidCriticalError
        self.registered.append(self._whole(handle).index)

    def nvmlEventSetWait(self, eventSet: object, timeoutms: int) -> SimpleNamespace:
        assert timeoutms == 0
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        index, xid = self.events.popleft()
        return SimpleNamespace(device=self.gpus[index], eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=xid)

    def nvmlEventSetFree(self, eventSet: object) -> None:
        pass

    def _whole(self, gpu: FakeGpu) -> FakeGpu:
        if not self.is_open:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if gpu.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return gpu


def _supported(value: int | None) -> int:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value
