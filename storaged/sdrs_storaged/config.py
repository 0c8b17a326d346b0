"""The daemon's configuration: file, then environment, then flags; validated once, errors name the key.

Environment variables are ``SDRS_STORAGED_`` plus the key, a double underscore between section and key:
``SDRS_STORAGED_LOG_LEVEL=debug``, ``SDRS_STORAGED_NODE__DOMAIN=rack-7``. Flags are ``--set node.domain=rack-7``.
"""

from __future__ import annotations

import ipaddress
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sdrs_core.errors import InvalidArgumentError, RefusedError
from sdrs_core.ids import check_name

_ENVIRONMENT_PREFIX = "SDRS_STORAGED_"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def split_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address: use host:port, as in 127.0.0.1:7070 (port 0 takes a free one)")
    return host.strip("[]"), int(port)


class ControllerConfig(_Section):
    listen: str = "127.0.0.1:7070"
    collect_interval_seconds: float = Field(30, gt=0)
    scan_interval_seconds: float = Field(600, ge=0)
    save_ttl_seconds: float = Field(600, gt=0)
    grace_seconds: float = Field(3600, ge=0)
    suspect_after_seconds: float = Field(2, gt=0)
    default_pool: bool = True
    # How often the catalog is looked through for what is short of copies, and how many copies are made at once.
    repair_interval_seconds: float = Field(30, gt=0)
    repair_concurrency: int = Field(2, ge=1, le=64)
    # How long a node that went down is waited for before its copies are made elsewhere.
    repair_after_seconds: float = Field(60, ge=0)
    repair_last_copy_after_seconds: float = Field(30, ge=0)


class NodeConfig(_Section):
    id: str = ""
    listen: str = "127.0.0.1:0"
    data_listen: str = "127.0.0.1:0"
    controllers: tuple[str, ...] = ("127.0.0.1:7070",)
    domain: str = ""
    disks: tuple[Path, ...] = ()
    disk_capacity_bytes: int = Field(0, ge=0)
    near_full_percent: float = Field(85, gt=0, le=100)
    full_percent: float = Field(95, gt=0, le=100)
    write_slots: int = Field(8, ge=1, le=256)
    read_slots: int = Field(32, ge=1, le=1024)

    @field_validator("id")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "node id") if value else value

    @model_validator(mode="after")
    def _order(self) -> NodeConfig:
        if self.near_full_percent > self.full_percent:
            raise ValueError("near_full_percent must not be above full_percent")
        return self


class Config(_Section):
    roles: tuple[Literal["controller", "node"], ...] = ("controller", "node")
    data_dir: Path
    insecure: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    metrics: str = "127.0.0.1:0"
    controller: ControllerConfig = ControllerConfig()
    node: NodeConfig = NodeConfig()

    @model_validator(mode="after")
    def _addresses(self) -> Config:
        if not self.roles:
            raise ValueError('roles is empty: name "controller", "node" or both')
        for text in self._listening():
            split_address(text)
        for text in self.node.controllers:
            split_address(text)
        return self

    def _listening(self) -> list[str]:
        addresses = [self.metrics] if self.metrics else []
        if "controller" in self.roles:
            addresses.append(self.controller.listen)
        if "node" in self.roles:
            addresses += [self.node.listen, self.node.data_listen]
        return addresses

    def check_exposure(self) -> None:
        """Bytes and commands travel in the clear: beyond loopback only when an operator says so."""
        if self.insecure:
            return
        for text in self._listening():
            host, _ = split_address(text)
            try:
                is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
            except ValueError:
                is_loopback = False
            if not is_loopback:
                raise RefusedError(
                    f"refusing to listen on {text} in the clear: anybody who reaches it could read and delete "
                    f"checkpoints. "
                    "Listen on 127.0.0.1, or pass --insecure if the network is trusted"
                )


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _assign(settings: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise InvalidArgumentError(f"configuration key {dotted}: {section} is not a section")
    settings[key] = value


def load_config(file: Path | None, environment: Mapping[str, str], flags: Sequence[str]) -> Config:
    settings: dict[str, Any] = {}
    if file is not None:
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidArgumentError(f"configuration file {file} does not exist") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidArgumentError(f"configuration file {file} cannot be read: {error}") from error
    for name, text in environment.items():
        if name.startswith(_ENVIRONMENT_PREFIX):
            _assign(settings, name.removeprefix(_ENVIRONMENT_PREFIX).lower().replace("__", "."), _parse(text))
    for flag in flags:
        dotted, equals, text = flag.partition("=")
        if not equals:
            raise InvalidArgumentError(f"--set {flag!r} is not KEY=VALUE, as in --set node.domain=rack-7")
        _assign(settings, dotted, _parse(text))
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        lines = [f"  {'.'.join(str(part) for part in e['loc']) or '(file)'}: {e['msg']}" for e in error.errors()]
        raise InvalidArgumentError("the configuration is not valid:\n" + "\n".join(lines)) from None
