"""The part of the service ``Control`` that schedulers use: their records and notes, and attempts."""

from __future__ import annotations

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import JobName
from sdrs_proto import convert
from sdrs_proto.limits import MAX_WAIT_MS
from sdrs_proto.v1 import schedule_pb2 as pb
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.notes import Note
from sdrs_storaged.control.records import Stored
from sdrs_storaged.control.schedule_records import Kept
from sdrs_storaged.rpc.edge import page_size


class ScheduleService:
    def __init__(self, controller: Controller) -> None:
        self._schedule_records = controller.schedule_records
        self._notes = controller.notes
        self._attempts = controller.saves

    async def read_records(self, request: pb.ReadRecordsRequest) -> pb.ReadRecordsResponse:
        if request.key:
            found = await self._schedule_records.get(request.key)
            return pb.ReadRecordsResponse(records=[_record(found)] if found else [])
        records, more = await self._schedule_records.page(
            request.prefix, after=request.page_token, limit=page_size(request.page_size)
        )
        return pb.ReadRecordsResponse(records=map(_record, records), next_page_token=records[-1].key if more else "")

    async def change_records(self, request: pb.ChangeRecordsRequest) -> pb.ChangeRecordsResponse:
        compare = {compared.key: compared.revision for compared in request.compare}
        puts = {record.key: record.value for record in request.put}
        if len(compare) < len(request.compare) or len(puts) < len(request.put):
            raise InvalidArgumentError("a change of records names one of them twice")
        revision = await self._schedule_records.change(compare, puts, request.delete, request_id=request.request_id)
        return pb.ChangeRecordsResponse(revision=revision)

    async def watch_records(self, request: pb.WatchRecordsRequest) -> pb.WatchRecordsResponse:
        wait_seconds = min(request.wait_ms, MAX_WAIT_MS) / 1000
        if await self._schedule_records.is_of_another_history(request.after_revision):
            revision = await self._schedule_records.newest(request.prefix, 0, 0)
            return pb.WatchRecordsResponse(revision=revision, other_history=True)
        revision = await self._schedule_records.newest(request.prefix, request.after_revision, wait_seconds)
        # After that: what it holds may be more than what ``revision`` stands for, never less.
        changed = self._schedule_records.changed(request.prefix, request.after_revision)
        return pb.WatchRecordsResponse(
            revision=revision,
            knows_changed=changed is not None,
            changed=[pb.ChangedRecord(key=key, revision=newest) for key, newest in (changed or {}).items()],
        )

    async def post_note(self, request: pb.PostNoteRequest) -> pb.PostNoteResponse:
        self._notes.post(request.key, request.value)
        answer = self._notes.get(request.answer_key) if request.answer_key else None
        return pb.PostNoteResponse(answer=_note(answer) if answer else None)

    async def list_notes(self, request: pb.ListNotesRequest) -> pb.ListNotesResponse:
        notes, more = self._notes.page(request.prefix, after=request.page_token, limit=page_size(request.page_size))
        return pb.ListNotesResponse(notes=map(_note, notes), next_page_token=notes[-1].key if more else "")

    async def open_attempt(self, request: pb.OpenAttemptRequest) -> pb.OpenAttemptResponse:
        number = await self._attempts.open_attempt(JobName(request.job), convert.attempt_from(request.attempt))
        return pb.OpenAttemptResponse(number=number)


def _record(stored: Stored[Kept]) -> pb.ScheduleRecord:
    return pb.ScheduleRecord(key=stored.key, value=stored.value.value, revision=stored.revision)


def _note(note: Note) -> pb.Note:
    return pb.Note(key=note.key, value=note.value, age_ms=max(0, int(note.age_seconds * 1000)))
