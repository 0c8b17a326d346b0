"""Manifests as JSON, in the format of docs/backup-format.md. What cannot be read is a CorruptDataError, with why."""

from __future__ import annotations

from sdrs_core.backup.manifests import CommitRecord, ShardManifest

FORMAT = 1


def commit_to_json(record: CommitRecord) -> bytes:
    raise NotImplementedError


def commit_from_json(data: bytes, where: str) -> CommitRecord:
    raise NotImplementedError


def shard_to_json(manifest: ShardManifest) -> bytes:
    raise NotImplementedError


def shard_from_json(data: bytes, where: str) -> ShardManifest:
    raise NotImplementedError
