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
        ("log_level=loud", "log_level"),
        ("node.near_full_percent=99", "near_full_percent"),
        ("node.id=../etc", "node.id"),
        ("roles=[]", "roles"),
        ("nonsense", "KEY=VALUE"),
        ("data_dir.x=1", "data_dir"),
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
