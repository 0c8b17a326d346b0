"""Fragment stores for tests: real files, small blobs with known content."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sdrs_core import checksums
from sdrs_core.ids import BlobId, ClusterId, JobName, NodeId, SaveId, random_id
from sdrs_storaged.store.capacity import Thresholds
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentOrigin, StoredFragment

CLUSTER = ClusterId("c" * 32)
NODE = NodeId("node-1")
# The steps of a write, in order: where a node may die.
WRITE_POINTS = [
    "fragment.created",
    "fragment.write",
    "fragment.fsync",
    "fragment.synced",
    "inventory.write",
    "fragment.renamed",
    "fragment.folder_fsync",
    "fragment.done",
]
# The steps of a replicated write at its primary, in order.
REPLICATION_POINTS = [
    "relay.opened",
    "relay.block",
    "relay.finished",
    "seal.confirmed",
    "seal.registered",
]
# And of a coded one.
CODING_POINTS = [
    "relay.opened",
    "relay.block",
    "stripe.encoded",
    "coded.cut",
    "relay.finished",
    "coded.settled",
    "seal.confirmed",
    "seal.registered",
]


def origin(blob_id: str | None = None, index: int = 0) -> FragmentOrigin:
    return FragmentOrigin(
        blob_id=BlobId(blob_id or random_id()),
        save_id=SaveId("5" * 32),
        job=JobName("llm-7b"),
        step=1000,
        attempt=3,
        rank=7,
        ordinal=2,
        fragment_index=index,
    )


def payload(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def table_of(data: bytes) -> bytes:
    return b"".join(checksums.digest(data[start:end]) for start, end in checksums.block_spans(0, len(data)))


def hash_of(data: bytes) -> str:
    return checksums.blob_hash(len(data), table_of(data))


def put(store: FragmentStore, data: bytes, blob: FragmentOrigin | None = None, hint: bool = True) -> StoredFragment:
    with store.create(blob or origin(), len(data) if hint else None) as writer:
        for start, end in checksums.block_spans(0, len(data)):
            writer.append(data[start:end], checksums.digest(data[start:end]))
        return writer.finish(len(data), hash_of(data))


def get(store: FragmentStore, stored: StoredFragment) -> bytes:
    with store.open(stored.blob_id, stored.fragment_index) as reader:
        assert reader.fragment_hash == stored.fragment_hash
        reader.verify()
        return b"".join(bytes(piece) for piece in reader.pieces(0, reader.size_bytes))


def open_disk(folder: Path, capacity_bytes: int | None = None, thresholds: Thresholds | None = None) -> Disk:
    return Disk.open(folder, cluster_id=CLUSTER, node_id=NODE, capacity_bytes=capacity_bytes, thresholds=thresholds)


@contextmanager
def opened(*folders: Path, capacity_bytes: int | None = None) -> Iterator[FragmentStore]:
    store = FragmentStore([open_disk(folder, capacity_bytes) for folder in folders], time.time)
    try:
        yield store
    finally:
        store.close()


def path_of(folder: Path, stored: StoredFragment) -> Path:
    return folder / "fragments" / stored.blob_id[:2] / f"{stored.blob_id}.{stored.fragment_index}"


def flip_bit(path: Path, offset: int) -> None:
    """At ``offset`` from the beginning, or from the end if it is negative."""
    fd = os.open(path, os.O_RDWR)
    try:
        where = offset if offset >= 0 else os.fstat(fd).st_size + offset
        byte = os.pread(fd, 1, where)
        os.pwrite(fd, bytes([byte[0] ^ 0x10]), where)
        os.fsync(fd)
    finally:
        os.close(fd)


def all_keys(store: FragmentStore, page: int = 2) -> list[str]:
    """Every blob id, by pages."""
    found: list[str] = []
    rows = store.list(None, page)
    while rows:
        found += [row.blob_id for row in rows]
        rows = store.list(rows[-1].key, page)
    return found
