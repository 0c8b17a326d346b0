from sdrs_proto.v1 import backup_pb2 as _backup_pb2
from sdrs_proto.v1 import checkpoint_pb2 as _checkpoint_pb2
from sdrs_proto.v1 import cluster_pb2 as _cluster_pb2
from sdrs_proto.v1 import schedule_pb2 as _schedule_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
NODE_QUESTION_OK_TO_STOP: NodeQuestion
NODE_QUESTION_SAFE_TO_DESTROY: NodeQuestion
NODE_QUESTION_UNSPECIFIED: NodeQuestion
ROUND_OUTCOME_DONE: RoundOutcome
ROUND_OUTCOME_NEXT: RoundOutcome
ROUND_OUTCOME_OPEN: RoundOutcome
ROUND_OUTCOME_UNSPECIFIED: RoundOutcome
SCRUB_DEPTH_DEEP: ScrubDepth
SCRUB_DEPTH_SHALLOW: ScrubDepth
SCRUB_DEPTH_UNSPECIFIED: ScrubDepth

class AbortSaveRequest(_message.Message):
    __slots__ = ["capability", "job", "reason", "request_id", "save_id", "step"]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    capability: str
    job: str
    reason: str
    request_id: str
    save_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., save_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., capability: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortSaveResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class BeginSaveRequest(_message.Message):
    __slots__ = ["attempt", "avoid_node_ids", "host", "job", "kind", "level", "may_refer", "pool", "prefer_node_id", "rank", "request_id", "size_bytes", "step", "world_size"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AVOID_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAY_REFER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PREFER_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    attempt: _checkpoint_pb2.Attempt
    avoid_node_ids: _containers.RepeatedScalarFieldContainer[str]
    host: str
    job: str
    kind: _checkpoint_pb2.ContentKind
    level: _cluster_pb2.Level
    may_refer: bool
    pool: str
    prefer_node_id: str
    rank: int
    request_id: str
    size_bytes: int
    step: int
    world_size: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., attempt: _Optional[_Union[_checkpoint_pb2.Attempt, _Mapping]] = ..., pool: _Optional[str] = ..., level: _Optional[_Union[_cluster_pb2.Level, str]] = ..., kind: _Optional[_Union[_checkpoint_pb2.ContentKind, str]] = ..., host: _Optional[str] = ..., avoid_node_ids: _Optional[_Iterable[str]] = ..., size_bytes: _Optional[int] = ..., may_refer: bool = ..., prefer_node_id: _Optional[str] = ...) -> None: ...

class BeginSaveResponse(_message.Message):
    __slots__ = ["attempt", "capability", "counted_bytes", "group", "offers", "primary", "save_id", "shard_content_hash", "shard_registered", "state", "takes_packed"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    COUNTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    SHARD_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TAKES_PACKED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    capability: str
    counted_bytes: int
    group: _cluster_pb2.Group
    offers: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.BlobReference]
    primary: _cluster_pb2.Node
    save_id: str
    shard_content_hash: str
    shard_registered: bool
    state: _checkpoint_pb2.SaveState
    takes_packed: bool
    def __init__(self, save_id: _Optional[str] = ..., attempt: _Optional[int] = ..., capability: _Optional[str] = ..., group: _Optional[_Union[_cluster_pb2.Group, _Mapping]] = ..., primary: _Optional[_Union[_cluster_pb2.Node, _Mapping]] = ..., shard_registered: bool = ..., shard_content_hash: _Optional[str] = ..., state: _Optional[_Union[_checkpoint_pb2.SaveState, str]] = ..., offers: _Optional[_Iterable[_Union[_checkpoint_pb2.BlobReference, _Mapping]]] = ..., counted_bytes: _Optional[int] = ..., takes_packed: bool = ...) -> None: ...

