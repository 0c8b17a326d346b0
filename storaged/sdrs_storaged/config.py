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


class EtcdConfig(_Section):
    """How a controller reaches its etcd. ``endpoints`` are host:port, https://host:port for TLS."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    prefix: str = "sdrs/"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    user: str = ""
    password_file: Path | None = None
    lease_seconds: int = Field(3, ge=2, le=600)  # etcd itself grants no shorter one
    call_seconds: float = Field(2, gt=0, le=60)
    quota_bytes: int = Field(2 << 30, gt=0)
    keep_revisions: int = Field(10_000, ge=0)

    @field_validator("endpoints")
    @classmethod
    def _known_schemes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("name at least one etcd, as in 127.0.0.1:2379")
        if len({text.startswith("https://") for text in value}) > 1:
            raise ValueError("all endpoints speak TLS (https://) or none does")
        for text in value:
            split_address(text.removeprefix("https://").removeprefix("http://"))
        return value

    @field_validator("prefix")
    @classmethod
    def _short_prefix(cls, value: str) -> str:
        # It travels with every key, and the MetaStore's limits leave this much room for it.
        if not 1 <= len(value.encode()) <= 24:
            raise ValueError("the prefix has 1 to 24 bytes")
        return value

    @model_validator(mode="after")
    def _pairs(self) -> EtcdConfig:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        if (self.ca_file or self.cert_file) and not self.uses_tls:
            raise ValueError("ca_file and cert_file are for TLS: write the endpoints as https://host:port")
        if bool(self.user) != (self.password_file is not None):
            raise ValueError("user and password_file go together")
        return self

    @property
    def uses_tls(self) -> bool:
        return self.endpoints[0].startswith("https://")

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(text.removeprefix("https://").removeprefix("http://") for text in self.endpoints)


class ControllerConfig(_Section):
    listen: str = "127.0.0.1:7070"
    store: Literal["sqlite", "etcd"] = "sqlite"
    etcd: EtcdConfig = EtcdConfig()
    collect_interval_seconds: float = Field(30, gt=0)
    scan_interval_seconds: float = Field(600, ge=0)
    save_ttl_seconds: float = Field(600, gt=0)
    grace_seconds: float = Field(3600, ge=0)
    suspect_after_seconds: float = Field(2, gt=0)
    settle_seconds: float = Field(5, ge=0)
    snapshot_interval_seconds: float = Field(300, gt=0)
    default_pool: bool = True
    # How often the catalog is looked through for what is short of copies, and how many copies are made at once.
    repair_interval_seconds: float = Field(30, gt=0)
    repair_concurrency: int = Field(2, ge=1, le=64)
    # Of all that is made at once; 0: as fast as it goes. Both can be changed while it runs, and that is kept.
    repair_bytes_per_second: int = Field(0, ge=0)
    # How long a node that went down is waited for before its copies are made elsewhere.
    repair_after_seconds: float = Field(60, ge=0)
    repair_last_copy_after_seconds: float = Field(30, ge=0)
    # How often all that is stored is looked at again, by itself: whether it is there, and every block of it. 0: never.
    scrub_shallow_interval_seconds: float = Field(86_400, ge=0)
    scrub_deep_interval_seconds: float = Field(7 * 86_400, ge=0)
    # How fast a scrub reads; 0: as fast as it goes.
    scrub_bytes_per_second: int = Field(100_000_000, ge=0)


class NodeConfig(_Section):
    id: str = ""
    listen: str = "127.0.0.1:0"
    data_listen: str = "127.0.0.1:0"
    # Where others reach these two, if not there; and whether callers on the same host may go past both.
    advertise: str = ""
    data_advertise: str = ""
    unix_socket: bool = True
    controllers: tuple[str, ...] = ("127.0.0.1:7070",)
    domain: str = ""
    disks: tuple[Path, ...] = ()
    disk_capacity_bytes: int = Field(0, ge=0)
    near_full_percent: float = Field(85, gt=0, le=100)
    full_percent: float = Field(95, gt=0, le=100)
    write_slots: int = Field(8, ge=1, le=256)
    member_slots: int = Field(32, ge=1, le=256)
    read_slots: int = Field(32, ge=1, le=1024)
    repair_slots: int = Field(4, ge=1, le=64)
    slow_member_seconds: float = Field(5, gt=0)
    # Where processes of this host stage their saves (a tmpfs), and how much in all; 0 switches it off, -1 is sized by
    # what memory there is.
    staging_dir: Path | None = None
    staging_bytes: int = Field(-1, ge=-1)

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
        for text in (*self.node.controllers, self.node.advertise, self.node.data_advertise):
            if text:
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
        etcd = self.controller.etcd
        if "controller" in self.roles and self.controller.store == "etcd" and not etcd.uses_tls:
            for text in etcd.addresses:
                if not _is_loopback(text):
                    raise RefusedError(
                        f"refusing to speak with etcd at {text} in the clear: the keys of nodes and the password would "
                        "be seen by anybody on the way. Write https://, or pass --insecure if the network is trusted"
                    )
        for text in self._listening():
            if not _is_loopback(text):
                raise RefusedError(
                    f"refusing to listen on {text} in the clear: anybody who reaches it could read and delete "
                    f"checkpoints. "
                    "Listen on 127.0.0.1, or pass --insecure if the network is trusted"
                )


def _is_loopback(address: str) -> bool:
    host, _ = split_address(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
