from sdrs_proto.v1 import backup_pb2 as _backup_pb2
from sdrs_proto.v1 import checkpoint_pb2 as _checkpoint_pb2
from sdrs_proto.v1 import cluster_pb2 as _cluster_pb2
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

class BackupObject(_message.Message):
    __slots__ = ["data_key_id", "key", "size_bytes"]
    DATA_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    data_key_id: str
    key: str
    size_bytes: int
    def __init__(self, key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., data_key_id: _Optional[str] = ...) -> None: ...

class BackupSource(_message.Message):
    __slots__ = ["object", "table", "target"]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    object: BackupObject
    table: bytes
    target: _backup_pb2.BackupTarget
    def __init__(self, target: _Optional[_Union[_backup_pb2.BackupTarget, _Mapping]] = ..., object: _Optional[_Union[BackupObject, _Mapping]] = ..., table: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ["hash", "size_bytes", "source_hash", "source_size_bytes", "source_table", "table"]
    HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_HASH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    hash: str
    size_bytes: int
    source_hash: str
    source_size_bytes: int
    source_table: bytes
    table: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., table: _Optional[bytes] = ..., source_size_bytes: _Optional[int] = ..., source_hash: _Optional[str] = ..., source_table: _Optional[bytes] = ...) -> None: ...

class DescribeBlobRequest(_message.Message):
    __slots__ = ["authority", "blob_id", "code", "hash", "request_id", "signature", "size_bytes", "sources", "wants_blake3"]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    WANTS_BLAKE3_FIELD_NUMBER: _ClassVar[int]
    authority: _membership_pb2.Authority
    blob_id: str
    code: str
    hash: str
    request_id: str
    signature: bytes
    size_bytes: int
    sources: _containers.RepeatedCompositeFieldContainer[FragmentSource]
    wants_blake3: bool
    def __init__(self, request_id: _Optional[str] = ..., authority: _Optional[_Union[_membership_pb2.Authority, _Mapping]] = ..., signature: _Optional[bytes] = ..., blob_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., code: _Optional[str] = ..., sources: _Optional[_Iterable[_Union[FragmentSource, _Mapping]]] = ..., wants_blake3: bool = ...) -> None: ...

