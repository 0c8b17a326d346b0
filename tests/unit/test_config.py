"""The daemon's configuration: where it comes from, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdrs_core.errors import InvalidArgumentError, RefusedError
from sdrs_storaged.config import load_config

ROOT = Path(__file__).parents[2]


def test_the_example_configuration_is_valid() -> None:
    load_config(ROOT / "deploy" / "storaged.example.toml", {}, [])


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('data_dir = "/from/file"\nlog_level = "debug"\n[node]\ndomain = "file"\nwrite_slots = 3\n')
    environment = {"SDRS_STORAGED_NODE__DOMAIN": "environment", "SDRS_STORAGED_LOG_LEVEL": "error", "OTHER": "x"}
    config = load_config(file, environment, ["node.domain=flag"])
    assert (config.node.domain, config.log_level, config.node.write_slots) == ("flag", "error", 3)
    assert config.data_dir == Path("/from/file")


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("node.write_slots=0", "node.write_slots"),
        ("node.nonsense=1", "node.nonsense"),
        ("controller.listen=nowhere", "is not an address"),
        ("node.advertise=nowhere", "is not an address"),
        ("log_level=loud", "log_level"),
        ("node.near_full_percent=99", "near_full_percent"),
        ("node.id=../etc", "node.id"),
        ("roles=[]", "roles"),
        ("nonsense", "KEY=VALUE"),
        ("data_dir.x=1", "data_dir"),
        ("controller.store=postgres", "controller.store"),
        ("controller.etcd.endpoints=[]", "controller.etcd.endpoints"),
        ('controller.etcd.endpoints=["nowhere"]', "controller.etcd.endpoints"),
        ('controller.etcd.endpoints=["https://a:1", "b:1"]', "controller.etcd.endpoints"),
        (f"controller.etcd.prefix={'x' * 25}", "controller.etcd.prefix"),
        ("controller.etcd.lease_seconds=1", "controller.etcd.lease_seconds"),
        ("controller.etcd.cert_file=/c", "cert_file and key_file"),
        ("controller.etcd.ca_file=/c", "https://"),
        ("controller.etcd.user=sdrs", "password_file"),
    ],
)
def test_a_bad_setting_is_named(flag: str, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        load_config(None, {}, ["data_dir=/x", flag])


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"gone\.toml"):
        load_config(tmp_path / "gone.toml", {}, [])
    (tmp_path / "bad.toml").write_text("= = =")
    with pytest.raises(InvalidArgumentError, match=r"bad\.toml"):
        load_config(tmp_path / "bad.toml", {}, [])


@pytest.mark.parametrize("key", ["controller.listen", "node.listen", "node.data_listen", "metrics"])
def test_listening_beyond_loopback_needs_a_word(key: str) -> None:
    settings = ["data_dir=/x", f"{key}=0.0.0.0:7070"]
    with pytest.raises(RefusedError, match="--insecure"):
        load_config(None, {}, settings).check_exposure()
    load_config(None, {}, [*settings, "insecure=true"]).check_exposure()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.5.5.5:0", "localhost:7070", "[::1]:7070"])
def test_loopback_is_allowed(address: str) -> None:
    load_config(None, {}, ["data_dir=/x", f"controller.listen={address}"]).check_exposure()


def test_an_etcd_beyond_loopback_needs_tls_or_a_word() -> None:
    settings = ["data_dir=/x", "controller.store=etcd"]
    with pytest.raises(RefusedError, match="in the clear"):
        load_config(None, {}, [*settings, 'controller.etcd.endpoints=["10.0.0.1:2379"]']).check_exposure()
    for good in (
        ['controller.etcd.endpoints=["https://10.0.0.1:2379"]'],
        ['controller.etcd.endpoints=["http://127.0.0.1:2379", "localhost:2379"]'],
        ['controller.etcd.endpoints=["10.0.0.1:2379"]', "insecure=true"],
        ['controller.etcd.endpoints=["10.0.0.1:2379"]', 'roles=["node"]'],
        ['controller.etcd.endpoints=["10.0.0.1:2379"]', "controller.store=sqlite"],
    ):
        load_config(None, {}, [*settings, *good]).check_exposure()


def test_the_environment_reaches_a_section_in_a_section() -> None:
    environment = {"SDRS_STORAGED_CONTROLLER__ETCD__ENDPOINTS": '["https://a:1"]', "SDRS_STORAGED_DATA_DIR": "/x"}
    config = load_config(None, environment, [])
    assert (config.controller.etcd.addresses, config.controller.etcd.uses_tls) == (("a:1",), True)
