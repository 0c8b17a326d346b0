"""torch's own ways to save, as contenders: torch.save, DCP, and DCP's async_save with a cold and with a warm stager."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.contenders import Contender, Times

State = dict[str, torch.Tensor]
# Shared memory that is kept from save to save. Pinned memory and the rest need a GPU.
_WARM = StagingOptions(
    use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
)

# One process alone is meant, and need not be told so.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


class TorchSave(Contender):
    """torch.save with fsync, torch.load."""

    key = "torch_save"

    def __init__(self, folder: Path, state: State) -> None:
        self._path = folder / "torch.pt"
        self._state = state

    def save(self) -> Times:
        start = time.perf_counter()
        with self._path.open("wb") as file:
            torch.save(self._state, file)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self._path.parent)
        elapsed = time.perf_counter() - start
        return Times(elapsed, elapsed)

    def files(self) -> Iterator[Path]:
        yield self._path

    def restore(self) -> dict[str, Any]:
        return dict(torch.load(self._path))

    def clean_up(self) -> None:
        self._path.unlink()


class DcpSave(Contender):
    """DCP's save to files, which it fsyncs by default, and its load into new tensors."""

    key = "dcp_save"

    def __init__(self, folder: Path, state: State) -> None:
        self._folder = folder / self.key
        self._state = state

    def save(self) -> Times:
        start = time.perf_counter()
        dcp.save(self._state, checkpoint_id=self._folder, no_dist=True)
        elapsed = time.perf_counter() - start
        return Times(elapsed, elapsed)

    def files(self) -> Iterator[Path]:
        yield from (path for path in self._folder.rglob("*") if path.is_file())

    def restore(self) -> dict[str, Any]:
        state = {name: torch.empty_like(tensor) for name, tensor in self._state.items()}
        dcp.load(state, checkpoint_id=self._folder, no_dist=True)
        return state

    def clean_up(self) -> None:
        shutil.rmtree(self._folder)


class DcpAsync(DcpSave):
    """async_save as it comes: it copies into fresh memory, and returns."""

    key = "dcp_async"

    def save(self) -> Times:
        return self._save()

    def _save(self, stager: DefaultStager | None = None) -> Times:
        start = time.perf_counter()
        saving = dcp.async_save(self._state, checkpoint_id=self._folder, no_dist=True, async_stager=stager)
        stall = time.perf_counter() - start
        saving.result()
        return Times(stall, time.perf_counter() - start)


class DcpAsyncWarm(DcpAsync):
    """async_save with a stager that keeps its shared memory; here it has staged the state once before."""

    key = "dcp_async_warm"

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        self._stager: DefaultStager | None = None

    def prepare(self) -> None:
        self._stager = DefaultStager(_WARM)
        self._stager.stage(self._state)

    def save(self) -> Times:
        return self._save(self._stager)

    def clean_up(self) -> None:
        assert self._stager
        self._stager.close()
        self._stager = None
        super().clean_up()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
