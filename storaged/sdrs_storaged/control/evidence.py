"""What nodes hold, gathered for a rebuild (P19): one row a fragment, beside the records that are being staged.

Blocking, as ``Staging`` is; memory does not grow with the number of fragments (I10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from sdrs_core.checkpoints import Holder
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, DiskId, NodeId, SaveId
from sdrs_storaged.control.staging import Staging
from sdrs_storaged.control.witnesses import WitnessedFragment

_SCHEMA = """
CREATE TABLE fragment (
    blob_id TEXT NOT NULL, fragment_index INTEGER NOT NULL, node_id TEXT NOT NULL, disk_id TEXT NOT NULL,
    save_id TEXT NOT NULL, rank INTEGER NOT NULL, ordinal INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
    hash TEXT NOT NULL, created_unix_ms INTEGER NOT NULL, job TEXT NOT NULL, step INTEGER NOT NULL,
    attempt INTEGER NOT NULL, world_size INTEGER NOT NULL, blob_count INTEGER NOT NULL, kind TEXT NOT NULL,
    pool TEXT NOT NULL, code TEXT NOT NULL, source_size_bytes INTEGER NOT NULL, source_hash TEXT NOT NULL,
    save_pool TEXT NOT NULL, packing TEXT NOT NULL,
    PRIMARY KEY (blob_id, fragment_index, node_id)
) WITHOUT ROWID
"""
_COLUMNS = (
    "blob_id, fragment_index, node_id, disk_id, save_id, rank, ordinal, size_bytes, hash, created_unix_ms, job, step, "
    "attempt, world_size, blob_count, kind, pool, code, source_size_bytes, source_hash, save_pool, "
    "packing"
)


class Row(NamedTuple):
    blob_id: BlobId
    fragment_index: int
    node_id: NodeId
    disk_id: DiskId
    save_id: SaveId
    rank: int
    ordinal: int
    size_bytes: int
    hash: str
    created_unix_ms: int
    job: str
    step: int
    attempt: int
    world_size: int
    blob_count: int
    kind: str
    pool: str
    code: str
    source_size_bytes: int
    source_hash: str
    save_pool: str
    packing: str

    @property
    def holder(self) -> Holder:
        return Holder(self.node_id, self.disk_id, self.fragment_index, self.hash)

    @property
    def content(self) -> tuple[int, str]:
        """Of the whole blob, whatever part of it this is."""
        return self.source_size_bytes, self.source_hash

    @property
    def own_pool(self) -> str:
        """The checkpoint's."""
        return self.save_pool or self.pool

    @property
    def tells_all(self) -> bool:
        """False for a file of an earlier version: by its fragments nobody can say whether the save is whole."""
        return bool(self.world_size and self.blob_count and self.kind and self.pool)


class Evidence:
    def __init__(self, staging: Staging) -> None:
        self._database = staging.database
        self._database.execute(_SCHEMA)
        self._database.execute("CREATE INDEX by_save ON fragment (save_id, rank, ordinal, blob_id, node_id)")

    def add(self, node_id: NodeId, fragments: Iterable[WitnessedFragment]) -> None:
        rows = [
            Row(
                f.blob_id,
                f.fragment_index,
                node_id,
                f.disk_id,
                f.save_id,
                f.rank,
                f.ordinal,
                f.size_bytes,
                f.hash,
                f.created_unix_ms,
                f.job,
                f.step,
                f.attempt,
                f.world_size,
                f.blob_count,
                f.kind,
                f.pool,
                f.code,
                f.source_size_bytes or f.size_bytes,
                f.source_hash or f.hash,
                f.save_pool,
                f.packing,
            )
            for f in fragments
        ]
        marks = ", ".join("?" * len(Row._fields))
        self._database.execute("BEGIN")
        self._database.executemany(f"INSERT OR REPLACE INTO fragment VALUES ({marks})", rows)
        self._database.execute("COMMIT")

    def of_blob(self, blob_id: BlobId) -> list[Row]:
        return self._rows("blob_id = ? ORDER BY fragment_index, node_id", blob_id)

    def save_ids(self) -> Iterator[SaveId]:
        after = ""
        query = "SELECT MIN(save_id) FROM fragment WHERE save_id > ?"
        while (found := self._database.execute(query, (after,)).fetchone()[0]) is not None:
            yield SaveId(found)
            after = found

    def ranks(self, save_id: SaveId) -> Iterator[tuple[int, list[Row]]]:
        """The fragments of a save, a rank at a time."""
        query = f"SELECT {_COLUMNS} FROM fragment WHERE save_id = ? ORDER BY rank, ordinal, blob_id, node_id"
        rows = map(Row._make, self._database.execute(query, (save_id,)))
        for rank, found in groupby(rows, key=lambda row: row.rank):
            yield rank, list(found)

    def of_rank(self, save_id: SaveId, rank: int) -> list[Row]:
        return self._rows("save_id = ? AND rank = ? ORDER BY ordinal, blob_id, node_id", save_id, rank)

    def codes(self, pool: str) -> list[str]:
        """The erasure codes that a pool's blobs are in, the most frequent first."""
        query = (
            "SELECT code FROM fragment WHERE pool = ? AND code != ? GROUP BY code "
            "ORDER BY COUNT(DISTINCT blob_id) DESC, code"
        )
        return [row[0] for row in self._database.execute(query, (pool, MIRROR))]

    def mirrors(self) -> list[tuple[str, str]]:
        """(a pool, the one that mirrors it), as fragments tell."""
        query = "SELECT DISTINCT save_pool, pool FROM fragment WHERE save_pool != '' ORDER BY save_pool, pool"
        return [(row[0], row[1]) for row in self._database.execute(query)]

    def blob_bytes(self, pool: str, mirrored_in: str = "") -> int:
        """Of a pool's blobs, or of those that are mirrored in another one."""
        where = "save_pool = ? AND pool = ?" if mirrored_in else "save_pool = '' AND pool = ?"
        sizes = f"SELECT MAX(source_size_bytes) AS size FROM fragment WHERE {where} GROUP BY blob_id"
        values = (pool, mirrored_in) if mirrored_in else (pool,)
        return int(self._database.execute(f"SELECT SUM(size) FROM ({sizes})", values).fetchone()[0] or 0)

    def copies(self, pool: str) -> int:
        """Of the most blobs of a pool that has whole copies."""
        query = (
            "SELECT copies FROM (SELECT COUNT(*) copies FROM fragment WHERE pool = ? GROUP BY blob_id) "
            "GROUP BY copies ORDER BY COUNT(*) DESC LIMIT 1"
        )
        found = self._database.execute(query, (pool,)).fetchone()
        return int(found[0]) if found else 1

    def _rows(self, condition: str, *values: object) -> list[Row]:
        query = f"SELECT {_COLUMNS} FROM fragment WHERE {condition}"
        return [Row._make(row) for row in self._database.execute(query, values)]
