"""What a checkpoint is made of, as immutable values: saves, shards, blobs, holders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import xxhash

from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, DiskId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_core.packing import parse_packing


class SaveState(StrEnum):
    PENDING = "pending"
    COMMITTED = "committed"
    SET_ASIDE = "set_aside"
    ABORTED = "aborted"
    DELETED = "deleted"
    CONDEMNED = "condemned"
    # Deleted, but later checkpoints refer to blobs of it: nobody sees it any more, and all of it is kept.
    RETIRED = "retired"

    @property
    def is_readable(self) -> bool:
        return self in (SaveState.COMMITTED, SaveState.SET_ASIDE)

    @property
    def is_kept(self) -> bool:
        """Whether its blobs are looked after: repaired, scrubbed, converted, moved off what leaves."""
        return self.is_readable or self is SaveState.RETIRED


class ContentKind(StrEnum):
    STATE = "state"
    FILES = "files"


class Verdict(StrEnum):
    """What a node finds when it reads one of its fragments again."""

    OK = "ok"
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Holder:
    """One fragment on one disk of one node (P2). ``dropping`` no longer counts (P14)."""

    node_id: NodeId
    disk_id: DiskId
    fragment_index: int
    fragment_hash: str
    dropping: bool = False


@dataclass(frozen=True, slots=True)
class Blob:
    """``size_bytes`` and ``hash`` are of what is stored; ``raw_bytes`` and ``raw_hash`` of what was saved."""

    id: BlobId
    ordinal: int
    size_bytes: int
    hash: str
    code: str = MIRROR
    holders: tuple[Holder, ...] = ()
    # Of what was saved, by which later saves recognise it (P23); empty: it was not computed.
    blake3: str = ""
    # How it is stored compressed, and what it is then (``core/packing.py``); empty: as it was saved.
    packing: str = ""

    @property
    def raw_bytes(self) -> int:
        packing = parse_packing(self.packing)
        return packing.raw_bytes if packing else self.size_bytes

    @property
    def raw_hash(self) -> str:
        packing = parse_packing(self.packing)
        return packing.raw_hash if packing else self.hash

    @property
    def as_saved(self) -> Blob:
        """What it would be if it were not compressed."""
        return replace(self, size_bytes=self.raw_bytes, hash=self.raw_hash, packing="")


@dataclass(frozen=True, slots=True)
class Home:
    """Where a blob that is referred to is stored: in the shard of this save that the same rank has, at this place."""

    save_id: SaveId
    step: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A blob of a shard that an earlier save of the job stores. It names the blob's true home, never another reference,
    and no holders: these are on one record only. Size and hashes are of what was saved, however the home stores it.
    """

    ordinal: int
    size_bytes: int
    hash: str
    blake3: str
    home: Home


@dataclass(frozen=True, slots=True)
class Shard:
    save_id: SaveId
    rank: int
    kind: ContentKind
    size_bytes: int
    content_hash: str
    blobs: tuple[Blob, ...]
    # The same blobs once more, in the pool that mirrors this one; reported apart (P4), and perhaps not all of them yet.
    mirrors: tuple[Blob, ...] = ()
    # The rest of its blobs: unchanged since an earlier save, and stored there.
    references: tuple[Reference, ...] = ()
    # Of a save that is kept in the backup only: what has no holders is there.
    evicted: bool = False

    @property
    def blob_count(self) -> int:
        """Of a shard as it is sealed and recorded: what it refers to is not among its blobs."""
        return len(self.blobs) + len(self.references)

    @property
    def referenced_bytes(self) -> int:
        return sum(reference.size_bytes for reference in self.references)

    @property
    def spared_bytes(self) -> int:
        """Of what its own blobs were saved as, what need not be stored because they are compressed."""
        return sum(blob.raw_bytes - blob.size_bytes for blob in self.blobs)

    @property
    def all_blobs(self) -> tuple[Blob, ...]:
        """Whatever has fragments somewhere."""
        return (*self.blobs, *self.mirrors)

    def is_in_backup_only(self, blob: Blob) -> bool:
        """As opposed to one that nobody has any more, which a rebuild may find (I4)."""
        return self.evicted and not blob.holders


@dataclass(frozen=True, slots=True)
class Save:
    """One generation of a job's state. It is a checkpoint once ``state`` is committed (I2)."""

    save_id: SaveId
    job: JobName
    step: int
    attempt: int
    world_size: int
    pool: PoolName
    kind: ContentKind
    state: SaveState
    level: Level
    size_bytes: int
    created_unix_ms: int
    committed_unix_ms: int = 0
    held: bool = False
    damage: str = ""
    note: str = ""
    ended_unix_ms: int = 0
    before_deletion: SaveState | None = None
    layout: int = 0
    # Some blob has less redundancy than its pool asks for; repair clears it.
    degraded: bool = False
    # The pool that has a whole mirror of it; empty: none has.
    mirror_pool: str = ""
    # Which restores failed on its bytes, up to the number that marks it as damaged; and why the last one did.
    failed_restores: tuple[str, ...] = ()
    restore_failure: str = ""
    # Of ``size_bytes``, what earlier saves store; and which saves these are.
    referenced_bytes: int = 0
    homes: tuple[SaveId, ...] = ()
    # Of the rest, what need not be stored because it is compressed.
    spared_bytes: int = 0
    # How many saves have begun to refer to this one. It only rises: each new one changes this record, so that whoever
    # lets the save go has either seen it or is refused (P13).
    referrals: int = 0
    # Of a retired one: what nobody referred to was let go, and who was asked then; empty: it is whole.
    trimmed: str = ""
    # The target that has it, of one that is kept in the backup only; empty: the cluster has it. While it is set nothing
    # that nodes have of it counts, and nobody refers to it.
    evicted: str = ""
    # When it was last brought back from there.
    recalled_unix_ms: int = 0
    # Of one that came out of a backup, CLUSTER/SAVE: whose it was, and under which id.
    origin: str = ""

    @property
    def title(self) -> str:
        return f"{self.job} step {self.step}"

    @property
    def stored_bytes(self) -> int:
        """What it stores itself."""
        return 0 if self.evicted else self.size_bytes - self.referenced_bytes - self.spared_bytes


def content_of(parts: Iterable[Blob | Reference]) -> str:
    """The content hash of a shard of these, however each of them is stored."""
    ordered = sorted(parts, key=lambda part: part.ordinal)
    return content_hash(
        (part.raw_bytes, part.raw_hash) if isinstance(part, Blob) else (part.size_bytes, part.hash) for part in ordered
    )


def content_hash(blobs: Iterable[tuple[int, str]]) -> str:
    """Tells whether a rank saves the same bytes again. ``blobs``: (size, hash) of what is saved, in order.

    Only a writer's own repeat is compared with it; no bytes are ever taken from elsewhere because of it (P23).
    """
    hasher = xxhash.xxh3_128()
    for size_bytes, blob in blobs:
        hasher.update(f"{size_bytes}:{blob};".encode())
    return hasher.hexdigest()


def newest_by_step(saves: Iterable[Save]) -> list[Save]:
    """Of ``saves`` ordered newest first, what a reader sees: for each step the committed one of the highest attempt
    (P1).

    An older attempt's generation of the same step is set aside by that alone: the commit needs to flip one key only
    (I2).
    """
    seen: set[int] = set()
    visible = []
    for save in saves:
        if save.state is SaveState.COMMITTED and save.step not in seen:
            seen.add(save.step)
            visible.append(save)
    return visible
