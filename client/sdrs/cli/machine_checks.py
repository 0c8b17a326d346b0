"""What ``sdrs doctor`` looks at on this machine: each check one thing; it changes nothing and says what to do."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from sdrs.cli.amounts import format_bytes
from sdrs_core.errors import SdrsError

MIN_PYTHON = (3, 11)
OPEN_FILES_WANTED = 4096
SHARED_MEMORY_WANTED_BYTES = 1 << 30
NEAR_FULL_PERCENT, FULL_PERCENT = 85, 95
_PROBE_BYTES = 4 << 20
_PROBE_COUNT = 5
_SLOW_FSYNC_SECONDS = 0.25
_STEPPED_CLOCK_SECONDS = 0.5
_VOLATILE = {"tmpfs", "ramfs"}
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
# One requirement of our own metadata: name, oldest version, extra.
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:[><=!~]=?\s*([0-9.]+))?.*?(?:extra == ['\"](\w+)['\"])?\s*\Z")


class Verdict(StrEnum):
    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    detail: str
    advice: str = ""


def check_python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < MIN_PYTHON:
        return Check("python", Verdict.FAIL, version, "install Python 3.11 or newer")
    return Check("python", Verdict.OK, f"{version}, {sys.executable}")


def check_packages() -> list[Check]:
    """The SDK's packages must be there; those of an extra only where that part is used."""
    from importlib import metadata  # slow to load, and not every verb is the doctor

    try:
        requirements = metadata.requires("sdrs") or []
    except metadata.PackageNotFoundError:
        return [Check("packages", Verdict.WARN, "sdrs runs from source, not installed", "pip install -e '.[all]'")]
    wanted: dict[str, list[tuple[str, str]]] = {"": [], "server": [], "cli": []}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is not None and (match[3] or "") in wanted:
            wanted[match[3] or ""].append((match[1], match[2] or "0"))
    return [_check_extra(extra, packages) for extra, packages in wanted.items()]


def _check_extra(extra: str, packages: list[tuple[str, str]]) -> Check:
    from importlib import metadata

    name = f"packages ({extra or 'sdk'})"
    problems = []
    for package, oldest in packages:
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            problems.append(f"{package} is missing")
            continue
        if _numbers(found) < _numbers(oldest):
            problems.append(f"{package} {found} is older than {oldest}")
    if not problems:
        return Check(name, Verdict.OK, f"all {len(packages)} found")
    advice = f"pip install 'sdrs[{extra}]'" if extra else "pip install sdrs"
    if extra == "server":
        advice += " to run a daemon here; the SDK does not need it"
    return Check(name, Verdict.WARN if extra == "server" else Verdict.FAIL, ", ".join(problems), advice)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_erasure_kernel() -> Check:
    from sdrs_core import erasure  # loads what it finds, and not every verb is the doctor

    name = "erasure coding"
    try:
        kernel = erasure.kernel()
    except ImportError as error:
        return Check(name, Verdict.FAIL, str(error), "pip install sdrs")
    except SdrsError as error:
        return Check(name, Verdict.FAIL, error.message)
    if not kernel.startswith("zfec"):
        return Check(name, Verdict.OK, kernel)
    if os.environ.get(erasure.KERNEL_VARIABLE):
        advice = f"it is much slower than ISA-L: unset {erasure.KERNEL_VARIABLE}"
    else:
        advice = "it is much slower than ISA-L: pip install pyeclib, which brings it, or install libisal2 (isa-l)"
    return Check(name, Verdict.WARN, kernel, advice)


def existing_parent(directory: Path) -> Path:
    """Where ``directory`` would be made."""
    while not directory.is_dir():
        directory = directory.parent
    return directory


def check_disk_space(directory: Path) -> Check:
    usage = shutil.disk_usage(existing_parent(directory))
    # As df does: what is reserved for root is neither used nor free, and a node does not count it either.
    usable_bytes = usage.used + usage.free
    percent = 100 * usage.used / usable_bytes
    detail = f"{format_bytes(usage.free)} free of {format_bytes(usable_bytes)} ({percent:.0f} % used) at {directory}"
    if percent >= FULL_PERCENT:
        return Check(
            "disk space", Verdict.FAIL, detail, "nodes refuse writes when so full: free space, or use another --dir"
        )
    if percent >= NEAR_FULL_PERCENT:
        return Check(
            "disk space", Verdict.WARN, detail, f"nodes stop taking writes at {FULL_PERCENT} %: free space soon"
        )
    return Check("disk space", Verdict.OK, detail)


