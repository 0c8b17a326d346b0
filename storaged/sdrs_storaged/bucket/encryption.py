"""Encryption before upload, with data keys that lie in the bucket, wrapped (docs/backup-format.md).

A data key is 32 random bytes, at ID/keys/KEY.json under AES-256-GCM with a wrapping key that never leaves the machines.
What it is for is derived from it by HKDF-SHA256: one key for names, and one for each object, by the object's key.

An object is its content in chunks of 1 MiB, each AES-256-GCM with the chunk's number as the nonce and a flag in it on
the last one: chunks cannot be reordered, dropped or added. There is no randomness in it on purpose, so that a multipart
upload can go on after a crash and its parts compare. That is safe because a key never sees two contents: it belongs to
one object's name, the name has the (keyed) hash of the content and the id of the run, and an upload whose content turns
out to have another hash is thrown away. Manifests are named by save and rank, and may be written twice: they take a
random nonce.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import struct
import threading
import time
from collections.abc import Iterator

from blake3 import blake3 as new_blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sdrs_core.backup import layout
from sdrs_core.backup.targets import Target
from sdrs_core.checksums import Buffer
from sdrs_core.errors import CorruptDataError, PermissionDeniedError
from sdrs_core.ids import random_id
from sdrs_storaged.bucket.failures import where
from sdrs_storaged.bucket.key_files import KEY_BYTES, WrappingKeys
from sdrs_storaged.bucket.store import ObjectStore

FORMAT = 1
CHUNK_BYTES = 1 << 20
TAG_BYTES = 16
SEALED_CHUNK_BYTES = CHUNK_BYTES + TAG_BYTES
_NONCE_BYTES = 12
_MAX_KEY_FILE_BYTES = 64 * 1024


def chunk_count(size_bytes: int) -> int:
    """Of content; nothing is one empty chunk, so that it is authentic too."""
    return max(1, -(-size_bytes // CHUNK_BYTES))


def sealed_bytes(size_bytes: int) -> int:
    return size_bytes + chunk_count(size_bytes) * TAG_BYTES


class ObjectCipher:
    """Of one object. Safe for use by several threads."""

    def __init__(self, key: bytes, object_key: str, size_bytes: int) -> None:
        self._aead = AESGCM(key)
        self._object_key = object_key
        self._last = chunk_count(size_bytes) - 1

    def seal(self, number: int, plain: Buffer) -> bytes:
        return self._aead.encrypt(self._nonce(number), plain, None)

    def open(self, number: int, sealed: Buffer) -> bytes:
        try:
            return self._aead.decrypt(self._nonce(number), sealed, None)
        except InvalidTag:
            raise CorruptDataError(
                f"chunk {number} of {self._object_key} does not decrypt: it was damaged or changed in the bucket"
            ) from None

    def _nonce(self, number: int) -> bytes:
        return struct.pack(">IQ", int(number == self._last), number)

    def seal_all(self, blocks: Iterator[memoryview]) -> Iterator[bytes]:
        """Blocks of any size into sealed chunks, in order."""
        number, held = 0, bytearray()
        for block in blocks:
            while block:
                if not held and len(block) >= CHUNK_BYTES:
                    chunk, block = block[:CHUNK_BYTES], block[CHUNK_BYTES:]
                    yield self.seal(number, chunk)
                    number += 1
                    continue
                room = CHUNK_BYTES - len(held)
                held += block[:room]
                block = block[room:]
                if len(held) == CHUNK_BYTES:
                    yield self.seal(number, held)
                    number, held = number + 1, bytearray()
        if held or number == 0:
            yield self.seal(number, held)


class DataKey:
    """A random key of one cluster's objects. Only its id may be shown."""

    def __init__(self, key_id: str, secret: bytes) -> None:
        self.id = key_id
        self._secret = secret

    def __repr__(self) -> str:
        return f"<data key {self.id}>"

    def name_of(self, blake3: str) -> str:
        """What stands for a content's BLAKE3 in the name of its object: as long, and telling nothing."""
        return new_blake3(bytes.fromhex(blake3), key=self._derived("names")).hexdigest()

    def cipher(self, object_key: str, size_bytes: int) -> ObjectCipher:
        return ObjectCipher(self._derived(f"object:{object_key}"), object_key, size_bytes)

    def seal_manifest(self, key: str, plain: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._derived(f"manifest:{key}")).encrypt(nonce, plain, None)

    def open_manifest(self, key: str, sealed: bytes) -> bytes:
        try:
            return AESGCM(self._derived(f"manifest:{key}")).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise CorruptDataError(f"{key} does not decrypt: it was damaged or changed in the bucket") from None

    def _derived(self, purpose: str) -> bytes:
        info = f"sdrs-backup-{FORMAT}:{purpose}".encode()
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(self._secret)


