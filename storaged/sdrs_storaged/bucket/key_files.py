"""The keys that wrap data keys: where a machine finds them. Only their ids are ever shown."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from sdrs_core.backup.targets import Target
from sdrs_core.errors import InvalidArgumentError, PermissionDeniedError
from sdrs_storaged.bucket.private_files import read_private

KEY_BYTES = 32
_COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class WrappingKey:
    """``id`` is a short hash of it, which names it in the bucket and in errors."""

    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WrappingKeys:
    present: WrappingKey
    former: tuple[WrappingKey, ...] = ()

    def by_id(self, key_id: str) -> WrappingKey | None:
        return next((key for key in (self.present, *self.former) if key.id == key_id), None)


def read_keys(target: Target) -> WrappingKeys | None:
    """None: the target is not encrypted."""
    if not target.encryption_key:
        return None
    return WrappingKeys(_read(target.encryption_key), tuple(_readable(target.former_keys)))


def _readable(places: tuple[str, ...]) -> Iterator[WrappingKey]:
    """Once nothing is under a former key any more it may be thrown away; whoever still needs it is told its id."""
    for place in places:
        with suppress(PermissionDeniedError):
            yield _read(place)


def _read(place: str) -> WrappingKey:
    """``place``: file:PATH, env:NAME or command:COMMAND."""
    kind, _, value = place.partition(":")
    if kind == "file" and value:
        data, _ = read_private(value, "the file of the encryption key")
    elif kind == "env" and value:
        data = os.environ.get(value, "").encode()
        if not data:
            raise PermissionDeniedError(f"the daemon's environment on this machine has no encryption key in {value}")
    elif kind == "command" and value:
        data = _output(value)
    else:
        # Not repeated: it may be the key itself.
        raise InvalidArgumentError(
            "an encryption key is given as one of file:PATH, env:NAME and command:COMMAND, and what was given is none "
            "of these: name where it is, not what it is"
        )
    secret = _decoded(data)
    if secret is None:
        raise PermissionDeniedError(
            f"what {kind}:{value} gives is no encryption key: {KEY_BYTES} bytes are expected, as they are, as "
            f"{2 * KEY_BYTES} hex digits or in base64. Make one: openssl rand -hex {KEY_BYTES}"
        )
    return WrappingKey(hashlib.sha256(b"sdrs-backup-key-id:" + secret).hexdigest()[:16], secret)


def _decoded(data: bytes) -> bytes | None:
    if len(data) == KEY_BYTES:
        return data
    text = data.strip()
    if re.fullmatch(rb"[0-9A-Fa-f]{64}", text):
        return bytes.fromhex(text.decode())
    try:
        secret = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return secret if len(secret) == KEY_BYTES else None


def _output(command: str) -> bytes:
    try:
        done = subprocess.run(
            command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PermissionDeniedError(
            f"the command for the encryption key, {command}, has not ended after {_COMMAND_SECONDS:.0f} s"
        ) from error
    if done.returncode:
        # Its errors, not its output: that may be part of a key.
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise PermissionDeniedError(
            f"the command for the encryption key, {command}, ended with {done.returncode} on this machine: {said}"
        )
    return done.stdout
