"""Where backups go, and when: values that the catalog keeps. No secret is ever among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from sdrs_core.ids import PoolName

TargetName = NewType("TargetName", str)


@dataclass(frozen=True, slots=True)
class Target:
    """A prefix in a bucket. ``credentials`` and keys say where each machine finds them, never what they are."""

    name: TargetName
    bucket: str
    prefix: str = ""
    # Empty: the store's own default, AWS.
    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    ca_file: str = ""
    credentials: str = "chain"
    encryption_key: str = ""
    former_keys: tuple[str, ...] = ()
    max_bytes_per_second: int = 0
    concurrency: int = 4
    # The cluster whose backups these are, if not this one: they are only read (P25).
    source_cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """Which backups stay in the bucket; zero turns a rule off, and with no rule on everything stays."""

    last: int = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """Of one pool, or of one job in it. With no interval, cron line or ``on_commit`` it is run on demand only."""

    target: TargetName
    pool: PoolName
    job: str = ""
    every_seconds: int = 0
    cron: str = ""
    on_commit: bool = False
    keep: Keep = Keep()
    # Kept in the backup only once it is so old; 0: never.
    evict_after_seconds: int = 0
