"""The scheduler's configuration: one TOML file, validated once; errors name the key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sdrs_core.errors import InvalidArgumentError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalConfig(_Section):
    """Jobs as processes of this machine: its GPUs, or so many stand-ins on each storage node of this host."""

    enabled: bool = True
    # Of each storage node on this machine, where NVML finds no GPU.
    gpus_per_node: int = Field(8, ge=0, le=1024)
    gpu_type: str = ""
    groups: tuple[str, ...] = ()
    log_max_bytes: int = Field(64 << 20, ge=1 << 10)
    log_max_files: int = Field(4, ge=1, le=1000)
    # Readings of GPUs from a file in the place of NVML.
    probe_file: Path | None = None


class SlurmConfig(_Section):
    """As ``SlurmSettings`` has it."""

    enabled: bool = False
    # On a file system that all nodes share; none: in data_dir.
    folder: Path | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    options: tuple[str, ...] = ()
    conf_file: str = ""
    deadline_seconds: float = Field(20.0, gt=0, le=600)
    settle_seconds: float = Field(10.0, ge=0, le=600)


class StrikesConfig(_Section):
    limit: float = Field(3.0, gt=0)
    window_seconds: float = Field(86_400, gt=0)


class Config(_Section):
    # Of the storage, as for `sdrs.connect`; jobs are given it as well.
    url: str
    data_dir: Path
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    # Where Prometheus finds it; empty: nowhere.
    metrics: str = "127.0.0.1:0"
    lease_seconds: float = Field(10, ge=1, le=3600)
    tick_seconds: float = Field(0.2, gt=0, le=60)
    idle_tick_seconds: float = Field(1.0, gt=0, le=60)
    # After the end of a run, until a node that died with it is known to be down.
    settle_seconds: float = Field(3.0, ge=0, le=600)
    # Trouble of the storage so long before the end of a run may be its cause.
    trouble_seconds: float = Field(60.0, ge=0, le=3600)
    stacks_seconds: float = Field(5.0, ge=0, le=600)
    start_seconds: float = Field(600.0, gt=0)
    # Jobs that are over are forgotten after so many days.
    finished_days: float = Field(30, gt=0)
    verify_threads: int = Field(2, ge=1, le=32)
    # Names of the policy's settings, as in docs/scheduling-policy.md.
    policy: dict[str, Any] = Field(default_factory=dict)
    strikes: StrikesConfig = StrikesConfig()
    local: LocalConfig = LocalConfig()
    slurm: SlurmConfig = SlurmConfig()


def load_config(file: Path) -> Config:
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgumentError(f"configuration file {file} does not exist") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"configuration file {file} cannot be read: {error}") from error
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        lines = [f"  {'.'.join(str(part) for part in e['loc']) or '(file)'}: {e['msg']}" for e in error.errors()]
        raise InvalidArgumentError(f"the configuration {file} is not valid:\n" + "\n".join(lines)) from None
