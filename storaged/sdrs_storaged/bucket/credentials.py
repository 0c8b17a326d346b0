"""Where a machine finds the credentials of a target. They stay in this process: no repr, log or error has them.

``chain`` is what every AWS tool does (environment, shared files, roles of the machine); ``profile:NAME`` is one of the
shared files' profiles; ``file:PATH`` and ``env:PREFIX`` are ours.
"""

from __future__ import annotations

import configparser
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import botocore.session
from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials
from botocore.exceptions import ProfileNotFound
from botocore.loaders import create_loader

from sdrs_core.errors import InvalidArgumentError, PermissionDeniedError
from sdrs_storaged.bucket.private_files import mark_of, read_private

# What botocore knows of S3 is a large file, read once for all clients.
_MODELS = create_loader()
_WHAT = "the file of credentials"
_NEEDED = ("access_key_id", "secret_access_key")


def session_with(credentials: str) -> Any:
    """A botocore session; what is missing is told now, but for ``chain``, which asks around at the first request."""
    kind, _, value = credentials.partition(":")
    if kind == "chain" and not value:
        return _session()
    if kind == "profile" and value:
        session = _session(value)
        try:
            session.get_scoped_config()
        except ProfileNotFound as error:
            raise PermissionDeniedError(
                f"profile {value} is not in the shared AWS files of this machine's user: add it to ~/.aws/credentials"
            ) from error
        return session
    found: Credentials
    if kind == "file" and value:
        found = _Watched(lambda: _from_file(value), lambda: mark_of(value))
    elif kind == "env" and value:
        found = _Watched(lambda: _from_environment(value, os.environ), lambda: None)
    else:
        # Not repeated: it may be a secret that was put in the wrong place.
        raise InvalidArgumentError(
            "credentials are given as one of chain, file:PATH, profile:NAME and env:PREFIX, and what was given is none "
            "of these: name where they are, not what they are"
        )
    session = _session()
    session.get_component("credential_provider").providers[:] = [_Given(found)]
    return session


def _session(profile: str | None = None) -> Any:
    session = botocore.session.Session(profile=profile)
    session.register_component("data_loader", _MODELS)
    return session


class _Given(CredentialProvider):  # type: ignore[misc]
    METHOD = "sdrs"

    def __init__(self, found: Credentials) -> None:
        super().__init__()
        self._found = found

    def load(self) -> Credentials:
        return self._found


class _Watched(Credentials):  # type: ignore[misc]
    """Read again when their file changed: session tokens are rotated under a running daemon."""

    def __init__(
        self, read: Callable[[], ReadOnlyCredentials], mark: Callable[[], tuple[int, int, int] | None]
    ) -> None:
        self._read = read
        self._mark = mark
        self._lock = threading.Lock()
        self._seen = mark()
        frozen = read()
        self._frozen = frozen
        super().__init__(frozen.access_key, frozen.secret_key, frozen.token, method=_Given.METHOD)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        with self._lock:
            mark = self._mark()
            if mark != self._seen:
                self._frozen = self._read()
                self._seen = mark
                self.access_key, self.secret_key, self.token = self._frozen[:3]
            return self._frozen

    def __repr__(self) -> str:
        return "<credentials>"


def _from_file(path: str) -> ReadOnlyCredentials:
    """JSON, or INI with any one section (``aws_`` before the names is as good)."""
    data, _ = read_private(path, _WHAT)
    try:
        text = data.decode()
        values = json.loads(text) if text.lstrip().startswith("{") else _from_ini(text)
    except (ValueError, configparser.Error):
        # Without the cause: parsers quote the line that they choke on.
        raise PermissionDeniedError(
            f"{_WHAT} {path} is neither JSON nor INI: it has {' and '.join(_NEEDED)}, and session_token if there is one"
        ) from None
    return _frozen({str(name).lower().removeprefix("aws_"): value for name, value in values.items()}, f"{_WHAT} {path}")


def _from_ini(text: str) -> Mapping[str, str]:
    parser = configparser.RawConfigParser()
    parser.read_string(text if text.lstrip().startswith("[") else f"[default]\n{text}")
    return dict(parser[(parser.sections() or ["default"])[0]])


def _from_environment(prefix: str, environment: Mapping[str, str]) -> ReadOnlyCredentials:
    names = [*_NEEDED, "session_token"]
    values = {name: environment.get(f"{prefix}_{name.upper()}", "") for name in names}
    return _frozen(values, f"the environment of the daemon (as {prefix}_ACCESS_KEY_ID ...)")


def _frozen(values: Mapping[str, object], where: str) -> ReadOnlyCredentials:
    missing = [name for name in _NEEDED if not isinstance(values.get(name), str) or not values[name]]
    if missing:
        raise PermissionDeniedError(f"{where} has no {' and no '.join(missing)}: add them")
    token = values.get("session_token")
    return ReadOnlyCredentials(values["access_key_id"], values["secret_access_key"], token if token else None)
