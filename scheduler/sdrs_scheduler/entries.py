"""What is on record beside jobs, attempts and queues; and how records are written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from sdrs_core.errors import CorruptDataError
from sdrs_scheduler.jobs.job import JobId
from sdrs_scheduler.jobs.spec import FailureClass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A record with the revision that a change of it must compare."""

    key: str
    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class Strike:
    """A failure that a node was blamed for."""

    unix_ms: int
    failure: FailureClass
    job_id: JobId
    sentence: str


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as the scheduler last saw it, and what it holds against it."""

    name: str
    executor: str = ""
    gpus: int = 0
    gpu_type: str = ""
    groups: tuple[str, ...] = ()
    is_up: bool = True
    problem: str = ""
    bad_gpus: Mapping[int, str] = field(default_factory=dict)
    strikes: tuple[Strike, ...] = ()
    # Why the scheduler gives it no more work, until somebody clears it; empty: it does.
    cordoned_because: str = ""
    cordoned_unix_ms: int = 0
    # The storage was told of the cordon, and whether the node is one of its own: opened there, it is open here.
    is_told: bool = False
    is_storage_node: bool = False


@dataclass(frozen=True, slots=True)
class HistoryClaim:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class Term:
    """Who decides. A number never returns."""

    number: int
    holder: str
    taken_unix_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Renewed by who decides. Another one takes over when it has seen no renewal for ``seconds`` by its own clock."""

    term: int
    holder: str
    renewed_unix_ms: int
    seconds: float

    def is_fresh(self, now_unix_ms: int) -> bool:
        """For people: by the clocks of two machines."""
        return now_unix_ms - self.renewed_unix_ms < self.seconds * 1000


@dataclass(frozen=True, slots=True)
class Usage:
    """GPU-seconds, decayed until ``unix_ms``."""

    unix_ms: int = 0
    by_user: Mapping[str, float] = field(default_factory=dict)
    by_tenant: Mapping[str, float] = field(default_factory=dict)


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Made once for each kind of record: making one costs more than using it."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def dump(value: object) -> bytes:
    return _adapter(type(value)).dump_json(value)


def parse(key: str, value: bytes, kind: type[T]) -> T:
    try:
        parsed: T = _adapter(kind).validate_json(value)
    except ValidationError as error:
        raise CorruptDataError(f"the record {key} cannot be read: {error.errors()[0]['msg']}") from error
    return parsed
