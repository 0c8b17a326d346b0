"""What the scheduler needs of ``cluster.records``: its twin in tests is the second implementation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sdrs.records import Changes, Note, Record


class RecordStore(Protocol):
    def get(self, key: str) -> Record | None: ...

    def range(self, prefix: str) -> Iterator[Record]:
        """All records below ``prefix``, in the order of their keys."""

    def change(
        self, *, compare: Mapping[str, int], put: Mapping[str, bytes] | None = None, delete: Sequence[str] = ()
    ) -> int | None:
        """One transaction. ``compare``: the revision that a key must have, 0 if it must be absent. The new revision;
        None if a compared record moved. Repeating it after an unknown outcome is safe.
        """

    def wait(self, prefix: str, after_revision: int, timeout_seconds: float) -> int:
        """The newest revision below ``prefix``, once it is beyond ``after_revision`` or the time is up."""

    def changes(self, prefix: str, after_revision: int) -> Changes:
        """What changed below ``prefix`` since then, as far as that is known."""

    def post(self, key: str, value: bytes, answer: str = "") -> Note | None:
        """Leave a note, which lasts as long as the controller does; answers with the note under ``answer``."""

    def notes(self, prefix: str) -> list[Note]: ...
