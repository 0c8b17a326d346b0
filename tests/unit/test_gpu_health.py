"""Readings of GPUs and what they mean. No GPU is here: a module that looks like pynvml tells of some."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pynvml
import pytest

from sdrs_core.errors import UnavailableError
from sdrs_scheduler.health.nvml import NvmlProbe, gpu_type
from sdrs_scheduler.health.probe import GpuReading, ScriptedProbe, Xid
from sdrs_scheduler.health.verdicts import Fault, bad_gpus, describe_xid, fault_of
from tests.support.fake_nvml import FakeGpu, FakeNvml

NOW_MS = 1_800_000_000_000


def test_the_stand_in_has_the_functions_of_the_real_module() -> None:
    names = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(names) > 10
    for name in names:
        real = list(inspect.signature(getattr(pynvml, name)).parameters)
        ours = list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:]
        assert len(ours) == len(real), name
    event_fields = {name for name, _ in pynvml.c_nvmlEventData_t._fields_}
    assert event_fields >= {"device", "eventType", "eventData"}
    assert "gpu" in {name for name, _ in pynvml.c_nvmlUtilization_t._fields_}


def test_a_machine_without_the_driver_has_no_gpus() -> None:
    # The real module: this is such a machine, or it has GPUs and tells them.
    probe = NvmlProbe()
    assert all(isinstance(reading, GpuReading) for reading in probe.read())
    probe.close()


@pytest.mark.parametrize(
    "error",
    [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_NO_PERMISSION],
)
def test_a_driver_that_comes_later_is_found_later(error: int) -> None:
    now = [1000.0]
    nvml = FakeNvml([FakeGpu(0)], init_error=error)
    probe = NvmlProbe(nvml, lambda: now[0])
    assert probe.read() == []
    nvml.init_error = None
    assert probe.read() == []
    now[0] += 61
    assert [reading.index for reading in probe.read()] == [0]


def test_a_driver_without_gpus_is_let_go() -> None:
    nvml = FakeNvml()
    assert NvmlProbe(nvml).read() == []
    assert not nvml.is_open


def test_everything_that_a_gpu_tells_is_read() -> None:
    nvml = FakeNvml([FakeGpu(0), FakeGpu(1, b"NVIDIA A100-SXM4-80GB", 91, 92, 3, 100)])
    probe = NvmlProbe(nvml)
    assert probe.read() == [
        GpuReading(0, gpu_type="h100", temperature_celsius=40, slowdown_celsius=90, utilization=0.5),
        GpuReading(
            1,
            gpu_type="a100",
            ecc_uncorrected=3,
            temperature_celsius=91,
            slowdown_celsius=92,
            utilization=1.0,
        ),
    ]
    assert nvml.registered == [0, 1]
    probe.close()
    assert not nvml.is_open


def test_a_gpu_that_cannot_tell_something_tells_the_rest() -> None:
    nvml = FakeNvml([FakeGpu(0, slowdown=None, ecc_uncorrected=None, utilization=None)])
    assert NvmlProbe(nvml).read() == [GpuReading(0, gpu_type="h100", temperature_celsius=40)]


def test_xids_are_kept_with_their_time_and_their_gpu() -> None:
    nvml = FakeNvml([FakeGpu(0), FakeGpu(1)])
    now = [1000.0]
    probe = NvmlProbe(nvml, lambda: now[0])
    assert [reading.xids for reading in probe.read()] == [(), ()]
    nvml.events.extend([(1, 31), (1, 48)])
    assert [reading.xids for reading in probe.read()] == [(), (Xid(31, 1_000_000), Xid(48, 1_000_000))]
    now[0] = 1001.0
    nvml.events.extend((0, 13) for _ in range(100))
    first, second = probe.read()
    assert first.xids == (Xid(13, 1_001_000),) * 32
    assert len(second.xids) == 2


def test_a_gpu_that_falls_off_the_bus_keeps_its_place_and_its_xids() -> None:
    nvml = FakeNvml([FakeGpu(0), FakeGpu(1), FakeGpu(2)])
    probe = NvmlProbe(nvml, lambda: 1000.0)
    probe.read()
    nvml.events.append((1, 79))
    probe.read()
    nvml.gpus[1].is_lost = True
    readings = probe.read()
    assert [(reading.index, reading.is_lost) for reading in readings] == [(0, False), (1, True), (2, False)]
    assert readings[1].xids == (Xid(79, 1_000_000),)
    assert readings[1].gpu_type == "h100"
    # One that was lost before the scheduler came.
    assert [reading.is_lost for reading in NvmlProbe(nvml).read()] == [False, True, False]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("", ""),
    ],
)
def test_types_have_short_names(name: str, expected: str) -> None:
    assert gpu_type(name) == expected


@pytest.mark.parametrize(
    ("reading", "sentence"),
    [
        (GpuReading(0), ""),
        (GpuReading(0, is_lost=True, xids=(Xid(48, NOW_MS),)), "it has fallen off the bus: reset it, or restart"),
        (GpuReading(0, xids=(Xid(79, NOW_MS - 1000),)), "Xid 79: it has fallen off the bus; reset it"),
        (GpuReading(0, xids=(Xid(48, NOW_MS), Xid(94, NOW_MS))), "Xid 48: an uncorrectable ECC error; reset it"),
        (GpuReading(0, xids=(Xid(48, NOW_MS - 86_400_000),)), ""),
        (GpuReading(0, xids=(Xid(94, NOW_MS - 299_000),)), "Xid 94: a contained ECC error"),
        (GpuReading(0, xids=(Xid(94, NOW_MS - 300_000),)), ""),
        # The program's own doing is not held against the GPU; neither is what we do not know.
        (GpuReading(0, xids=(Xid(31, NOW_MS), Xid(13, NOW_MS), Xid(999, NOW_MS))), ""),
        (GpuReading(0, ecc_uncorrected=2), "2 uncorrectable ECC errors since its last reset: reset it"),
        (GpuReading(0, temperature_celsius=95, slowdown_celsius=95), "95 °C, and it slows down from 95 °C on"),
        (GpuReading(0, temperature_celsius=94, slowdown_celsius=95), ""),
        (GpuReading(0, temperature_celsius=200), ""),
    ],
)
def test_a_bad_gpu_is_told_in_a_sentence(reading: GpuReading, sentence: str) -> None:
    found = bad_gpus([reading], NOW_MS)
    if not sentence:
        assert found == {}
    else:
        assert found[""][0].startswith(sentence)


def test_bad_gpus_are_told_by_node() -> None:
    readings = [GpuReading(0, "n1", is_lost=True), GpuReading(0, "n2"), GpuReading(3, "n1", ecc_uncorrected=1)]
    assert {node: sorted(bad) for node, bad in bad_gpus(readings, NOW_MS).items()} == {"n1": [0, 3]}


def test_xids_are_told_apart() -> None:
    assert [fault_of(xid) for xid in (79, 94, 31, 999)] == [
        Fault.HARDWARE,
        Fault.CONTAINED,
        Fault.PROGRAM,
        Fault.UNKNOWN,
    ]
    assert describe_xid(999).startswith("Xid 999")


def test_a_script_stands_in_for_gpus(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    probe = ScriptedProbe(path)
    assert probe.read() == []
    path.write_text(json.dumps([{"node": "n1", "index": 3, "xids": [79, {"number": 31, "unix_ms": 5}]}, {"index": 0}]))
    written_ms = path.stat().st_mtime_ns // 1_000_000
    assert probe.read() == [GpuReading(3, "n1", xids=(Xid(79, written_ms), Xid(31, 5))), GpuReading(0)]


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"node": "n1"}]', '[{"index": 0, "heat": 9}]', '{"index": 0}'])
def test_a_script_that_makes_no_sense_is_an_error_and_nothing_is_concluded(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpus.json").write_text(text)
    with pytest.raises(UnavailableError, match=r"gpus\.json is no list of GPU readings"):
        ScriptedProbe(tmp_path / "gpus.json").read()
