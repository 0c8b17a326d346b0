"""What the generations of steps hold: their names, and their bytes, each block verified (I5).

A generation never changes, so its names are read once and kept; which one is a step's newest is asked every time.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sdrs.cluster import Cluster
from sdrs.fsspec.failures import os_errors
from sdrs.fsspec.places import Place
from sdrs.fsspec.trees import FILE_MODE, Node, Parts, Tree, apart, merge
from sdrs.process import Process
from sdrs.restore.shard_reader import ShardReader, shard_record
from sdrs.restore.targets import BufferedTarget, ByteCount
from sdrs.state import decode_files_index
from sdrs_core.checkpoints import Blob, ContentKind, Save, SaveState
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.ids import SaveId
from sdrs_core.unchanged import Identity
from sdrs_proto.v1.control_pb2 import ListShardsResponse

# I10: names of a few generations, not of all that were ever looked at.
MAX_KEPT = 8
# A file that is carried into a new generation is read in pieces of this size.
PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes of one blob of a generation, whose files begin at ``data_start``."""

    shards: Shards
    rank: int
    blob: int
    start: int
    size_bytes: int
    data_start: int = 0

    @property
    def whole(self) -> StoredBytes:
        """All of its blob."""
        return replace(self, start=0, size_bytes=self.shards.blobs(self.rank)[self.blob].raw_bytes)

    @property
    def identity(self) -> Identity:
        """The blob's; without a BLAKE3 where none was recorded."""
        blob = self.shards.blobs(self.rank)[self.blob]
        return blob.raw_hash, blob.blake3

    @property
    def home(self) -> SaveId:
        """The save that stores the blob."""
        return self.shards.home(self.rank, self.blob)

    def read(self, start: int, end: int) -> bytearray:
        end = min(end, self.size_bytes)
        return self.shards.read(self.rank, self.blob, self.start + start, self.start + max(start, end))

    def segments(self) -> Iterator[memoryview]:
        for start in range(0, self.size_bytes, PIECE_BYTES):
            yield memoryview(self.read(start, start + PIECE_BYTES))


class Shards:
    """The shards of one generation, for one process."""

    def __init__(self, process: Process, save: Save) -> None:
        self.process = process
        self.save = save
        self._records: dict[int, ListShardsResponse] = {}
        self._readers: dict[int, ShardReader] = {}
        # The block that was read last, and which one it is: (rank, blob, number).
        self._last: tuple[tuple[int, int, int], bytearray] = (-1, -1, -1), bytearray()

    def blobs(self, rank: int) -> tuple[Blob, ...]:
        return self._reader(rank).shard.blobs

    def home(self, rank: int, ordinal: int) -> SaveId:
        references = self._reader(rank).shard.references
        return next((ref.home.save_id for ref in references if ref.ordinal == ordinal), self.save.save_id)

    def read(self, rank: int, ordinal: int, start: int, end: int) -> bytearray:
        """These bytes of a blob, verified."""
        number = start // BLOCK_BYTES
        if end > (number + 1) * BLOCK_BYTES:
            return self._fetch(rank, ordinal, start, end)
        # Whole blocks are read and verified in any case, and small files lie side by side: the last one is kept.
        key, block = self._last
        if key != (rank, ordinal, number):
            first = number * BLOCK_BYTES
            last = min(first + BLOCK_BYTES, self.blobs(rank)[ordinal].raw_bytes)
            key, block = self._last = (rank, ordinal, number), self._fetch(rank, ordinal, first, last)
        return block[start - number * BLOCK_BYTES : end - number * BLOCK_BYTES]

    def _fetch(self, rank: int, ordinal: int, start: int, end: int) -> bytearray:
        reader = self._reader(rank)
        wanted = bytearray(end - start)

        def take(blob: Blob, position: int, verified: memoryview) -> None:
            first, last = max(start, position), min(end, position + len(verified))
            if first < last:  # of whole blocks, what is wanted
                wanted[first - start : last - start] = verified[first - position : last - position]

        try:
            reader.read_range(reader.shard.blobs[ordinal], start, end, BufferedTarget(take))
        except BaseException:
            self._readers.pop(rank, None)  # one that failed has stopped for good
            raise
        return wanted

    def _reader(self, rank: int) -> ShardReader:
        reader = self._readers.get(rank)
        if reader is None:
            if rank not in self._records:
                self._records[rank] = shard_record(self.process, self.save, rank, ByteCount())
            reader = ShardReader(self.process, self.save, self._records[rank], ByteCount(None, 0))
            self._readers[rank] = reader
        return reader


@dataclass(frozen=True, slots=True)
class Generation:
    save: Save
    tree: Tree


class Generations:
    """May be used from several threads and after a fork: no lock is held, and nothing of another process is used."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, tuple[Process, Generation]] = {}

    def find(self, job: str, step: int) -> Save:
        """The newest generation of a step; FileNotFoundError if it has none."""
        path = Place(job, step).path
        with os_errors(path):
            save = self._cluster.checkpoints(job).get(step)
        if save.state is not SaveState.COMMITTED:
            # The catalog also names one that a resume passed by; lists do not, and files must agree with lists.
            raise FileNotFoundError(errno.ENOENT, "the step was set aside", path)
        return save

    def open(self, save: Save) -> Generation:
        """Its names; every rank's, as ``merge`` puts them together."""
        process = self._cluster.process()
        kept = self._kept.get(save.save_id)
        if kept and kept[0] is process:
            return kept[1]
        shards = Shards(process, save)
        with os_errors(Place(save.job, save.step).path):
            ranks = [_tree_of(shards, rank) for rank in range(save.world_size)]
        generation = Generation(save, merge(ranks) if save.kind is ContentKind.FILES else apart(ranks))
        while len(self._kept) >= MAX_KEPT:
            self._kept.pop(next(iter(self._kept), ""), None)
        self._kept[save.save_id] = process, generation
        return generation


def _tree_of(shards: Shards, rank: int) -> Tree:
    if shards.save.kind is ContentKind.STATE:
        return _blobs_of_state(shards, rank)
    (first, *_) = blobs = shards.blobs(rank)
    # The index lies in the first blob, which is kept small for that; what else is in it is let go again.
    index = decode_files_index(shards.read(rank, 0, 0, first.raw_bytes))
    assert index.blob_count == len(blobs)
    tree: dict[Parts, Node] = {}
    for entry in index.entries:
        content = None
        if entry.kind == "file":
            data_start = index.data_starts[entry.blob]
            content = StoredBytes(
                shards, rank, entry.blob, data_start + entry.offset, entry.size_bytes, data_start=data_start
            )
        tree[entry.parts] = Node(entry.kind, entry.mode, entry.mtime_ns, content, entry.target)
    return tree


def _blobs_of_state(shards: Shards, rank: int) -> Tree:
    """A state as it is stored, and as ``sdrs ckpt pull`` gives it: safetensors files, one for each blob."""
    mtime_ns = shards.save.committed_unix_ms * 1_000_000
    return {
        (f"blob-{blob.ordinal:04}.safetensors",): Node(
            "file", FILE_MODE, mtime_ns, StoredBytes(shards, rank, blob.ordinal, 0, blob.raw_bytes)
        )
        for blob in shards.blobs(rank)
    }
