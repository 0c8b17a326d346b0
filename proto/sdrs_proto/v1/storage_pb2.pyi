from sdrs_proto.v1 import checkpoint_pb2 as _checkpoint_pb2
from sdrs_proto.v1 import membership_pb2 as _membership_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
FRAGMENT_VERDICT_CORRUPT: FragmentVerdict
FRAGMENT_VERDICT_MISSING: FragmentVerdict
FRAGMENT_VERDICT_OK: FragmentVerdict
FRAGMENT_VERDICT_UNSPECIFIED: FragmentVerdict

class BlobFrame(_message.Message):
    __slots__ = ["data", "digest", "end", "open"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    digest: bytes
    end: bytes
    open: bytes
    def __init__(self, open: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., data: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class BlobSummary(_message.Message):
    __slots__ = ["hash", "size_bytes", "table"]
    HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    hash: str
    size_bytes: int
    table: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., table: _Optional[bytes] = ...) -> None: ...

class DropFragmentsRequest(_message.Message):
    __slots__ = ["authority", "fragments", "request_id", "signature"]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    authority: _membership_pb2.Authority
    fragments: _containers.RepeatedCompositeFieldContainer[FragmentName]
    request_id: str
    signature: bytes
    def __init__(self, request_id: _Optional[str] = ..., authority: _Optional[_Union[_membership_pb2.Authority, _Mapping]] = ..., fragments: _Optional[_Iterable[_Union[FragmentName, _Mapping]]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class DropFragmentsResponse(_message.Message):
    __slots__ = ["dropped"]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: _containers.RepeatedCompositeFieldContainer[FragmentName]
    def __init__(self, dropped: _Optional[_Iterable[_Union[FragmentName, _Mapping]]] = ...) -> None: ...

class FragmentInfo(_message.Message):
    __slots__ = ["blob_id", "created_unix_ms", "fragment_index", "save_id", "size_bytes"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    created_unix_ms: int
    fragment_index: int
    save_id: str
    size_bytes: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., save_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., created_unix_ms: _Optional[int] = ...) -> None: ...

class FragmentName(_message.Message):
    __slots__ = ["blob_id", "fragment_index"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    fragment_index: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ...) -> None: ...

class ListFragmentsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListFragmentsResponse(_message.Message):
    __slots__ = ["fragments", "next_page_token"]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    fragments: _containers.RepeatedCompositeFieldContainer[FragmentInfo]
    next_page_token: str
    def __init__(self, fragments: _Optional[_Iterable[_Union[FragmentInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class OpenReadRequest(_message.Message):
    __slots__ = ["blob_id", "fragment_index", "length", "offset"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    fragment_index: int
    length: int
    offset: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class OpenReadResponse(_message.Message):
    __slots__ = ["ticket"]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: str
    def __init__(self, ticket: _Optional[str] = ...) -> None: ...

class OpenWriteRequest(_message.Message):
    __slots__ = ["intent", "request_id"]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    intent: WriteIntent
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., intent: _Optional[_Union[WriteIntent, _Mapping]] = ...) -> None: ...

class OpenWriteResponse(_message.Message):
    __slots__ = ["already_stored", "stored", "ticket"]
    ALREADY_STORED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    already_stored: bool
    stored: StoredBlob
    ticket: str
    def __init__(self, ticket: _Optional[str] = ..., already_stored: bool = ..., stored: _Optional[_Union[StoredBlob, _Mapping]] = ...) -> None: ...

class ReadBlobRequest(_message.Message):
    __slots__ = ["blob_id", "fragment_index", "length", "offset"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    fragment_index: int
    length: int
    offset: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class SealShardRequest(_message.Message):
    __slots__ = ["attempt", "capability", "epoch", "group_id", "job", "request_id", "shard", "step"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    capability: str
    epoch: int
    group_id: str
    job: str
    request_id: str
    shard: _checkpoint_pb2.Shard
    step: int
    def __init__(self, request_id: _Optional[str] = ..., capability: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., group_id: _Optional[str] = ..., epoch: _Optional[int] = ..., shard: _Optional[_Union[_checkpoint_pb2.Shard, _Mapping]] = ...) -> None: ...

class SealShardResponse(_message.Message):
    __slots__ = ["state"]
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: _checkpoint_pb2.SaveState
    def __init__(self, state: _Optional[_Union[_checkpoint_pb2.SaveState, str]] = ...) -> None: ...

class StoredBlob(_message.Message):
    __slots__ = ["blob_id", "disk_id", "hash", "size_bytes"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    disk_id: str
    hash: str
    size_bytes: int
    def __init__(self, blob_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., disk_id: _Optional[str] = ...) -> None: ...

class VerifyFragmentRequest(_message.Message):
    __slots__ = ["blob_id", "expected_hash", "fragment_index"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_HASH_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    expected_hash: str
    fragment_index: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., expected_hash: _Optional[str] = ...) -> None: ...

class VerifyFragmentResponse(_message.Message):
    __slots__ = ["checked_bytes", "detail", "verdict"]
    CHECKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    checked_bytes: int
    detail: str
    verdict: FragmentVerdict
    def __init__(self, checked_bytes: _Optional[int] = ..., verdict: _Optional[_Union[FragmentVerdict, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class WriteBlobResponse(_message.Message):
    __slots__ = ["stored"]
    STORED_FIELD_NUMBER: _ClassVar[int]
    stored: StoredBlob
    def __init__(self, stored: _Optional[_Union[StoredBlob, _Mapping]] = ...) -> None: ...

class WriteIntent(_message.Message):
    __slots__ = ["attempt", "blob_id", "epoch", "group_id", "job", "ordinal", "rank", "save_id", "size_bytes", "step"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    blob_id: str
    epoch: int
    group_id: str
    job: str
    ordinal: int
    rank: int
    save_id: str
    size_bytes: int
    step: int
    def __init__(self, save_id: _Optional[str] = ..., blob_id: _Optional[str] = ..., ordinal: _Optional[int] = ..., size_bytes: _Optional[int] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., group_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class FragmentVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
