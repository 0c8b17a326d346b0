"""What a scheduler keeps in the cluster: ``cluster.records``.

**Records** are durable, and changed only together with what was compared: of two who change the same record, one is
told that it moved. Their keys begin with ``schedule/``; what a value means is the scheduler's business.

**Notes** are the last value that was posted under a key, and how old it is. They are lost when the controller changes:
whoever posts, posts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sdrs.process import Process
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import random_id
from sdrs_proto.limits import MAX_CHANGE_BYTES, MAX_WAIT_MS
from sdrs_proto.v1 import schedule_pb2 as messages


@dataclass(frozen=True, slots=True)
class Record:
    """``revision`` is that of its last change: what ``Records.change`` compares."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Note:
    """``age_seconds`` is by the controller's clock."""

    key: str
    value: bytes
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Changes:
    """Of the newest change, and what changed by key: with its revision, or 0 where it may be changing right now."""

    revision: int
    # None: not all of it is known; read everything.
    records: Mapping[str, int] | None


class Records:
    """May be used from several threads."""

    def __init__(self, process: Callable[[], Process]) -> None:
        self._process = process

    def get(self, key: str) -> Record | None:
        found = self._process().control.call("read_records", messages.ReadRecordsRequest(key=key))
        return _record_from(found.records[0]) if found.records else None

    def range(self, prefix: str) -> Iterator[Record]:
        """Every record under ``prefix``, in the order of keys; each page shows a moment of its own."""
        for page in self._process().control.pages("read_records", messages.ReadRecordsRequest(prefix=prefix)):
            yield from map(_record_from, page.records)

    def change(
        self, *, compare: Mapping[str, int], put: Mapping[str, bytes] | None = None, delete: Sequence[str] = ()
    ) -> int | None:
        """Change records, all or none; the new revision, or None if a record is not at the revision that ``compare``
        has for it (0: absent).

        A controller that does not answer is asked again, also another one, and then knows by what is on record whether
        it happened already. Two things it cannot know after a change of controllers: that a change happened whose
        records somebody else has changed since, and that one happened which only deletes. Then it says None as well:
        read again, and decide by what is there. After an UnavailableError it may or may not have happened. What
        compares nothing may happen twice.
        """
        put = put or {}
        size_bytes = sum(map(len, put.values()))
        if size_bytes > MAX_CHANGE_BYTES:  # the wire would refuse much larger ones in words of its own
            raise InvalidArgumentError(
                f"the records of one change have {size_bytes} bytes, {MAX_CHANGE_BYTES} are allowed: make several "
                "changes of it"
            )
        request = messages.ChangeRecordsRequest(
            request_id=random_id(),
            compare=[messages.ComparedRecord(key=key, revision=revision) for key, revision in compare.items()],
            put=[messages.PutRecord(key=key, value=value) for key, value in put.items()],
            delete=delete,
        )
        answer = self._process().control.call("change_records", request)
        return answer.revision if answer.HasField("revision") else None

    def wait(self, prefix: str, after_revision: int, timeout_seconds: float) -> int:
        """The revision of the newest change under ``prefix``, at once if it is higher than ``after_revision``.

        It may tell of a change where there was none (the controller changed): read again. Wait from what it answered,
        also if that is lower: then the catalog was brought back from a copy.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            wait_ms = min(MAX_WAIT_MS, max(0, int((deadline - time.monotonic()) * 1000)))
            request = messages.WatchRecordsRequest(prefix=prefix, after_revision=after_revision, wait_ms=wait_ms)
            answer = self._process().control.call("watch_records", request, wait_ms=wait_ms)
            revision: int = answer.revision
            if revision > after_revision or answer.other_history or time.monotonic() >= deadline:
                return revision

    def changes(self, prefix: str, after_revision: int) -> Changes:
        """What changed under ``prefix`` after this revision, as far as the controller remembers it; does not wait."""
        request = messages.WatchRecordsRequest(prefix=prefix, after_revision=after_revision)
        answer = self._process().control.call("watch_records", request)
        changed = {record.key: record.revision for record in answer.changed} if answer.knows_changed else None
        return Changes(answer.revision, changed)

    def post(self, key: str, value: bytes, answer: str = "") -> Note | None:
        """Post a note, in the place of the last one; answered with the note under ``answer``, if there is one."""
        request = messages.PostNoteRequest(key=key, value=value, answer_key=answer)
        # Posted all the time by a thread beside the training: whoever forks does not wait for it.
        found = self._process().control.call("post_note", request, is_held_up_by_forks=True)
        return _note_from(found.answer) if found.HasField("answer") else None

    def notes(self, prefix: str) -> list[Note]:
        """In the order of keys."""
        pages = self._process().control.pages("list_notes", messages.ListNotesRequest(prefix=prefix))
        return [_note_from(note) for page in pages for note in page.notes]


def _record_from(message: messages.ScheduleRecord) -> Record:
    return Record(message.key, message.value, message.revision)


def _note_from(message: messages.Note) -> Note:
    return Note(message.key, message.value, message.age_ms / 1000)
