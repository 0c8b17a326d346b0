"""Manifests as JSON, in the format of docs/backup-format.md. What cannot be read is a CorruptDataError, with why.

Each has a checksum of itself: a commit record is found by listing, and nothing else says what it ought to be.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import xxhash

from sdrs_core.backup.manifests import BackedUpBlob, CommitRecord, ObjectPlace, ShardManifest
from sdrs_core.checkpoints import ContentKind
from sdrs_core.errors import CorruptDataError, UnsupportedError
from sdrs_core.ids import JobName, PoolName, SaveId

FORMAT = 1


def commit_to_json(record: CommitRecord) -> bytes:
    return _to_json(
        {
            "cluster": record.cluster_id,
            "save": record.save_id,
            "job": record.job,
            "step": record.step,
            "attempt": record.attempt,
            "world_size": record.world_size,
            "pool": record.pool,
            "kind": record.kind.value,
            "size_bytes": record.size_bytes,
            "created_unix_ms": record.created_unix_ms,
            "committed_unix_ms": record.committed_unix_ms,
            "backed_up_unix_ms": record.backed_up_unix_ms,
            "data_key": record.data_key_id,
            "shards": list(record.shards),
        }
    )


def commit_from_json(data: bytes, where: str) -> CommitRecord:
    """``where`` is named if it is not one."""
    values = _from_json(data, where)
    try:
        record = CommitRecord(
            cluster_id=_text(values["cluster"]),
            save_id=SaveId(_text(values["save"])),
            job=JobName(_text(values["job"])),
            step=_count(values["step"]),
            attempt=_count(values["attempt"]),
            world_size=_count(values["world_size"]),
            pool=PoolName(_text(values["pool"])),
            kind=ContentKind(values["kind"]),
            size_bytes=_count(values["size_bytes"]),
            created_unix_ms=_count(values["created_unix_ms"]),
            committed_unix_ms=_count(values["committed_unix_ms"]),
            backed_up_unix_ms=_count(values["backed_up_unix_ms"]),
            data_key_id=_text(values["data_key"]),
            shards=tuple(map(_text, values["shards"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(where, error) from error
    if len(record.shards) != record.world_size:
        raise _malformed(where, ValueError(f"{len(record.shards)} shards of {record.world_size} ranks"))
    return record


def shard_to_json(manifest: ShardManifest) -> bytes:
    return _to_json(
        {
            "save": manifest.save_id,
            "rank": manifest.rank,
            "kind": manifest.kind.value,
            "size_bytes": manifest.size_bytes,
            "content_hash": manifest.content_hash,
            "blobs": [
                {
                    "ordinal": blob.ordinal,
                    "size_bytes": blob.size_bytes,
                    "hash": blob.hash,
                    "blake3": blob.blake3,
                    "object": blob.place.key,
                    "object_size_bytes": blob.place.size_bytes,
                    "data_key": blob.place.data_key_id,
                    "table": base64.b64encode(blob.table).decode(),
                    "packing": blob.packing,
                }
                for blob in manifest.blobs
            ],
        }
    )


def shard_from_json(data: bytes, where: str) -> ShardManifest:
    """``where`` is named if it is not one."""
    values = _from_json(data, where)
    try:
        return ShardManifest(
            save_id=SaveId(_text(values["save"])),
            rank=_count(values["rank"]),
            kind=ContentKind(values["kind"]),
            size_bytes=_count(values["size_bytes"]),
            content_hash=_text(values["content_hash"]),
            blobs=tuple(map(_blob, values["blobs"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(where, error) from error


def _blob(values: dict[str, Any]) -> BackedUpBlob:
    return BackedUpBlob(
        ordinal=_count(values["ordinal"]),
        size_bytes=_count(values["size_bytes"]),
        hash=_text(values["hash"]),
        blake3=_text(values["blake3"]),
        table=base64.b64decode(_text(values["table"]), validate=True),
        place=ObjectPlace(_text(values["object"]), _count(values["object_size_bytes"]), _text(values["data_key"])),
        packing=_text(values["packing"]),
    )


def _to_json(values: dict[str, Any]) -> bytes:
    values = {"format": FORMAT, **values}
    return json.dumps({**values, "xxh3": _checksum(values)}, indent=1).encode()


def _from_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        values = json.loads(data)
        found, checksum = values["format"], values.pop("xxh3")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _malformed(where, error) from error
    if found != FORMAT:
        raise UnsupportedError(f"{where} is of format {found}, this version reads {FORMAT}: use a newer one")
    if checksum != _checksum(values):
        raise CorruptDataError(f"{where} does not match its own checksum: it was damaged or changed")
    return dict(values)


def _checksum(values: dict[str, Any]) -> str:
    """Over the values without spaces and with their names in order, however the file is indented."""
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def _malformed(where: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(f"{where} is not a manifest: {type(error).__name__} {error}; it was damaged or changed")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value