class DataKeys:
    """The data keys in a bucket, as far as this machine has the keys that they are wrapped with."""

    def __init__(self, store: ObjectStore, wrapping: WrappingKeys, target: Target) -> None:
        self._store = store
        self._wrapping = wrapping
        self._target = target
        self._known: dict[tuple[str, str], DataKey] = {}
        self._current: dict[str, DataKey] = {}
        self._lock = threading.Lock()

    def current(self, cluster_id: str) -> DataKey:
        """The one for what is new; made if there is none.

        Two machines that make one at once make two, and each object says which one it is under.
        """
        with self._lock:
            if cluster_id not in self._current:
                # By name, the first: whichever it is, machines agree.
                first = next(self._ids(cluster_id), None)
                self._current[cluster_id] = self._read(cluster_id, first) if first else self._make(cluster_id)
            return self._current[cluster_id]

    def get(self, cluster_id: str, key_id: str) -> DataKey:
        """PermissionDeniedError if it is wrapped with a key that is not here; it names that one's id."""
        with self._lock:
            known = self._known.get((cluster_id, key_id))
            if known is None:
                known = self._known[cluster_id, key_id] = self._read(cluster_id, key_id)
            return known

    def rotate(self, cluster_id: str) -> int:
        """Wraps each data key anew that is not under the target's ``encryption_key``; how many those were.

        What they were wrapped with must be among ``former_keys``. Each is replaced as a whole: interrupted, it is run
        again, and does the rest.
        """
        count = 0
        for key_id in list(self._ids(cluster_id)):
            record = self._record(cluster_id, key_id)
            if record["wrapped_with"] != self._wrapping.present.id:
                self._write(cluster_id, key_id, self._unwrapped(cluster_id, key_id, record), record["created_unix_ms"])
                count += 1
        return count

    def _ids(self, cluster_id: str) -> Iterator[str]:
        prefix = layout.data_keys(cluster_id)
        for found in self._store.list(prefix):
            yield found.key.removeprefix(prefix).removesuffix(".json")

    def _make(self, cluster_id: str) -> DataKey:
        key_id, secret = random_id(), os.urandom(KEY_BYTES)
        self._write(cluster_id, key_id, secret, int(time.time() * 1000))
        return DataKey(key_id, secret)

    def _write(self, cluster_id: str, key_id: str, secret: bytes, created_unix_ms: object) -> None:
        name, nonce = layout.data_key(cluster_id, key_id), os.urandom(_NONCE_BYTES)
        wrapped = AESGCM(self._wrapping.present.secret).encrypt(nonce, secret, name.encode())
        record = {
            "format": FORMAT,
            "wrapped_with": self._wrapping.present.id,
            "nonce": base64.b64encode(nonce).decode(),
            "wrapped": base64.b64encode(wrapped).decode(),
            "created_unix_ms": created_unix_ms,
        }
        self._store.put(name, json.dumps(record, indent=1).encode())
        # Everything under it would be lost with it: it counts once it was read back.
        if self._unwrapped(cluster_id, key_id, self._record(cluster_id, key_id)) != secret:
            raise CorruptDataError(
                f"{where(self._target)}: {name} came back as another key than was written: try again"
            )

    def _read(self, cluster_id: str, key_id: str) -> DataKey:
        return DataKey(key_id, self._unwrapped(cluster_id, key_id, self._record(cluster_id, key_id)))

    def _record(self, cluster_id: str, key_id: str) -> dict[str, object]:
        name = layout.data_key(cluster_id, key_id)
        try:
            record = json.loads(self._store.get(name, _MAX_KEY_FILE_BYTES))
            if record["format"] == FORMAT and {"wrapped_with", "nonce", "wrapped", "created_unix_ms"} <= record.keys():
                return dict(record)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise CorruptDataError(
            f"{where(self._target)}: {name} is no data key of format {FORMAT}: it was damaged or changed"
        )

    def _unwrapped(self, cluster_id: str, key_id: str, record: dict[str, object]) -> bytes:
        name = layout.data_key(cluster_id, key_id)
        with_id = str(record["wrapped_with"])
        key = self._wrapping.by_id(with_id)
        if key is None:
            here = ", ".join([self._wrapping.present.id, *(former.id for former in self._wrapping.former)])
            raise PermissionDeniedError(
                f"{where(self._target)} is encrypted with key {with_id}, and this machine has {here}: put the right "
                "one where the target's encryption_key says, or add it to the former keys",
                key_id=with_id,
            )
        try:
            nonce, wrapped = (base64.b64decode(str(record[field]), validate=True) for field in ("nonce", "wrapped"))
            return AESGCM(key.secret).decrypt(nonce, wrapped, name.encode())
        except (InvalidTag, binascii.Error, ValueError):
            raise CorruptDataError(
                f"{where(self._target)}: {name} does not decrypt with key {with_id}: it was damaged or changed"
            ) from None
