from sdrs_proto.v1 import cluster_pb2 as _cluster_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CONTENT_KIND_FILES: ContentKind
CONTENT_KIND_STATE: ContentKind
CONTENT_KIND_UNSPECIFIED: ContentKind
DESCRIPTOR: _descriptor.FileDescriptor
SAVE_STATE_ABORTED: SaveState
SAVE_STATE_COMMITTED: SaveState
SAVE_STATE_CONDEMNED: SaveState
SAVE_STATE_DELETED: SaveState
SAVE_STATE_PENDING: SaveState
SAVE_STATE_RETIRED: SaveState
SAVE_STATE_SET_ASIDE: SaveState
SAVE_STATE_UNSPECIFIED: SaveState

class Attempt(_message.Message):
    __slots__ = ["ordinal", "owner", "run"]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    owner: str
    run: str
    def __init__(self, run: _Optional[str] = ..., ordinal: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ["blake3", "code", "hash", "holders", "id", "ordinal", "packing", "size_bytes"]
    BLAKE3_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    blake3: str
    code: str
    hash: str
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    id: str
    ordinal: int
    packing: str
    size_bytes: int
    def __init__(self, id: _Optional[str] = ..., ordinal: _Optional[int] = ..., size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., code: _Optional[str] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., blake3: _Optional[str] = ..., packing: _Optional[str] = ...) -> None: ...

class BlobReference(_message.Message):
    __slots__ = ["blake3", "hash", "home_ordinal", "home_save_id", "home_step", "ordinal", "size_bytes"]
    BLAKE3_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    HOME_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    HOME_SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_STEP_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    blake3: str
    hash: str
    home_ordinal: int
    home_save_id: str
    home_step: int
    ordinal: int
    size_bytes: int
    def __init__(self, ordinal: _Optional[int] = ..., size_bytes: _Optional[int] = ..., hash: _Optional[str] = ..., blake3: _Optional[str] = ..., home_save_id: _Optional[str] = ..., home_step: _Optional[int] = ..., home_ordinal: _Optional[int] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ["attempt", "committed_unix_ms", "created_unix_ms", "damage", "degraded", "ended_unix_ms", "evicted", "failed_restores", "held", "job", "kind", "level", "mirror_pool", "note", "origin", "pool", "referenced_bytes", "restore_failure", "save_id", "size_bytes", "spared_bytes", "state", "step", "world_size"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_RESTORES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MIRROR_POOL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FAILURE_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    committed_unix_ms: int
    created_unix_ms: int
    damage: str
    degraded: bool
    ended_unix_ms: int
    evicted: str
    failed_restores: _containers.RepeatedScalarFieldContainer[str]
    held: bool
    job: str
    kind: ContentKind
    level: _cluster_pb2.Level
    mirror_pool: str
    note: str
    origin: str
    pool: str
    referenced_bytes: int
    restore_failure: str
    save_id: str
    size_bytes: int
    spared_bytes: int
    state: SaveState
    step: int
    world_size: int
    def __init__(self, save_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., world_size: _Optional[int] = ..., pool: _Optional[str] = ..., kind: _Optional[_Union[ContentKind, str]] = ..., state: _Optional[_Union[SaveState, str]] = ..., level: _Optional[_Union[_cluster_pb2.Level, str]] = ..., size_bytes: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., committed_unix_ms: _Optional[int] = ..., held: bool = ..., damage: _Optional[str] = ..., note: _Optional[str] = ..., ended_unix_ms: _Optional[int] = ..., degraded: bool = ..., mirror_pool: _Optional[str] = ..., referenced_bytes: _Optional[int] = ..., failed_restores: _Optional[_Iterable[str]] = ..., restore_failure: _Optional[str] = ..., spared_bytes: _Optional[int] = ..., evicted: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ["disk_id", "dropping", "fragment_hash", "fragment_index", "node_id"]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    DROPPING_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_HASH_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    disk_id: str
    dropping: bool
    fragment_hash: str
    fragment_index: int
    node_id: str
    def __init__(self, node_id: _Optional[str] = ..., disk_id: _Optional[str] = ..., fragment_index: _Optional[int] = ..., fragment_hash: _Optional[str] = ..., dropping: bool = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ["blobs", "content_hash", "kind", "mirrors", "rank", "references", "save_id", "size_bytes"]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[Blob]
    content_hash: str
    kind: ContentKind
    mirrors: _containers.RepeatedCompositeFieldContainer[Blob]
    rank: int
    references: _containers.RepeatedCompositeFieldContainer[BlobReference]
    save_id: str
    size_bytes: int
    def __init__(self, save_id: _Optional[str] = ..., rank: _Optional[int] = ..., kind: _Optional[_Union[ContentKind, str]] = ..., size_bytes: _Optional[int] = ..., content_hash: _Optional[str] = ..., blobs: _Optional[_Iterable[_Union[Blob, _Mapping]]] = ..., mirrors: _Optional[_Iterable[_Union[Blob, _Mapping]]] = ..., references: _Optional[_Iterable[_Union[BlobReference, _Mapping]]] = ...) -> None: ...

class SaveState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ContentKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
