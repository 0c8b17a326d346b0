from sdrs_proto.v1 import checkpoint_pb2 as _checkpoint_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChangeRecordsRequest(_message.Message):
    __slots__ = ["compare", "delete", "put", "request_id"]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    compare: _containers.RepeatedCompositeFieldContainer[ComparedRecord]
    delete: _containers.RepeatedScalarFieldContainer[str]
    put: _containers.RepeatedCompositeFieldContainer[PutRecord]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., compare: _Optional[_Iterable[_Union[ComparedRecord, _Mapping]]] = ..., put: _Optional[_Iterable[_Union[PutRecord, _Mapping]]] = ..., delete: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeRecordsResponse(_message.Message):
    __slots__ = ["revision"]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class ChangedRecord(_message.Message):
    __slots__ = ["key", "revision"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    key: str
    revision: int
    def __init__(self, key: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ComparedRecord(_message.Message):
    __slots__ = ["key", "revision"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    key: str
    revision: int
    def __init__(self, key: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class ListNotesRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "prefix"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    prefix: str
    def __init__(self, prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListNotesResponse(_message.Message):
    __slots__ = ["next_page_token", "notes"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    notes: _containers.RepeatedCompositeFieldContainer[Note]
    def __init__(self, notes: _Optional[_Iterable[_Union[Note, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ["age_ms", "key", "value"]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    age_ms: int
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., age_ms: _Optional[int] = ...) -> None: ...

class OpenAttemptRequest(_message.Message):
    __slots__ = ["attempt", "job", "request_id"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    attempt: _checkpoint_pb2.Attempt
    job: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[_Union[_checkpoint_pb2.Attempt, _Mapping]] = ...) -> None: ...

class OpenAttemptResponse(_message.Message):
    __slots__ = ["number"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class PostNoteRequest(_message.Message):
    __slots__ = ["answer_key", "key", "value"]
    ANSWER_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    answer_key: str
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., answer_key: _Optional[str] = ...) -> None: ...

class PostNoteResponse(_message.Message):
    __slots__ = ["answer"]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: Note
    def __init__(self, answer: _Optional[_Union[Note, _Mapping]] = ...) -> None: ...

class PutRecord(_message.Message):
    __slots__ = ["key", "value"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class ReadRecordsRequest(_message.Message):
    __slots__ = ["key", "page_size", "page_token", "prefix"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    key: str
    page_size: int
    page_token: str
    prefix: str
    def __init__(self, key: _Optional[str] = ..., prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ReadRecordsResponse(_message.Message):
    __slots__ = ["next_page_token", "records"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    records: _containers.RepeatedCompositeFieldContainer[ScheduleRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[ScheduleRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ScheduleRecord(_message.Message):
    __slots__ = ["key", "revision", "value"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    revision: int
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchRecordsRequest(_message.Message):
    __slots__ = ["after_revision", "prefix", "wait_ms"]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    after_revision: int
    prefix: str
    wait_ms: int
    def __init__(self, prefix: _Optional[str] = ..., after_revision: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class WatchRecordsResponse(_message.Message):
    __slots__ = ["changed", "knows_changed", "other_history", "revision"]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    KNOWS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    OTHER_HISTORY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    changed: _containers.RepeatedCompositeFieldContainer[ChangedRecord]
    knows_changed: bool
    other_history: bool
    revision: int
    def __init__(self, revision: _Optional[int] = ..., other_history: bool = ..., knows_changed: bool = ..., changed: _Optional[_Iterable[_Union[ChangedRecord, _Mapping]]] = ...) -> None: ...
