"""What nodes keep and tell of the catalog: the other side of ``rpc.witness_client``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from sdrs_core.cluster import Authority, Node
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, ClusterId, DiskId, SaveId
from sdrs_core.snapshots import SnapshotId


@dataclass(frozen=True, slots=True)
class Testimony:
    """Who a node is, whom it obeys, and which copies of the catalog it keeps."""

    node: Node
    cluster_id: ClusterId
    authority: Authority
    snapshots: tuple[SnapshotId, ...]


@dataclass(frozen=True, slots=True)
class WitnessedFragment:
    """One fragment and what its header says; 0 and "" where a file of an earlier version does not tell."""

    blob_id: BlobId
    fragment_index: int
    save_id: SaveId
    disk_id: DiskId
    size_bytes: int
    hash: str
    created_unix_ms: int
    job: str
    step: int
    attempt: int
    rank: int
    ordinal: int
    world_size: int
    blob_count: int
    kind: str
    pool: str
    code: str = MIRROR
    # Of the blob that it is a fragment of; of a whole copy the same as above.
    source_size_bytes: int = 0
    source_hash: str = ""
    # Of a mirror in another pool, which ``pool`` names: the checkpoint's own pool.
    save_pool: str = ""
    # How the blob is packed; empty: it is stored as it was saved.
    packing: str = ""


class Witnesses(Protocol):
    async def store_snapshot(self, node: Node, snapshot: SnapshotId, pieces: AsyncIterator[bytes]) -> None: ...

    async def ask(self, address: str) -> Testimony: ...

    def read_snapshot(self, address: str, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        """Its bytes as they are stored; the caller compares them with the hash."""
        ...

    async def list_fragments(self, address: str, after: str) -> tuple[list[WitnessedFragment], str]: ...
