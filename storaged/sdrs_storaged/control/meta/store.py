"""The contract of the MetaStore, and the values that go in and out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from sdrs_core.errors import SdrsError

# Keys under this prefix belong to the store. They show up in ``range`` and ``watch`` like any other.
ELECTION_PREFIX = "!election/"
LEADER_KEY = ELECTION_PREFIX + "leader"
TERM_KEY = ELECTION_PREFIX + "term"


class CompactedError(SdrsError):
    """The history asked for is gone: read the state anew with ``range``, then watch from there.

    It never crosses the wire, so it is no part of the tree in ``sdrs_core.errors``.
    """

    reason: ClassVar[str] = "COMPACTED"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it stands. ``version`` counts the puts since it was created; it starts at 1."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int


class Target(Enum):
    """What a Compare looks at. A key that is absent has version 0 and revision 0, and no value equals its value."""

    VALUE = "value"
    VERSION = "version"
    REVISION = "revision"
    PRESENCE = "presence"


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction; build it with the constructors."""

    key: str
    target: Target
    expected: bytes | int

    @classmethod
    def value_is(cls, key: str, value: bytes) -> Compare:
        return cls(key, Target.VALUE, value)

    @classmethod
    def version_is(cls, key: str, version: int) -> Compare:
        return cls(key, Target.VERSION, version)

    @classmethod
    def revision_is(cls, key: str, mod_revision: int) -> Compare:
        return cls(key, Target.REVISION, mod_revision)

    @classmethod
    def absent(cls, key: str) -> Compare:
        return cls(key, Target.PRESENCE, False)

    @classmethod
    def present(cls, key: str) -> Compare:
        return cls(key, Target.PRESENCE, True)


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """All keys that start with ``prefix``. Its batch has one event for each of them, and is held in memory whole."""

    prefix: str


Op = Put | Delete | DeletePrefix


@dataclass(frozen=True, slots=True)
class TxnResult:
    """``revision`` is the transaction's own if it changed something, else the one it was decided at."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Page:
    entries: tuple[Entry, ...]
    revision: int
    more: bool


class EventKind(Enum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """A delete carries the key, the revision of the deletion as ``mod_revision``, version 0 and no value."""

    kind: EventKind
    entry: Entry


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one transaction changed under the watched prefix, in the order of its operations."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """The right to lead. Numbers rise and never repeat, so a node can refuse the lower of two (P14)."""

    number: int
    candidate: str

    def record(self) -> bytes:
        return f"{self.number} {self.candidate}".encode()

    @classmethod
    def parse(cls, record: bytes) -> Term:
        number, _, candidate = record.decode().partition(" ")
        return cls(int(number), candidate)

    def unchanged(self) -> Compare:
        """True only as long as this term still leads: the fence of everything that a leader writes (I3)."""
        return Compare.value_is(LEADER_KEY, self.record())


class MetaStore(ABC):
    """A small, linearizable map of keys to bytes with transactions, gapless watches and terms.

    **Revisions.** Each transaction that changes something gets a revision of its own, higher than all before; one that
    changes nothing gets none. They follow each other without holes unless strangers use the same etcd.
    All operations are linearizable: what starts after an answer sees what was answered, reads too. An answer means
    that the change is durable.

    **Unknown outcomes.** ``txn`` that raises FullError or InvalidArgumentError changed nothing. After UnavailableError
    or a cancelled wait it may or may not have happened: read, or repeat it under compares that hold only once.

    **Limits** are etcd's, so that every implementation can keep them: at most 128 compares and 128 operations in a
    transaction, 1.5 MiB in a request (64 bytes are counted on top of each key and value), keys of 1 to 1,024 bytes of
    UTF-8. A put may not touch a key that another operation of its transaction touches. Breaking one is an
    InvalidArgumentError, before anything is done.

    **Errors.** UnavailableError: the store is out of reach, closed, or failed and takes no more writes.
    FullError: no room; nothing was changed, and the same call works once there is room. CorruptDataError: the stored
    state cannot be trusted.

    **A gapless view** is had in this order: 1. ``range`` through all pages, 2. ``watch`` from the *first* page's
    revision + 1, applying events whose ``mod_revision`` is higher than what is known of their key, 3. on
    CompactedError start over.
    """

    @abstractmethod
    async def txn(self, compare: Sequence[Compare], then: Sequence[Op]) -> TxnResult:
        """Do all of ``then`` as one step if all of ``compare`` hold, else nothing."""

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """The newest state of one key."""

    @abstractmethod
    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """The newest state of the keys under ``prefix`` and strictly after ``after``, in the order of their bytes.

        A page ends at ``limit`` entries or at 4 MiB, whichever comes first (I10); ``more`` tells that there is another
        page, after this one's last key. Each page shows the moment of its own ``revision``.
        """

    async def range_stale(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """As ``range``, but of what one replica has now, which may be the past: for readers that would rather have that
        than nothing while ``range`` is out of reach. Nothing may be decided by it.
        """
        return await self.range(prefix, after=after, limit=limit)

    @abstractmethod
    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[EventBatch, None]:
        """Every batch under ``prefix`` from ``from_revision`` on, in order, without gaps or repeats; then live.

        A slow consumer costs no memory: what it has not taken is read from history later. If history was compacted
        past it meanwhile, it gets CompactedError. Wrap the iterator in ``contextlib.aclosing`` where the loop may
        be left early.
        """

    @abstractmethod
    async def compact(self, revision: int) -> None:
        """Forget the history before ``revision``; watching from it still works. The state itself is untouched.

        Stores also compact by themselves, so nobody may count on old history.
        """

    @abstractmethod
    async def revision(self) -> int:
        """The newest revision."""

    @abstractmethod
    async def campaign(self, candidate: str) -> Term:
        """Wait until nobody leads, then lead, with a higher number than any term before, also across restarts.

        A term ends by ``resign``, by ``close``, or when the store finds that the process behind it is gone.
        """

    @abstractmethod
    async def resign(self, term: Term) -> None:
        """End ``term``; nothing happens if it ended already."""

    @abstractmethod
    async def lost(self, term: Term) -> None:
        """Wait until ``term`` is over: resigned, or found dead while it was only slow, frozen or cut off.

        It tells late what ``Term.unchanged`` tells in time (I3, I8), so it serves to give up a post, never to keep it.
        UnavailableError says nothing about the term: while the store is out of reach nobody knows, ask again.
        """

    def warnings(self) -> Sequence[str]:
        """What an operator should know of the store, in sentences, as of the last look.

        A store whose room is measured by others looks by itself every few seconds while a term of its own leads.
        """
        return ()

    @abstractmethod
    async def close(self) -> None:
        """Answer what was asked so far, end all watches with UnavailableError, let go. Closing twice is harmless."""
