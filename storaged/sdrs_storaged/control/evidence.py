"""What nodes hold, gathered for a rebuild (P19): one row a fragment, beside the records that are being staged.

Blocking, as ``Staging`` is; memory does not grow with the number of fragments (I10).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from sdrs_core.checkpoints import Blob, ContentKind, Holder, Shard, content_hash
from sdrs_core.ids import BlobId, DiskId, NodeId, SaveId
from sdrs_storaged.control.staging import Staging
from sdrs_storaged.control.witnesses import WitnessedFragment

_SCHEMA = """
CREATE TABLE fragment (
    blob_id TEXT NOT NULL, fragment_index INTEGER NOT NULL, node_id TEXT NOT NULL, disk_id TEXT NOT NULL,
    save_id TEXT NOT NULL, rank INTEGER NOT NULL, ordinal INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
    hash TEXT NOT NULL, created_unix_ms INTEGER NOT NULL, job TEXT NOT NULL, step INTEGER NOT NULL,
    attempt INTEGER NOT NULL, world_size INTEGER NOT NULL, blob_count INTEGER NOT NULL, kind TEXT NOT NULL,
    pool TEXT NOT NULL,
    PRIMARY KEY (blob_id, fragment_index, node_id)
) WITHOUT ROWID
"""
_COLUMNS = (
    "blob_id, fragment_index, node_id, disk_id, save_id, rank, ordinal, size_bytes, hash, created_unix_ms, job, step, "
    "attempt, world_size, blob_count, kind, pool"
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

    @property
    def holder(self) -> Holder:
        return Holder(self.node_id, self.disk_id, self.fragment_index, self.hash)

    @property
    def content(self) -> tuple[int, str]:
        return self.size_bytes, self.hash

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

    def _rows(self, condition: str, *values: object) -> list[Row]:
        query = f"SELECT {_COLUMNS} FROM fragment WHERE {condition}"
        return [Row._make(row) for row in self._database.execute(query, values)]


def assemble(save_id: SaveId, rank: int, rows: Sequence[Row]) -> tuple[Shard, str]:
    """A rank's shard as its fragments tell it, and what is wrong with that; "": it is whole, and its copies agree."""
    troubles: list[str] = []
    by_ordinal: defaultdict[int, defaultdict[BlobId, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_ordinal[row.ordinal][row.blob_id].append(row)
    blobs = []
    for ordinal in sorted(by_ordinal):
        candidates = by_ordinal[ordinal]
        for blob_id, copies in candidates.items():
            if len({row.content for row in copies}) > 1:
                nodes = ", ".join(row.node_id for row in copies)
                troubles.append(f"blob {blob_id} of rank {rank} is not the same on its nodes {nodes}")
        kept = list(candidates.values())
        if len({row.content for copies in kept for row in copies}) == 1:
            # A rank sent its bytes again: the blob with most copies will do.
            kept = [max(kept, key=lambda copies: (len(copies), copies[0].blob_id))]
        elif len(kept) > 1:
            # All stay on record: nobody can say which is wrong, so none is nobody's (I7).
            troubles.append(f"rank {rank} has different blobs in place {ordinal}")
        for copies in kept:
            holders = tuple(row.holder for row in copies)
            blobs.append(Blob(copies[0].blob_id, ordinal, *copies[0].content, holders=holders))
    counts = {row.blob_count for row in rows}
    if len(counts) > 1:
        troubles.append(f"the blobs of rank {rank} do not agree about how many there are")
    elif [blob.ordinal for blob in blobs] != list(range(*counts)):
        troubles.append(f"rank {rank} has {len(blobs)} of {max(counts)} blobs")
    shard = Shard(
        save_id,
        rank,
        ContentKind(rows[0].kind or ContentKind.STATE),
        sum(blob.size_bytes for blob in blobs),
        content_hash((blob.size_bytes, blob.hash) for blob in blobs),
        tuple(blobs),
    )
    return shard, "; ".join(troubles)
