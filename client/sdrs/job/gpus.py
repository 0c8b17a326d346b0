"""How busy the GPU of this process is, where pynvml is installed and finds one."""

from __future__ import annotations

import os
from typing import Any


class Utilization:
    """Never an error: training does not depend on it."""

    def __init__(self) -> None:
        self._gpu: Any = None
        self._is_tried = False
        try:
            import pynvml
        except Exception:  # it is not installed, or warns, or is broken
            pynvml = None
        self._nvml: Any = pynvml

    def read(self) -> float | None:
        """0 to 1, or None if it cannot be told."""
        try:
            if self._nvml and not self._is_tried:
                self._is_tried = True
                self._open()
            return None if self._gpu is None else self._nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu / 100
        except Exception:  # of a driver, in whatever state it is
            self._gpu = None
            return None

    def _open(self) -> None:
        self._nvml.nvmlInit()
        local_rank = int(os.environ.get("LOCAL_RANK") or 0)
        visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        if visible and local_rank >= len(visible):
            return
        name = visible[local_rank] if visible else str(local_rank)
        if name.isdecimal():
            self._gpu = self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            self._gpu = self._nvml.nvmlDeviceGetHandleByUUID(name)
