"""Credentials and keys: where they are found, who may read them, and that they are never shown."""

from __future__ import annotations

import base64
import json
import logging
import os
import traceback
from pathlib import Path

import pytest

from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import InvalidArgumentError, PermissionDeniedError
from sdrs_storaged.bucket.credentials import session_with
from sdrs_storaged.bucket.key_files import read_keys
from sdrs_storaged.bucket.opening import open_bucket

SECRET = "hush-hush"
VALUES = {"access_key_id": "ak", "secret_access_key": SECRET, "session_token": "tok"}


def _private(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def _found(credentials: str) -> tuple[str, str, str | None]:
    frozen = session_with(credentials).get_credentials().get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(VALUES),
        "[default]\naws_access_key_id = ak\naws_secret_access_key = hush-hush\naws_session_token = tok\n",
        "access_key_id=ak\nsecret_access_key=hush-hush\nsession_token=tok\n",
    ],
)
def test_credentials_are_read_from_a_file(tmp_path: Path, text: str) -> None:
    assert _found(f"file:{_private(tmp_path / 'c', text)}") == ("ak", SECRET, "tok")


def test_credentials_are_read_from_the_environment_under_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAS_ACCESS_KEY_ID", "ak")
    monkeypatch.setenv("NAS_SECRET_ACCESS_KEY", SECRET)

    assert _found("env:NAS") == ("ak", SECRET, None)
    with pytest.raises(PermissionDeniedError, match="OTHER_ACCESS_KEY_ID"):
        session_with("env:OTHER")


def test_credentials_are_read_from_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"[nas]\naws_access_key_id = ak\naws_secret_access_key = {SECRET}\n"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(_private(tmp_path / "shared", text)))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    assert _found("profile:nas") == ("ak", SECRET, None)
    with pytest.raises(PermissionDeniedError, match="profile other is not in"):
        session_with("profile:other")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660])
def test_a_file_that_others_may_read_or_change_is_refused_with_the_command_to_mend_it(
    tmp_path: Path, mode: int
) -> None:
    path = _private(tmp_path / "c", json.dumps(VALUES), mode)

    with pytest.raises(PermissionDeniedError, match=f"chmod 600 {path}"):
        session_with(f"file:{path}")
    with pytest.raises(PermissionDeniedError, match=f"chmod 600 {path}"):
        read_keys(_target(encryption_key=f"file:{path}"))


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = _private(tmp_path / "c", json.dumps(VALUES))
    os.chown(path, 12345, 12345)

    with pytest.raises(PermissionDeniedError, match=f"chown {os.geteuid()} {path}"):
        session_with(f"file:{path}")


def test_a_file_that_is_missing_or_incomplete_is_told(tmp_path: Path) -> None:
    with pytest.raises(PermissionDeniedError, match="cannot be read on this machine: No such file"):
        session_with(f"file:{tmp_path / 'none'}")
    with pytest.raises(PermissionDeniedError, match="has no secret_access_key"):
        session_with(f"file:{_private(tmp_path / 'c', json.dumps({'access_key_id': 'ak'}))}")


@pytest.mark.parametrize("text", [f'{{"secret_access_key": "{SECRET}"', f"{SECRET}\n[", f"[a\n{SECRET}"])
def test_errors_about_a_file_never_quote_it(tmp_path: Path, text: str) -> None:
    path = _private(tmp_path / "c", text)

    with pytest.raises(PermissionDeniedError) as caught:
        session_with(f"file:{path}")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("credentials", ["", "ak:hush-hush", "file:", "chain:x", "hush-hush"])
def test_credentials_themselves_are_no_place(credentials: str) -> None:
    with pytest.raises(InvalidArgumentError, match="where they are, not what they are") as caught:
        session_with(credentials)
    assert "hush" not in caught.value.message


def test_nothing_that_is_logged_or_shown_has_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = os.urandom(32).hex()
    target = _target(
        credentials=f"file:{_private(tmp_path / 'c', json.dumps(VALUES))}",
        encryption_key=f"file:{_private(tmp_path / 'k', key)}",
    )
    with open_bucket(target) as bucket:
        assert bucket.keys
        shown = repr([bucket, bucket.store, bucket.keys, bucket.keys._wrapping, target])
        shown += repr(session_with(target.credentials).get_credentials())
    for secret in (SECRET, "tok'", key):
        assert secret not in shown + caplog.text


KEY = bytes(range(32))


@pytest.mark.parametrize("data", [KEY, KEY.hex(), KEY.hex().upper() + "\n", base64.b64encode(KEY).decode() + "\n"])
def test_a_key_is_the_same_however_it_is_written(tmp_path: Path, data: str | bytes) -> None:
    keys = read_keys(_target(encryption_key=f"file:{_private(tmp_path / 'k', data)}"))

    assert keys
    assert keys.present.secret == KEY


def test_keys_come_from_the_environment_or_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY.hex())
    keys = read_keys(_target(encryption_key="env:THE_KEY", former_keys=("command:printf '%064d' 7",)))

    assert keys
    assert keys.present.secret == KEY
    assert keys.former[0].secret == bytes(31) + b"\x07"
    assert keys.by_id(keys.former[0].id) == keys.former[0]
    assert keys.by_id("another") is None


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("env:NOT_SET_ANYWHERE", "no encryption key in NOT_SET_ANYWHERE"),
        ("command:echo wrong >&2; exit 3", "ended with 3 on this machine: wrong"),
        ("command:echo short", "openssl rand -hex 32"),
    ],
)
def test_a_key_that_is_not_there_is_told(place: str, words: str) -> None:
    with pytest.raises(PermissionDeniedError, match=words):
        read_keys(_target(encryption_key=place))


@pytest.mark.parametrize(
    "changes",
    [
        {"addressing": "dns"},
        {"bucket": ""},
        {"prefix": "a//b"},
        {"prefix": "../b"},
        {"endpoint": "nas:9000"},
        {"endpoint": "http://user:hush-hush@nas:9000"},
        {"ca_file": "/no/such/ca.pem"},
        {"bucket": "a b"},
    ],
)
def test_a_target_that_makes_no_sense_is_refused_before_anything_is_asked(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    credentials = f"file:{_private(tmp_path / 'c', json.dumps(VALUES))}"
    with pytest.raises(InvalidArgumentError) as caught:
        with open_bucket(_target(**{"credentials": credentials, **changes})) as bucket:
            bucket.store.put("a", b"1")
    assert SECRET not in str(caught.value)


def _target(**changes: object) -> Target:
    return Target(TargetName("nas"), **{"bucket": "backups", "endpoint": "http://127.0.0.1:9", **changes})  # type: ignore[arg-type]


def test_a_key_itself_is_no_place_and_is_not_repeated() -> None:
    with pytest.raises(InvalidArgumentError, match="where it is, not what it is") as caught:
        read_keys(_target(encryption_key=SECRET))
    assert SECRET not in caught.value.message


def test_a_former_key_may_be_thrown_away(tmp_path: Path) -> None:
    present = f"file:{_private(tmp_path / 'k', KEY)}"
    keys = read_keys(_target(encryption_key=present, former_keys=(f"file:{tmp_path / 'gone'}", "env:NOT_SET_ANYWHERE")))

    assert keys
    assert (keys.present.secret, keys.former) == (KEY, ())