class DescribeBlobResponse(_message.Message):
    __slots__ = ["blake3", "table"]
    BLAKE3_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    blake3: str
    table: bytes
    def __init__(self, table: _Optional[bytes] = ..., blake3: _Optional[str] = ...) -> None: ...

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
    __slots__ = ["blob_id", "code", "created_unix_ms", "disk_id", "fragment_index", "hash", "origin", "save_id", "size_bytes", "source_hash", "source_size_bytes"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_HASH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    code: str
    created_unix_ms: int
    disk_id: str
    fragment_index: int
    hash: str
    origin: WriteIntent
    save_id: str
    size_bytes: int
    source_hash: str
    source_size_bytes: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., save_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., hash: _Optional[str] = ..., disk_id: _Optional[str] = ..., origin: _Optional[_Union[WriteIntent, _Mapping]] = ..., source_size_bytes: _Optional[int] = ..., source_hash: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class FragmentName(_message.Message):
    __slots__ = ["blob_id", "fragment_index"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    fragment_index: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ...) -> None: ...

class FragmentSource(_message.Message):
    __slots__ = ["fragment_index", "hash", "node"]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    fragment_index: int
    hash: str
    node: _cluster_pb2.Node
    def __init__(self, node: _Optional[_Union[_cluster_pb2.Node, _Mapping]] = ..., fragment_index: _Optional[int] = ..., hash: _Optional[str] = ...) -> None: ...

class FragmentUnderWay(_message.Message):
    __slots__ = ["made_bytes", "name"]
    MADE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    made_bytes: int
    name: FragmentName
    def __init__(self, name: _Optional[_Union[FragmentName, _Mapping]] = ..., made_bytes: _Optional[int] = ...) -> None: ...

class HeldFragment(_message.Message):
    __slots__ = ["blob_id", "code", "disk_id", "fragment_index", "hash", "save_id", "size_bytes", "source_hash", "source_size_bytes"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_HASH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    code: str
    disk_id: str
    fragment_index: int
    hash: str
    save_id: str
    size_bytes: int
    source_hash: str
    source_size_bytes: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., save_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., disk_id: _Optional[str] = ..., source_size_bytes: _Optional[int] = ..., source_hash: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class ListFragmentsRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "with_origin"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WITH_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    with_origin: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., with_origin: bool = ...) -> None: ...

class ListFragmentsResponse(_message.Message):
    __slots__ = ["fragments", "next_page_token"]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    fragments: _containers.RepeatedCompositeFieldContainer[FragmentInfo]
    next_page_token: str
    def __init__(self, fragments: _Optional[_Iterable[_Union[FragmentInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ["authority", "cluster_id", "node", "snapshots"]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    authority: _membership_pb2.Authority
    cluster_id: str
    node: _cluster_pb2.Node
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotId]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[SnapshotId, _Mapping]]] = ..., cluster_id: _Optional[str] = ..., node: _Optional[_Union[_cluster_pb2.Node, _Mapping]] = ..., authority: _Optional[_Union[_membership_pb2.Authority, _Mapping]] = ...) -> None: ...

class LookupFragmentsRequest(_message.Message):
    __slots__ = ["epoch", "fragments", "group_id"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    fragments: _containers.RepeatedCompositeFieldContainer[FragmentName]
    group_id: str
    def __init__(self, fragments: _Optional[_Iterable[_Union[FragmentName, _Mapping]]] = ..., group_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class LookupFragmentsResponse(_message.Message):
    __slots__ = ["held", "under_way"]
    HELD_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[HeldFragment]
    under_way: _containers.RepeatedCompositeFieldContainer[FragmentUnderWay]
    def __init__(self, held: _Optional[_Iterable[_Union[HeldFragment, _Mapping]]] = ..., under_way: _Optional[_Iterable[_Union[FragmentUnderWay, _Mapping]]] = ...) -> None: ...

class OpenReadRequest(_message.Message):
    __slots__ = ["blob_id", "for_repair", "fragment_index", "length", "offset"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    FOR_REPAIR_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    for_repair: bool
    fragment_index: int
    length: int
    offset: int
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., for_repair: bool = ...) -> None: ...

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

class ProbeTargetRequest(_message.Message):
    __slots__ = ["authority", "signature", "target"]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    authority: _membership_pb2.Authority
    signature: bytes
    target: _backup_pb2.BackupTarget
    def __init__(self, target: _Optional[_Union[_backup_pb2.BackupTarget, _Mapping]] = ..., authority: _Optional[_Union[_membership_pb2.Authority, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ProbeTargetResponse(_message.Message):
    __slots__ = ["detail", "ok", "step"]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    detail: str
    ok: bool
    step: str
    def __init__(self, step: _Optional[str] = ..., ok: bool = ..., detail: _Optional[str] = ...) -> None: ...

class PullFragmentRequest(_message.Message):
    __slots__ = ["authority", "backup", "called_off", "hash", "intent", "max_bytes_per_second", "request_id", "signature", "source_blob_id", "source_code", "sources"]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    CALLED_OFF_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    INTENT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CODE_FIELD_NUMBER: _ClassVar[int]
    authority: _membership_pb2.Authority
    backup: BackupSource
    called_off: bool
    hash: str
    intent: WriteIntent
    max_bytes_per_second: int
    request_id: str
    signature: bytes
    source_blob_id: str
    source_code: str
    sources: _containers.RepeatedCompositeFieldContainer[FragmentSource]
    def __init__(self, request_id: _Optional[str] = ..., authority: _Optional[_Union[_membership_pb2.Authority, _Mapping]] = ..., intent: _Optional[_Union[WriteIntent, _Mapping]] = ..., hash: _Optional[str] = ..., signature: _Optional[bytes] = ..., source_blob_id: _Optional[str] = ..., source_code: _Optional[str] = ..., sources: _Optional[_Iterable[_Union[FragmentSource, _Mapping]]] = ..., max_bytes_per_second: _Optional[int] = ..., called_off: bool = ..., backup: _Optional[_Union[BackupSource, _Mapping]] = ...) -> None: ...

class PullFragmentResponse(_message.Message):
    __slots__ = ["held"]
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: HeldFragment
    def __init__(self, held: _Optional[_Union[HeldFragment, _Mapping]] = ...) -> None: ...

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

class ReadSnapshotRequest(_message.Message):
    __slots__ = ["id"]
    ID_FIELD_NUMBER: _ClassVar[int]
    id: SnapshotId
    def __init__(self, id: _Optional[_Union[SnapshotId, _Mapping]] = ...) -> None: ...

class SealShardRequest(_message.Message):
    __slots__ = ["attempt", "capability", "epoch", "group_id", "job", "request_id", "shard", "step", "world_size"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    capability: str
    epoch: int
    group_id: str
    job: str
    request_id: str
    shard: _checkpoint_pb2.Shard
    step: int
    world_size: int
    def __init__(self, request_id: _Optional[str] = ..., capability: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., group_id: _Optional[str] = ..., epoch: _Optional[int] = ..., shard: _Optional[_Union[_checkpoint_pb2.Shard, _Mapping]] = ..., world_size: _Optional[int] = ...) -> None: ...

class SealShardResponse(_message.Message):
    __slots__ = ["state"]
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: _checkpoint_pb2.SaveState
    def __init__(self, state: _Optional[_Union[_checkpoint_pb2.SaveState, str]] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ["data", "id"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    id: SnapshotId
    def __init__(self, id: _Optional[_Union[SnapshotId, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class SnapshotId(_message.Message):
    __slots__ = ["cluster_id", "created_unix_ms", "hash", "incarnation", "revision", "size_bytes", "term"]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    created_unix_ms: int
    hash: str
    incarnation: int
    revision: int
    size_bytes: int
    term: int
    def __init__(self, cluster_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., term: _Optional[int] = ..., revision: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., size_bytes: _Optional[int] = ..., hash: _Optional[str] = ...) -> None: ...

class StoreSnapshotResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

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

class UploadBlobRequest(_message.Message):
    __slots__ = ["authority", "blake3", "blob_id", "called_off", "code", "hash", "max_bytes_per_second", "object", "request_id", "signature", "size_bytes", "sources", "target"]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    BLAKE3_FIELD_NUMBER: _ClassVar[int]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    CALLED_OFF_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    authority: _membership_pb2.Authority
    blake3: str
    blob_id: str
    called_off: bool
    code: str
    hash: str
    max_bytes_per_second: int
    object: BackupObject
    request_id: str
    signature: bytes
    size_bytes: int
    sources: _containers.RepeatedCompositeFieldContainer[FragmentSource]
    target: _backup_pb2.BackupTarget
    def __init__(self, request_id: _Optional[str] = ..., authority: _Optional[_Union[_membership_pb2.Authority, _Mapping]] = ..., signature: _Optional[bytes] = ..., blob_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., code: _Optional[str] = ..., sources: _Optional[_Iterable[_Union[FragmentSource, _Mapping]]] = ..., target: _Optional[_Union[_backup_pb2.BackupTarget, _Mapping]] = ..., object: _Optional[_Union[BackupObject, _Mapping]] = ..., blake3: _Optional[str] = ..., max_bytes_per_second: _Optional[int] = ..., called_off: bool = ...) -> None: ...

class UploadBlobResponse(_message.Message):
    __slots__ = ["done_bytes", "is_done", "sent_bytes"]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    is_done: bool
    sent_bytes: int
    def __init__(self, done_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., is_done: bool = ...) -> None: ...

class VerifyFragmentRequest(_message.Message):
    __slots__ = ["blob_id", "code", "expected_hash", "fragment_index", "max_bytes_per_second", "sources"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_HASH_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    code: str
    expected_hash: str
    fragment_index: int
    max_bytes_per_second: int
    sources: _containers.RepeatedCompositeFieldContainer[FragmentSource]
    def __init__(self, blob_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., expected_hash: _Optional[str] = ..., code: _Optional[str] = ..., sources: _Optional[_Iterable[_Union[FragmentSource, _Mapping]]] = ..., max_bytes_per_second: _Optional[int] = ...) -> None: ...

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
    __slots__ = ["attempt", "blob_count", "blob_id", "code", "epoch", "fragment_index", "group_id", "job", "kind", "ordinal", "packing", "pool", "rank", "relayed", "resent", "save_id", "save_pool", "size_bytes", "source_size_bytes", "step", "world_size"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BLOB_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SAVE_POOL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    blob_count: int
    blob_id: str
    code: str
    epoch: int
    fragment_index: int
    group_id: str
    job: str
    kind: _checkpoint_pb2.ContentKind
    ordinal: int
    packing: str
    pool: str
    rank: int
    relayed: bool
    resent: bool
    save_id: str
    save_pool: str
    size_bytes: int
    source_size_bytes: int
    step: int
    world_size: int
    def __init__(self, save_id: _Optional[str] = ..., blob_id: _Optional[str] = ..., ordinal: _Optional[int] = ..., size_bytes: _Optional[int] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., group_id: _Optional[str] = ..., epoch: _Optional[int] = ..., world_size: _Optional[int] = ..., kind: _Optional[_Union[_checkpoint_pb2.ContentKind, str]] = ..., blob_count: _Optional[int] = ..., pool: _Optional[str] = ..., relayed: bool = ..., fragment_index: _Optional[int] = ..., code: _Optional[str] = ..., source_size_bytes: _Optional[int] = ..., resent: bool = ..., save_pool: _Optional[str] = ..., packing: _Optional[str] = ...) -> None: ...

class FragmentVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