def check_file_system(directory: Path, mounts: str) -> Check:
    """``mounts`` is /proc/mounts: device, mount point, type, options."""
    place, kind = existing_parent(directory).resolve(), "unknown"
    longest = -1
    for line in mounts.splitlines():
        _, point, fs_type = line.split()[:3]
        point = point.replace("\\040", " ")
        if place.is_relative_to(point) and len(point) >= longest:
            longest, kind = len(point), fs_type
    if kind in _VOLATILE:
        return Check("file system", Verdict.WARN, f"{kind}: kept in memory", "a reboot loses it: use a --dir on a disk")
    if kind in _REMOTE:
        return Check("file system", Verdict.WARN, f"{kind}: remote", "fsync and locks are only as good as its server's")
    return Check("file system", Verdict.OK, kind)


def check_fsync(directory: Path) -> Check:
    place = existing_parent(directory)
    data = os.urandom(_PROBE_BYTES)
    seconds = []
    try:
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
            for _ in range(_PROBE_COUNT):
                started = time.perf_counter()
                file.write(data)
                os.fsync(file.fileno())
                seconds.append(time.perf_counter() - started)
    except OSError as error:
        return Check(
            "fsync",
            Verdict.FAIL,
            f"cannot write in {place}: {error.strerror}",
            "choose a folder you may write with --dir",
        )
    median = sorted(seconds)[_PROBE_COUNT // 2]
    detail = f"{_PROBE_BYTES * _PROBE_COUNT / sum(seconds) / 1e6:.0f} MB/s, p50 {median * 1000:.1f} ms for 4 MiB"
    if median > _SLOW_FSYNC_SECONDS:
        return Check(
            "fsync", Verdict.WARN, detail, "saves wait for this disk: use a faster one, or see what else keeps it busy"
        )
    return Check("fsync", Verdict.OK, detail)


def check_direct_io(directory: Path) -> Check:
    place = existing_parent(directory)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            os.close(os.open(file.name, os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        return Check("direct i/o", Verdict.INFO, f"not supported at {place} ({error.strerror}): the page cache is used")
    return Check("direct i/o", Verdict.OK, "supported")


@dataclass(frozen=True, slots=True)
class ClockReading:
    wall_seconds: float
    monotonic_seconds: float

    @classmethod
    def take(cls) -> ClockReading:
        return cls(time.time(), time.monotonic())


def check_clock(before: ClockReading, after: ClockReading) -> Check:
    """Clocks affect availability, never safety (I8): a wrong one is worth a warning, not more."""
    now = datetime.fromtimestamp(after.wall_seconds, UTC)
    drift = (after.wall_seconds - before.wall_seconds) - (after.monotonic_seconds - before.monotonic_seconds)
    if now.year < 2024:
        return Check("clock", Verdict.WARN, f"{now:%Y-%m-%d %H:%M} UTC", "set the clock: ages and retention go by it")
    if abs(drift) > _STEPPED_CLOCK_SECONDS:
        return Check(
            "clock", Verdict.WARN, f"jumped by {drift:+.1f} s just now", "let one time service slew it, not step it"
        )
    return Check("clock", Verdict.OK, f"{now:%Y-%m-%d %H:%M:%S} UTC, steady")


def check_open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_WANTED:
        return Check("open files", Verdict.OK, "no limit" if soft == resource.RLIM_INFINITY else f"up to {soft}")
    where = (
        "ulimit -n" if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES_WANTED else "LimitNOFILE= or limits.conf"
    )
    return Check("open files", Verdict.WARN, f"up to {soft}", f"raise it to {OPEN_FILES_WANTED} or more with {where}")


def check_shared_memory() -> Check:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return Check(
            "shared memory", Verdict.WARN, "/dev/shm is absent", "data loader workers need it: mount a tmpfs there"
        )
    detail = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)} at /dev/shm"
    if usage.total < SHARED_MEMORY_WANTED_BYTES:
        return Check("shared memory", Verdict.WARN, detail, "in a container, start it with --shm-size")
    return Check("shared memory", Verdict.OK, detail)


def check_gpus() -> Check:
    try:
        import pynvml
    except ImportError:
        return Check("gpus", Verdict.INFO, "not looked for: nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check("gpus", Verdict.INFO, f"none ({error})")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        return Check(
            "gpus", Verdict.INFO, ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names))) or "none"
        )
    except pynvml.NVMLError as error:
        return Check("gpus", Verdict.WARN, f"cannot be asked: {error}", "look at nvidia-smi and the kernel's log")
    finally:
        pynvml.nvmlShutdown()
