from sdrs_proto.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
STAGE_PHASE_FAILED: StagePhase
STAGE_PHASE_IN: StagePhase
STAGE_PHASE_SENDING: StagePhase
STAGE_PHASE_UNSPECIFIED: StagePhase

class CancelStaged(_message.Message):
    __slots__ = ["staged_id"]
    STAGED_ID_FIELD_NUMBER: _ClassVar[int]
    staged_id: str
    def __init__(self, staged_id: _Optional[str] = ...) -> None: ...

class FollowStaged(_message.Message):
    __slots__ = ["staged_id"]
    STAGED_ID_FIELD_NUMBER: _ClassVar[int]
    staged_id: str
    def __init__(self, staged_id: _Optional[str] = ...) -> None: ...

class FreeSegment(_message.Message):
    __slots__ = ["segment_id"]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    segment_id: str
    def __init__(self, segment_id: _Optional[str] = ...) -> None: ...

class ReadStaged(_message.Message):
    __slots__ = ["ordinal", "rank", "save_id"]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    rank: int
    save_id: str
    def __init__(self, save_id: _Optional[str] = ..., rank: _Optional[int] = ..., ordinal: _Optional[int] = ...) -> None: ...

class ReserveSegment(_message.Message):
    __slots__ = ["size_bytes"]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    def __init__(self, size_bytes: _Optional[int] = ...) -> None: ...

class SealSegment(_message.Message):
    __slots__ = ["shard"]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: StagedShard
    def __init__(self, shard: _Optional[_Union[StagedShard, _Mapping]] = ...) -> None: ...

class StageEvent(_message.Message):
    __slots__ = ["number", "offset", "phase", "save_id", "segment_id", "sent_bytes", "size_bytes", "staged_id", "status", "table"]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGED_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    number: int
    offset: int
    phase: StagePhase
    save_id: str
    segment_id: str
    sent_bytes: int
    size_bytes: int
    staged_id: str
    status: bytes
    table: bytes
    def __init__(self, number: _Optional[int] = ..., status: _Optional[bytes] = ..., segment_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., staged_id: _Optional[str] = ..., phase: _Optional[_Union[StagePhase, str]] = ..., save_id: _Optional[str] = ..., sent_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., table: _Optional[bytes] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ["cancel", "follow", "free", "number", "read", "reserve", "seal"]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    cancel: CancelStaged
    follow: FollowStaged
    free: FreeSegment
    number: int
    read: ReadStaged
    reserve: ReserveSegment
    seal: SealSegment
    def __init__(self, number: _Optional[int] = ..., reserve: _Optional[_Union[ReserveSegment, _Mapping]] = ..., seal: _Optional[_Union[SealSegment, _Mapping]] = ..., free: _Optional[_Union[FreeSegment, _Mapping]] = ..., follow: _Optional[_Union[FollowStaged, _Mapping]] = ..., cancel: _Optional[_Union[CancelStaged, _Mapping]] = ..., read: _Optional[_Union[ReadStaged, _Mapping]] = ...) -> None: ...

class StagedBlob(_message.Message):
    __slots__ = ["offset", "size_bytes"]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size_bytes: int
    def __init__(self, offset: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class StagedShard(_message.Message):
    __slots__ = ["blobs", "compression", "id", "order", "patience_ms", "registered_save_id", "segment_id"]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_MS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[StagedBlob]
    compression: str
    id: str
    order: _control_pb2.BeginSaveRequest
    patience_ms: int
    registered_save_id: str
    segment_id: str
    def __init__(self, id: _Optional[str] = ..., segment_id: _Optional[str] = ..., order: _Optional[_Union[_control_pb2.BeginSaveRequest, _Mapping]] = ..., blobs: _Optional[_Iterable[_Union[StagedBlob, _Mapping]]] = ..., patience_ms: _Optional[int] = ..., registered_save_id: _Optional[str] = ..., compression: _Optional[str] = ...) -> None: ...

class StagePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
