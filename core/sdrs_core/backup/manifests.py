"""What a bucket says of a checkpoint: a commit record, and for each rank what it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from sdrs_core.checkpoints import ContentKind
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_core.packing import parse_packing


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """An object in a bucket. ``size_bytes`` is that of its content: it is larger itself where it is encrypted."""

    key: str
    size_bytes: int
    data_key_id: str = ""


@dataclass(frozen=True, slots=True)
class BackedUpBlob:
    """A blob as nodes store it, compressed if ``packing`` says so; all else is of these bytes.

    ``table`` has the digests of its blocks, whose hash is ``hash``: each block is checked as it comes (P9).
    """

    ordinal: int
    size_bytes: int
    hash: str
    blake3: str
    table: bytes
    place: ObjectPlace
    packing: str = ""

    @property
    def content(self) -> tuple[int, str]:
        """Size and hash of what was saved, however it is stored."""
        packing = parse_packing(self.packing)
        return (packing.raw_bytes, packing.raw_hash) if packing else (self.size_bytes, self.hash)


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """All blobs of a rank, in order; those that the cluster keeps as references are among them."""

    save_id: SaveId
    rank: int
    kind: ContentKind
    size_bytes: int
    content_hash: str
    blobs: tuple[BackedUpBlob, ...]


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A backed-up checkpoint. ``shards`` has the BLAKE3 of each rank's manifest, as it lies in the bucket."""

    cluster_id: str
    save_id: SaveId
    job: JobName
    step: int
    attempt: int
    world_size: int
    pool: PoolName
    kind: ContentKind
    size_bytes: int
    created_unix_ms: int
    committed_unix_ms: int
    backed_up_unix_ms: int
    shards: tuple[str, ...]
    # Under which data key of the bucket the manifests of the ranks are; empty: they are not encrypted.
    data_key_id: str = ""
