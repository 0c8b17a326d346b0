from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
DISK_STATE_DRAINING: DiskState
DISK_STATE_FAILED: DiskState
DISK_STATE_FULL: DiskState
DISK_STATE_NEAR_FULL: DiskState
DISK_STATE_OK: DiskState
DISK_STATE_UNSPECIFIED: DiskState
LEVEL_L1: Level
LEVEL_L2: Level
LEVEL_L3: Level
LEVEL_UNSPECIFIED: Level
NODE_STATE_DOWN: NodeState
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_UP: NodeState
READ_POLICY_LEAST_RESPONSE_TIME: ReadPolicy
READ_POLICY_ROUND_ROBIN: ReadPolicy
READ_POLICY_UNSPECIFIED: ReadPolicy
READ_POLICY_WEIGHTED_RESPONSE_TIME: ReadPolicy

class Disk(_message.Message):
    __slots__ = ["capacity_bytes", "detail", "fragment_count", "id", "path", "state", "used_bytes"]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    detail: str
    fragment_count: int
    id: str
    path: str
    state: DiskState
    used_bytes: int
    def __init__(self, id: _Optional[str] = ..., path: _Optional[str] = ..., state: _Optional[_Union[DiskState, str]] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., fragment_count: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Endpoints(_message.Message):
    __slots__ = ["data", "grpc", "host", "metrics", "unix"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    UNIX_FIELD_NUMBER: _ClassVar[int]
    data: str
    grpc: str
    host: str
    metrics: str
    unix: str
    def __init__(self, grpc: _Optional[str] = ..., data: _Optional[str] = ..., unix: _Optional[str] = ..., metrics: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ["epoch", "home", "id", "members", "pool", "primary", "problem"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    home: _containers.RepeatedScalarFieldContainer[str]
    id: str
    members: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    primary: str
    problem: str
    def __init__(self, id: _Optional[str] = ..., pool: _Optional[str] = ..., epoch: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., primary: _Optional[str] = ..., home: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ["cordoned", "cordoned_because", "disks", "domain", "draining", "endpoints", "flapping", "id", "last_seen_unix_ms", "pid", "staging", "state", "version"]
    CORDONED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    FLAPPING_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STAGING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    cordoned: bool
    cordoned_because: str
    disks: _containers.RepeatedCompositeFieldContainer[Disk]
    domain: str
    draining: bool
    endpoints: Endpoints
    flapping: bool
    id: str
    last_seen_unix_ms: int
    pid: int
    staging: Staging
    state: NodeState
    version: str
    def __init__(self, id: _Optional[str] = ..., endpoints: _Optional[_Union[Endpoints, _Mapping]] = ..., domain: _Optional[str] = ..., state: _Optional[_Union[NodeState, str]] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., disks: _Optional[_Iterable[_Union[Disk, _Mapping]]] = ..., last_seen_unix_ms: _Optional[int] = ..., cordoned: bool = ..., flapping: bool = ..., draining: bool = ..., staging: _Optional[_Union[Staging, _Mapping]] = ..., cordoned_because: _Optional[str] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ["allow_degraded", "checkpoint_count", "data_fragments", "layout", "level", "mirror_pool", "mirror_ratio", "mirrored_bytes", "mirrored_count", "mirrors", "name", "node_ids", "parity_fragments", "quota_bytes", "read_policy", "retention", "used_bytes"]
    ALLOW_DEGRADED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_COUNT_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    MIRROR_POOL_FIELD_NUMBER: _ClassVar[int]
    MIRROR_RATIO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    PARITY_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_POLICY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    allow_degraded: bool
    checkpoint_count: int
    data_fragments: int
    layout: int
    level: Level
    mirror_pool: str
    mirror_ratio: float
    mirrored_bytes: int
    mirrored_count: int
    mirrors: int
    name: str
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    parity_fragments: int
    quota_bytes: int
    read_policy: ReadPolicy
    retention: Retention
    used_bytes: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[_Union[Level, str]] = ..., mirrors: _Optional[int] = ..., data_fragments: _Optional[int] = ..., parity_fragments: _Optional[int] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., layout: _Optional[int] = ..., checkpoint_count: _Optional[int] = ..., used_bytes: _Optional[int] = ..., allow_degraded: bool = ..., read_policy: _Optional[_Union[ReadPolicy, str]] = ..., mirror_pool: _Optional[str] = ..., mirror_ratio: _Optional[float] = ..., node_ids: _Optional[_Iterable[str]] = ..., quota_bytes: _Optional[int] = ..., mirrored_bytes: _Optional[int] = ..., mirrored_count: _Optional[int] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ["keep_every_steps", "keep_last", "max_age_seconds"]
    KEEP_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    keep_every_steps: int
    keep_last: int
    max_age_seconds: int
    def __init__(self, keep_last: _Optional[int] = ..., keep_every_steps: _Optional[int] = ..., max_age_seconds: _Optional[int] = ...) -> None: ...

class Staging(_message.Message):
    __slots__ = ["budget_bytes", "kept_bytes", "oldest_waiting_ms", "taken_bytes", "waiting_count"]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAITING_MS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    kept_bytes: int
    oldest_waiting_ms: int
    taken_bytes: int
    waiting_count: int
    def __init__(self, budget_bytes: _Optional[int] = ..., taken_bytes: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., waiting_count: _Optional[int] = ..., oldest_waiting_ms: _Optional[int] = ...) -> None: ...

class Level(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class DiskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ReadPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