class BlobProblem(_message.Message):
    __slots__ = ["blob_id", "node_id", "problem", "rank", "undecided"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    node_id: str
    problem: str
    rank: int
    undecided: bool
    def __init__(self, blob_id: _Optional[str] = ..., rank: _Optional[int] = ..., node_id: _Optional[str] = ..., problem: _Optional[str] = ..., undecided: bool = ...) -> None: ...

class CheckNodeRequest(_message.Message):
    __slots__ = ["node_id", "question"]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    question: NodeQuestion
    def __init__(self, node_id: _Optional[str] = ..., question: _Optional[_Union[NodeQuestion, str]] = ...) -> None: ...

class CheckNodeResponse(_message.Message):
    __slots__ = ["why"]
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class ClusterEvent(_message.Message):
    __slots__ = ["duration_ms", "epoch", "group_id", "id", "kind", "node_id", "pool", "text", "unix_ms"]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    duration_ms: int
    epoch: int
    group_id: str
    id: str
    kind: str
    node_id: str
    pool: str
    text: str
    unix_ms: int
    def __init__(self, id: _Optional[str] = ..., unix_ms: _Optional[int] = ..., kind: _Optional[str] = ..., pool: _Optional[str] = ..., group_id: _Optional[str] = ..., node_id: _Optional[str] = ..., epoch: _Optional[int] = ..., duration_ms: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class CreatePoolRequest(_message.Message):
    __slots__ = ["pool", "request_id"]
    POOL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    pool: _cluster_pb2.Pool
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., pool: _Optional[_Union[_cluster_pb2.Pool, _Mapping]] = ...) -> None: ...

class CreatePoolResponse(_message.Message):
    __slots__ = ["pool"]
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: _cluster_pb2.Pool
    def __init__(self, pool: _Optional[_Union[_cluster_pb2.Pool, _Mapping]] = ...) -> None: ...

class DeleteCheckpointRequest(_message.Message):
    __slots__ = ["job", "request_id", "step"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    request_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class DeleteCheckpointResponse(_message.Message):
    __slots__ = ["checkpoint"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class DeletePoolRequest(_message.Message):
    __slots__ = ["name", "request_id"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeletePoolResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DrainDiskRequest(_message.Message):
    __slots__ = ["cancel", "disk_id", "request_id"]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    cancel: bool
    disk_id: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., disk_id: _Optional[str] = ..., cancel: bool = ...) -> None: ...

class DrainDiskResponse(_message.Message):
    __slots__ = ["disk"]
    DISK_FIELD_NUMBER: _ClassVar[int]
    disk: NodeDisk
    def __init__(self, disk: _Optional[_Union[NodeDisk, _Mapping]] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ["cancel", "node_id", "request_id"]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    cancel: bool
    node_id: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., node_id: _Optional[str] = ..., cancel: bool = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ["node"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: _cluster_pb2.Node
    def __init__(self, node: _Optional[_Union[_cluster_pb2.Node, _Mapping]] = ...) -> None: ...

class ExportMetaRequest(_message.Message):
    __slots__ = ["request_id", "seal"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    seal: bool
    def __init__(self, request_id: _Optional[str] = ..., seal: bool = ...) -> None: ...

class FailoverRequest(_message.Message):
    __slots__ = ["accept_data_loss", "group_id", "request_id", "to_node_id"]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    accept_data_loss: bool
    group_id: str
    request_id: str
    to_node_id: str
    def __init__(self, request_id: _Optional[str] = ..., group_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., accept_data_loss: bool = ...) -> None: ...

class FailoverResponse(_message.Message):
    __slots__ = ["group", "lost"]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    group: _cluster_pb2.Group
    lost: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.Checkpoint]
    def __init__(self, group: _Optional[_Union[_cluster_pb2.Group, _Mapping]] = ..., lost: _Optional[_Iterable[_Union[_checkpoint_pb2.Checkpoint, _Mapping]]] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ["job", "step"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: int
    def __init__(self, job: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ["checkpoint", "stale"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    stale: bool
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., stale: bool = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetClusterResponse(_message.Message):
    __slots__ = ["cluster_id", "controller_pid", "damaged_count", "degraded_blob_count", "degraded_group_count", "frozen_because", "grace_seconds", "incarnation", "metrics_endpoint", "paused_because", "pending_save_count", "repair", "revision", "save_ttl_seconds", "store", "term", "trash_count", "unavailable_count", "version", "warnings"]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_PID_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_BLOB_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    FROZEN_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    METRICS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    PENDING_SAVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SAVE_TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TRASH_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_pid: int
    damaged_count: int
    degraded_blob_count: int
    degraded_group_count: int
    frozen_because: str
    grace_seconds: int
    incarnation: int
    metrics_endpoint: str
    paused_because: str
    pending_save_count: int
    repair: RepairProgress
    revision: int
    save_ttl_seconds: int
    store: str
    term: int
    trash_count: int
    unavailable_count: int
    version: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., term: _Optional[int] = ..., version: _Optional[str] = ..., revision: _Optional[int] = ..., controller_pid: _Optional[int] = ..., pending_save_count: _Optional[int] = ..., trash_count: _Optional[int] = ..., damaged_count: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., save_ttl_seconds: _Optional[int] = ..., grace_seconds: _Optional[int] = ..., metrics_endpoint: _Optional[str] = ..., paused_because: _Optional[str] = ..., degraded_group_count: _Optional[int] = ..., degraded_blob_count: _Optional[int] = ..., unavailable_count: _Optional[int] = ..., repair: _Optional[_Union[RepairProgress, _Mapping]] = ..., store: _Optional[str] = ..., frozen_because: _Optional[str] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ["group_id"]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class GetGroupResponse(_message.Message):
    __slots__ = ["events", "group", "member_epochs", "nodes"]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ClusterEvent]
    group: _cluster_pb2.Group
    member_epochs: _containers.RepeatedScalarFieldContainer[int]
    nodes: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Node]
    def __init__(self, group: _Optional[_Union[_cluster_pb2.Group, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[_cluster_pb2.Node, _Mapping]]] = ..., member_epochs: _Optional[_Iterable[int]] = ..., events: _Optional[_Iterable[_Union[ClusterEvent, _Mapping]]] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ["node_id"]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class GetNodeResponse(_message.Message):
    __slots__ = ["groups", "held_bytes", "held_count", "node"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Group]
    held_bytes: int
    held_count: int
    node: _cluster_pb2.Node
    def __init__(self, node: _Optional[_Union[_cluster_pb2.Node, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[_cluster_pb2.Group, _Mapping]]] = ..., held_count: _Optional[int] = ..., held_bytes: _Optional[int] = ...) -> None: ...

class GetPoolRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetPoolResponse(_message.Message):
    __slots__ = ["groups", "pool"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Group]
    pool: _cluster_pb2.Pool
    def __init__(self, pool: _Optional[_Union[_cluster_pb2.Pool, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[_cluster_pb2.Group, _Mapping]]] = ...) -> None: ...

class GetRepairRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetRepairResponse(_message.Message):
    __slots__ = ["degraded_blob_count", "failures", "progress", "settings", "unavailable_count"]
    DEGRADED_BLOB_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    degraded_blob_count: int
    failures: _containers.RepeatedScalarFieldContainer[str]
    progress: RepairProgress
    settings: RepairSettings
    unavailable_count: int
    def __init__(self, progress: _Optional[_Union[RepairProgress, _Mapping]] = ..., settings: _Optional[_Union[RepairSettings, _Mapping]] = ..., degraded_blob_count: _Optional[int] = ..., unavailable_count: _Optional[int] = ..., failures: _Optional[_Iterable[str]] = ...) -> None: ...

class GetScrubRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetScrubResponse(_message.Message):
    __slots__ = ["deep_done_unix_ms", "scrub", "shallow_done_unix_ms"]
    DEEP_DONE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    SHALLOW_DONE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    deep_done_unix_ms: int
    scrub: ScrubStatus
    shallow_done_unix_ms: int
    def __init__(self, scrub: _Optional[_Union[ScrubStatus, _Mapping]] = ..., shallow_done_unix_ms: _Optional[int] = ..., deep_done_unix_ms: _Optional[int] = ...) -> None: ...

class HoldCheckpointRequest(_message.Message):
    __slots__ = ["job", "request_id", "step"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    request_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class HoldCheckpointResponse(_message.Message):
    __slots__ = ["checkpoint"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class ImportMetaResponse(_message.Message):
    __slots__ = ["cluster_id", "incarnation", "record_count"]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    incarnation: int
    record_count: int
    def __init__(self, cluster_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., record_count: _Optional[int] = ...) -> None: ...

class JobSummary(_message.Message):
    __slots__ = ["attempt", "attempt_owner", "job"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_OWNER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    attempt_owner: str
    job: str
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., attempt_owner: _Optional[str] = ...) -> None: ...

class JoinRoundRequest(_message.Message):
    __slots__ = ["attempt", "job", "rank", "request_id", "resume", "step", "up_to_step", "world_size"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UP_TO_STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    attempt: _checkpoint_pb2.Attempt
    job: str
    rank: int
    request_id: str
    resume: bool
    step: int
    up_to_step: int
    world_size: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[_Union[_checkpoint_pb2.Attempt, _Mapping]] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., step: _Optional[int] = ..., resume: bool = ..., up_to_step: _Optional[int] = ...) -> None: ...

class JoinRoundResponse(_message.Message):
    __slots__ = ["checkpoint", "round"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    round: int
    def __init__(self, round: _Optional[int] = ..., checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ["all_states", "job", "page_size", "page_token"]
    ALL_STATES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    all_states: bool
    job: str
    page_size: int
    page_token: str
    def __init__(self, job: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., all_states: bool = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ["checkpoints", "next_page_token", "stale"]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.Checkpoint]
    next_page_token: str
    stale: bool
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[_checkpoint_pb2.Checkpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., stale: bool = ...) -> None: ...

class ListDisksRequest(_message.Message):
    __slots__ = ["node_id"]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class ListDisksResponse(_message.Message):
    __slots__ = ["disks"]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    disks: _containers.RepeatedCompositeFieldContainer[NodeDisk]
    def __init__(self, disks: _Optional[_Iterable[_Union[NodeDisk, _Mapping]]] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ["group_id", "node_id", "page_size", "page_token"]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    node_id: str
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., group_id: _Optional[str] = ..., node_id: _Optional[str] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ["events", "next_page_token"]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ClusterEvent]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[ClusterEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "pool"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    pool: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ["groups", "next_page_token"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Group]
    next_page_token: str
    def __init__(self, groups: _Optional[_Iterable[_Union[_cluster_pb2.Group, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ["jobs", "next_page_token"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobSummary]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobSummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ["host", "page_size", "page_token"]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    host: str
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ["next_page_token", "nodes"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    nodes: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[_cluster_pb2.Node, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListPoolsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPoolsResponse(_message.Message):
    __slots__ = ["next_page_token", "pools"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    pools: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Pool]
    def __init__(self, pools: _Optional[_Iterable[_Union[_cluster_pb2.Pool, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListShardsRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "pool", "rank", "save_id"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    pool: str
    rank: int
    save_id: str
    def __init__(self, save_id: _Optional[str] = ..., rank: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class ListShardsResponse(_message.Message):
    __slots__ = ["next_page_token", "nodes", "read_policy", "shards"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    READ_POLICY_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    nodes: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Node]
    read_policy: _cluster_pb2.ReadPolicy
    shards: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.Shard]
    def __init__(self, shards: _Optional[_Iterable[_Union[_checkpoint_pb2.Shard, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[_cluster_pb2.Node, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., read_policy: _Optional[_Union[_cluster_pb2.ReadPolicy, str]] = ...) -> None: ...

class MapVersion(_message.Message):
    __slots__ = ["number", "term"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    number: int
    term: int
    def __init__(self, term: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class MetaChunk(_message.Message):
    __slots__ = ["data"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class NodeDisk(_message.Message):
    __slots__ = ["absent", "disk", "held_bytes", "held_count", "node_id"]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    absent: bool
    disk: _cluster_pb2.Disk
    held_bytes: int
    held_count: int
    node_id: str
    def __init__(self, node_id: _Optional[str] = ..., disk: _Optional[_Union[_cluster_pb2.Disk, _Mapping]] = ..., held_count: _Optional[int] = ..., held_bytes: _Optional[int] = ..., absent: bool = ...) -> None: ...

class RebuildMetaRequest(_message.Message):
    __slots__ = ["node_addresses", "request_id", "snapshot"]
    NODE_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    node_addresses: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    snapshot: bytes
    def __init__(self, request_id: _Optional[str] = ..., node_addresses: _Optional[_Iterable[str]] = ..., snapshot: _Optional[bytes] = ...) -> None: ...

class RebuildMetaResponse(_message.Message):
    __slots__ = ["checkpoint_count", "done", "done_count", "problems", "stage", "total_count"]
    CHECKPOINT_COUNT_FIELD_NUMBER: _ClassVar[int]
    DONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    checkpoint_count: int
    done: bool
    done_count: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    stage: str
    total_count: int
    def __init__(self, stage: _Optional[str] = ..., done_count: _Optional[int] = ..., total_count: _Optional[int] = ..., done: bool = ..., checkpoint_count: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseCheckpointRequest(_message.Message):
    __slots__ = ["job", "request_id", "step"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    request_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class ReleaseCheckpointResponse(_message.Message):
    __slots__ = ["checkpoint"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ["accept_data_loss", "node_id", "request_id"]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    accept_data_loss: bool
    node_id: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., node_id: _Optional[str] = ..., accept_data_loss: bool = ...) -> None: ...

class RemoveNodeResponse(_message.Message):
    __slots__ = ["lost"]
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.Checkpoint]
    def __init__(self, lost: _Optional[_Iterable[_Union[_checkpoint_pb2.Checkpoint, _Mapping]]] = ...) -> None: ...

class RepairProgress(_message.Message):
    __slots__ = ["awaited_blobs", "bytes_per_second", "done_blobs", "done_bytes", "failed_blobs", "mirroring_blobs", "moving_blobs", "remaining_seconds", "waiting_blobs", "waiting_bytes", "wave_done_bytes"]
    AWAITED_BLOBS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DONE_BLOBS_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILED_BLOBS_FIELD_NUMBER: _ClassVar[int]
    MIRRORING_BLOBS_FIELD_NUMBER: _ClassVar[int]
    MOVING_BLOBS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BLOBS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAVE_DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    awaited_blobs: int
    bytes_per_second: int
    done_blobs: int
    done_bytes: int
    failed_blobs: int
    mirroring_blobs: int
    moving_blobs: int
    remaining_seconds: int
    waiting_blobs: int
    waiting_bytes: int
    wave_done_bytes: int
    def __init__(self, waiting_blobs: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., done_blobs: _Optional[int] = ..., done_bytes: _Optional[int] = ..., failed_blobs: _Optional[int] = ..., awaited_blobs: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., remaining_seconds: _Optional[int] = ..., moving_blobs: _Optional[int] = ..., mirroring_blobs: _Optional[int] = ..., wave_done_bytes: _Optional[int] = ...) -> None: ...

class RepairSettings(_message.Message):
    __slots__ = ["bytes_per_second", "concurrency"]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    concurrency: int
    def __init__(self, bytes_per_second: _Optional[int] = ..., concurrency: _Optional[int] = ...) -> None: ...

class ReplaceDiskRequest(_message.Message):
    __slots__ = ["accept_data_loss", "disk_id", "request_id"]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    accept_data_loss: bool
    disk_id: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., disk_id: _Optional[str] = ..., accept_data_loss: bool = ...) -> None: ...

class ReplaceDiskResponse(_message.Message):
    __slots__ = ["blob_count", "lost"]
    BLOB_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    blob_count: int
    lost: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.Checkpoint]
    def __init__(self, blob_count: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[_checkpoint_pb2.Checkpoint, _Mapping]]] = ...) -> None: ...

class ReportDamageRequest(_message.Message):
    __slots__ = ["blob_id", "job", "node_id", "rank", "request_id", "save_id", "step"]
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    job: str
    node_id: str
    rank: int
    request_id: str
    save_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., save_id: _Optional[str] = ..., rank: _Optional[int] = ..., blob_id: _Optional[str] = ..., node_id: _Optional[str] = ...) -> None: ...

class ReportDamageResponse(_message.Message):
    __slots__ = ["checkpoint"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class ReportFailedRestoreRequest(_message.Message):
    __slots__ = ["failure", "job", "rank", "request_id", "restore_id", "save_id", "step"]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESTORE_ID_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    failure: str
    job: str
    rank: int
    request_id: str
    restore_id: str
    save_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., save_id: _Optional[str] = ..., rank: _Optional[int] = ..., restore_id: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class ReportFailedRestoreResponse(_message.Message):
    __slots__ = ["checkpoint"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class ReportRoundRequest(_message.Message):
    __slots__ = ["attempt", "failure", "job", "rank", "request_id", "round", "wait_ms"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    attempt: _checkpoint_pb2.Attempt
    failure: str
    job: str
    rank: int
    request_id: str
    round: int
    wait_ms: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[_Union[_checkpoint_pb2.Attempt, _Mapping]] = ..., round: _Optional[int] = ..., rank: _Optional[int] = ..., failure: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReportRoundResponse(_message.Message):
    __slots__ = ["failure", "outcome"]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    failure: str
    outcome: RoundOutcome
    def __init__(self, outcome: _Optional[_Union[RoundOutcome, str]] = ..., failure: _Optional[str] = ...) -> None: ...

class ScrubStatus(_message.Message):
    __slots__ = ["bad_fragments", "bytes_per_second", "checked_bytes", "checked_checkpoints", "checked_fragments", "damaged_checkpoints", "depth", "ended_unix_ms", "id", "job", "missing_fragments", "problems", "repaired_fragments", "started_unix_ms", "stopped", "total_checkpoints", "trigger", "undecided_fragments", "unknown_fragments"]
    BAD_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CHECKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MISSING_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    bad_fragments: int
    bytes_per_second: int
    checked_bytes: int
    checked_checkpoints: int
    checked_fragments: int
    damaged_checkpoints: int
    depth: ScrubDepth
    ended_unix_ms: int
    id: str
    job: str
    missing_fragments: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    repaired_fragments: int
    started_unix_ms: int
    stopped: bool
    total_checkpoints: int
    trigger: str
    undecided_fragments: int
    unknown_fragments: int
    def __init__(self, id: _Optional[str] = ..., depth: _Optional[_Union[ScrubDepth, str]] = ..., job: _Optional[str] = ..., started_unix_ms: _Optional[int] = ..., ended_unix_ms: _Optional[int] = ..., checked_checkpoints: _Optional[int] = ..., total_checkpoints: _Optional[int] = ..., checked_fragments: _Optional[int] = ..., checked_bytes: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., bad_fragments: _Optional[int] = ..., missing_fragments: _Optional[int] = ..., repaired_fragments: _Optional[int] = ..., undecided_fragments: _Optional[int] = ..., unknown_fragments: _Optional[int] = ..., damaged_checkpoints: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., trigger: _Optional[str] = ..., stopped: bool = ...) -> None: ...

class SetAutomaticRequest(_message.Message):
    __slots__ = ["paused", "reason", "request_id"]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    reason: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., paused: bool = ..., reason: _Optional[str] = ...) -> None: ...

class SetAutomaticResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SetCordonRequest(_message.Message):
    __slots__ = ["cordoned", "node_id", "reason", "request_id"]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    cordoned: bool
    node_id: str
    reason: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., node_id: _Optional[str] = ..., cordoned: bool = ..., reason: _Optional[str] = ...) -> None: ...

class SetCordonResponse(_message.Message):
    __slots__ = ["node"]
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: _cluster_pb2.Node
    def __init__(self, node: _Optional[_Union[_cluster_pb2.Node, _Mapping]] = ...) -> None: ...

class SetRepairRequest(_message.Message):
    __slots__ = ["bytes_per_second", "concurrency", "request_id"]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    concurrency: int
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., bytes_per_second: _Optional[int] = ..., concurrency: _Optional[int] = ...) -> None: ...

class SetRepairResponse(_message.Message):
    __slots__ = ["settings"]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: RepairSettings
    def __init__(self, settings: _Optional[_Union[RepairSettings, _Mapping]] = ...) -> None: ...

class StartScrubRequest(_message.Message):
    __slots__ = ["depth", "job", "request_id"]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    depth: ScrubDepth
    job: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., depth: _Optional[_Union[ScrubDepth, str]] = ..., job: _Optional[str] = ...) -> None: ...

class StartScrubResponse(_message.Message):
    __slots__ = ["scrub"]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    scrub: ScrubStatus
    def __init__(self, scrub: _Optional[_Union[ScrubStatus, _Mapping]] = ...) -> None: ...

class StopScrubRequest(_message.Message):
    __slots__ = ["request_id"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class StopScrubResponse(_message.Message):
    __slots__ = ["scrub"]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    scrub: ScrubStatus
    def __init__(self, scrub: _Optional[_Union[ScrubStatus, _Mapping]] = ...) -> None: ...

class SwitchoverRequest(_message.Message):
    __slots__ = ["drain_ms", "group_id", "request_id", "to_node_id"]
    DRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    drain_ms: int
    group_id: str
    request_id: str
    to_node_id: str
    def __init__(self, request_id: _Optional[str] = ..., group_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., drain_ms: _Optional[int] = ...) -> None: ...

class SwitchoverResponse(_message.Message):
    __slots__ = ["group"]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: _cluster_pb2.Group
    def __init__(self, group: _Optional[_Union[_cluster_pb2.Group, _Mapping]] = ...) -> None: ...

class UndeleteCheckpointRequest(_message.Message):
    __slots__ = ["job", "request_id", "step"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    request_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class UndeleteCheckpointResponse(_message.Message):
    __slots__ = ["checkpoint"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class UpdatePoolRequest(_message.Message):
    __slots__ = ["add_node_ids", "allow_degraded", "data_fragments", "keep_every_steps", "keep_last", "level", "max_age_seconds", "mirror_pool", "mirror_ratio", "mirrors", "name", "parity_fragments", "quota_bytes", "read_policy", "remove_node_ids", "request_id"]
    ADD_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DATA_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    MIRROR_POOL_FIELD_NUMBER: _ClassVar[int]
    MIRROR_RATIO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARITY_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_POLICY_FIELD_NUMBER: _ClassVar[int]
    REMOVE_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    add_node_ids: _containers.RepeatedScalarFieldContainer[str]
    allow_degraded: bool
    data_fragments: int
    keep_every_steps: int
    keep_last: int
    level: _cluster_pb2.Level
    max_age_seconds: int
    mirror_pool: str
    mirror_ratio: float
    mirrors: int
    name: str
    parity_fragments: int
    quota_bytes: int
    read_policy: _cluster_pb2.ReadPolicy
    remove_node_ids: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., keep_last: _Optional[int] = ..., keep_every_steps: _Optional[int] = ..., max_age_seconds: _Optional[int] = ..., level: _Optional[_Union[_cluster_pb2.Level, str]] = ..., mirrors: _Optional[int] = ..., allow_degraded: bool = ..., read_policy: _Optional[_Union[_cluster_pb2.ReadPolicy, str]] = ..., data_fragments: _Optional[int] = ..., parity_fragments: _Optional[int] = ..., mirror_pool: _Optional[str] = ..., mirror_ratio: _Optional[float] = ..., quota_bytes: _Optional[int] = ..., add_node_ids: _Optional[_Iterable[str]] = ..., remove_node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdatePoolResponse(_message.Message):
    __slots__ = ["pool"]
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: _cluster_pb2.Pool
    def __init__(self, pool: _Optional[_Union[_cluster_pb2.Pool, _Mapping]] = ...) -> None: ...

class VerifyCheckpointRequest(_message.Message):
    __slots__ = ["job", "request_id", "step"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    request_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class VerifyCheckpointResponse(_message.Message):
    __slots__ = ["checked_blobs", "checked_bytes", "checkpoint", "done", "problems", "total_bytes"]
    CHECKED_BLOBS_FIELD_NUMBER: _ClassVar[int]
    CHECKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    checked_blobs: int
    checked_bytes: int
    checkpoint: _checkpoint_pb2.Checkpoint
    done: bool
    problems: _containers.RepeatedCompositeFieldContainer[BlobProblem]
    total_bytes: int
    def __init__(self, checked_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., checked_blobs: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[BlobProblem, _Mapping]]] = ..., done: bool = ..., checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class WaitSaveRequest(_message.Message):
    __slots__ = ["job", "save_id", "step", "wait_ms"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    job: str
    save_id: str
    step: int
    wait_ms: int
    def __init__(self, save_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class WaitSaveResponse(_message.Message):
    __slots__ = ["checkpoint", "shards_registered"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    shards_registered: int
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., shards_registered: _Optional[int] = ...) -> None: ...

class WatchMapRequest(_message.Message):
    __slots__ = ["known", "pool", "wait_ms"]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    known: MapVersion
    pool: str
    wait_ms: int
    def __init__(self, pool: _Optional[str] = ..., known: _Optional[_Union[MapVersion, _Mapping]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class WatchMapResponse(_message.Message):
    __slots__ = ["groups", "nodes", "version"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Group]
    nodes: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Node]
    version: MapVersion
    def __init__(self, version: _Optional[_Union[MapVersion, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[_cluster_pb2.Group, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[_cluster_pb2.Node, _Mapping]]] = ...) -> None: ...

class RoundOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class NodeQuestion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ScrubDepth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
