from sdrs_proto.v1 import checkpoint_pb2 as _checkpoint_pb2
from sdrs_proto.v1 import cluster_pb2 as _cluster_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
MEMBER_TROUBLE_FAILED: MemberTrouble
MEMBER_TROUBLE_SLOW: MemberTrouble
MEMBER_TROUBLE_UNSPECIFIED: MemberTrouble

class Assignments(_message.Message):
    __slots__ = ["draining_disk_ids", "groups", "nodes", "pools"]
    DRAINING_DISK_IDS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    draining_disk_ids: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Group]
    nodes: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Node]
    pools: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Pool]
    def __init__(self, groups: _Optional[_Iterable[_Union[_cluster_pb2.Group, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[_cluster_pb2.Node, _Mapping]]] = ..., pools: _Optional[_Iterable[_Union[_cluster_pb2.Pool, _Mapping]]] = ..., draining_disk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Authority(_message.Message):
    __slots__ = ["incarnation", "revision", "term", "term_id"]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TERM_ID_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    revision: int
    term: int
    term_id: str
    def __init__(self, incarnation: _Optional[int] = ..., term: _Optional[int] = ..., revision: _Optional[int] = ..., term_id: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ["disks", "epochs", "node_id", "node_key", "staging"]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_FIELD_NUMBER: _ClassVar[int]
    STAGING_FIELD_NUMBER: _ClassVar[int]
    disks: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Disk]
    epochs: _containers.RepeatedCompositeFieldContainer[HeldEpoch]
    node_id: str
    node_key: str
    staging: _cluster_pb2.Staging
    def __init__(self, node_id: _Optional[str] = ..., node_key: _Optional[str] = ..., disks: _Optional[_Iterable[_Union[_cluster_pb2.Disk, _Mapping]]] = ..., epochs: _Optional[_Iterable[_Union[HeldEpoch, _Mapping]]] = ..., staging: _Optional[_Union[_cluster_pb2.Staging, _Mapping]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ["assignments", "authority"]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    assignments: Assignments
    authority: Authority
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., assignments: _Optional[_Union[Assignments, _Mapping]] = ...) -> None: ...

class HeldEpoch(_message.Message):
    __slots__ = ["epoch", "group_id"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    group_id: str
    def __init__(self, group_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ["attempt", "capability", "epoch", "group_id", "job", "shard", "step"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    capability: str
    epoch: int
    group_id: str
    job: str
    shard: _checkpoint_pb2.Shard
    step: int
    def __init__(self, capability: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., group_id: _Optional[str] = ..., epoch: _Optional[int] = ..., shard: _Optional[_Union[_checkpoint_pb2.Shard, _Mapping]] = ...) -> None: ...

class ReceiptOutcome(_message.Message):
    __slots__ = ["state", "status"]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    state: _checkpoint_pb2.SaveState
    status: bytes
    def __init__(self, state: _Optional[_Union[_checkpoint_pb2.SaveState, str]] = ..., status: _Optional[bytes] = ...) -> None: ...

class RegisterNodeRequest(_message.Message):
    __slots__ = ["cluster_id", "incarnation", "node", "node_key", "request_id", "revision", "term", "term_id"]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TERM_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    incarnation: int
    node: _cluster_pb2.Node
    node_key: str
    request_id: str
    revision: int
    term: int
    term_id: str
    def __init__(self, request_id: _Optional[str] = ..., cluster_id: _Optional[str] = ..., node: _Optional[_Union[_cluster_pb2.Node, _Mapping]] = ..., node_key: _Optional[str] = ..., incarnation: _Optional[int] = ..., revision: _Optional[int] = ..., term: _Optional[int] = ..., term_id: _Optional[str] = ...) -> None: ...

class RegisterNodeResponse(_message.Message):
    __slots__ = ["authority", "cluster_id", "heartbeat_interval_ms"]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    cluster_id: str
    heartbeat_interval_ms: int
    def __init__(self, cluster_id: _Optional[str] = ..., authority: _Optional[_Union[Authority, _Mapping]] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class RegisterReceiptsRequest(_message.Message):
    __slots__ = ["node_id", "node_key", "receipts", "request_id"]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    node_key: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., node_id: _Optional[str] = ..., node_key: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ...) -> None: ...

class RegisterReceiptsResponse(_message.Message):
    __slots__ = ["outcomes"]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[ReceiptOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ReceiptOutcome, _Mapping]]] = ...) -> None: ...

class ReportMemberRequest(_message.Message):
    __slots__ = ["detail", "epoch", "group_id", "member_id", "node_id", "node_key", "request_id", "trouble"]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    detail: str
    epoch: int
    group_id: str
    member_id: str
    node_id: str
    node_key: str
    request_id: str
    trouble: MemberTrouble
    def __init__(self, request_id: _Optional[str] = ..., node_id: _Optional[str] = ..., node_key: _Optional[str] = ..., group_id: _Optional[str] = ..., epoch: _Optional[int] = ..., member_id: _Optional[str] = ..., trouble: _Optional[_Union[MemberTrouble, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class ReportMemberResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class MemberTrouble(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
