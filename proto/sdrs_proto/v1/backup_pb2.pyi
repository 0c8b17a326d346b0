from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BACKUP_RUN_KIND_BACKUP: BackupRunKind
BACKUP_RUN_KIND_IMPORT: BackupRunKind
BACKUP_RUN_KIND_PRUNE: BackupRunKind
BACKUP_RUN_KIND_UNSPECIFIED: BackupRunKind
BACKUP_RUN_KIND_VERIFY: BackupRunKind
DESCRIPTOR: _descriptor.FileDescriptor

class AddBackupTargetRequest(_message.Message):
    __slots__ = ["request_id", "take_over", "target"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    take_over: bool
    target: BackupTarget
    def __init__(self, request_id: _Optional[str] = ..., target: _Optional[_Union[BackupTarget, _Mapping]] = ..., take_over: bool = ...) -> None: ...

class AddBackupTargetResponse(_message.Message):
    __slots__ = ["target"]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: BackupTarget
    def __init__(self, target: _Optional[_Union[BackupTarget, _Mapping]] = ...) -> None: ...

class Backup(_message.Message):
    __slots__ = ["attempt", "backed_up_unix_ms", "cluster_id", "committed_unix_ms", "damage", "held", "in_cluster", "job", "pool", "save_id", "size_bytes", "step", "target", "uploaded_bytes", "verified_unix_ms"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BACKED_UP_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    IN_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    backed_up_unix_ms: int
    cluster_id: str
    committed_unix_ms: int
    damage: str
    held: bool
    in_cluster: bool
    job: str
    pool: str
    save_id: str
    size_bytes: int
    step: int
    target: str
    uploaded_bytes: int
    verified_unix_ms: int
    def __init__(self, target: _Optional[str] = ..., cluster_id: _Optional[str] = ..., save_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., pool: _Optional[str] = ..., size_bytes: _Optional[int] = ..., uploaded_bytes: _Optional[int] = ..., committed_unix_ms: _Optional[int] = ..., backed_up_unix_ms: _Optional[int] = ..., verified_unix_ms: _Optional[int] = ..., damage: _Optional[str] = ..., held: bool = ..., in_cluster: bool = ...) -> None: ...

class BackupPolicy(_message.Message):
    __slots__ = ["cron", "every_seconds", "evict_after_seconds", "job", "keep_daily", "keep_hourly", "keep_last", "keep_weekly", "on_commit", "pool", "target"]
    CRON_FIELD_NUMBER: _ClassVar[int]
    EVERY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVICT_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KEEP_DAILY_FIELD_NUMBER: _ClassVar[int]
    KEEP_HOURLY_FIELD_NUMBER: _ClassVar[int]
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    KEEP_WEEKLY_FIELD_NUMBER: _ClassVar[int]
    ON_COMMIT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    cron: str
    every_seconds: int
    evict_after_seconds: int
    job: str
    keep_daily: int
    keep_hourly: int
    keep_last: int
    keep_weekly: int
    on_commit: bool
    pool: str
    target: str
    def __init__(self, target: _Optional[str] = ..., pool: _Optional[str] = ..., job: _Optional[str] = ..., every_seconds: _Optional[int] = ..., cron: _Optional[str] = ..., on_commit: bool = ..., keep_last: _Optional[int] = ..., keep_hourly: _Optional[int] = ..., keep_daily: _Optional[int] = ..., keep_weekly: _Optional[int] = ..., evict_after_seconds: _Optional[int] = ...) -> None: ...

class BackupPolicyStatus(_message.Message):
    __slots__ = ["behind", "last_unix_ms", "next_unix_ms", "policy"]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    behind: str
    last_unix_ms: int
    next_unix_ms: int
    policy: BackupPolicy
    def __init__(self, policy: _Optional[_Union[BackupPolicy, _Mapping]] = ..., last_unix_ms: _Optional[int] = ..., next_unix_ms: _Optional[int] = ..., behind: _Optional[str] = ...) -> None: ...

class BackupRun(_message.Message):
    __slots__ = ["bytes_per_second", "current", "deleted_bytes", "deleted_checkpoints", "deleted_objects", "done_bytes", "done_checkpoints", "ended_unix_ms", "failed_checkpoints", "failure", "id", "kind", "moved_bytes", "problems", "selection", "skipped_checkpoints", "started_unix_ms", "target", "total_bytes", "total_checkpoints", "trigger"]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    DELETED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELETED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    DELETED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DONE_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    current: str
    deleted_bytes: int
    deleted_checkpoints: int
    deleted_objects: int
    done_bytes: int
    done_checkpoints: int
    ended_unix_ms: int
    failed_checkpoints: int
    failure: str
    id: str
    kind: BackupRunKind
    moved_bytes: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    selection: BackupSelection
    skipped_checkpoints: int
    started_unix_ms: int
    target: str
    total_bytes: int
    total_checkpoints: int
    trigger: str
    def __init__(self, id: _Optional[str] = ..., target: _Optional[str] = ..., kind: _Optional[_Union[BackupRunKind, str]] = ..., trigger: _Optional[str] = ..., selection: _Optional[_Union[BackupSelection, _Mapping]] = ..., started_unix_ms: _Optional[int] = ..., ended_unix_ms: _Optional[int] = ..., done_checkpoints: _Optional[int] = ..., total_checkpoints: _Optional[int] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., failure: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ..., skipped_checkpoints: _Optional[int] = ..., failed_checkpoints: _Optional[int] = ..., deleted_checkpoints: _Optional[int] = ..., deleted_objects: _Optional[int] = ..., deleted_bytes: _Optional[int] = ..., current: _Optional[str] = ...) -> None: ...

class BackupSelection(_message.Message):
    __slots__ = ["dry_run", "full", "into_pool", "job", "lazy", "missing_only", "pool", "step"]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    INTO_POOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LAZY_FIELD_NUMBER: _ClassVar[int]
    MISSING_ONLY_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    full: bool
    into_pool: str
    job: str
    lazy: bool
    missing_only: bool
    pool: str
    step: int
    def __init__(self, pool: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., full: bool = ..., dry_run: bool = ..., into_pool: _Optional[str] = ..., lazy: bool = ..., missing_only: bool = ...) -> None: ...

class BackupTarget(_message.Message):
    __slots__ = ["addressing", "bucket", "ca_file", "concurrency", "credentials", "encryption_key", "endpoint", "former_keys", "max_bytes_per_second", "name", "prefix", "region", "source_cluster_id"]
    ADDRESSING_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CA_FILE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_KEY_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FORMER_KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    addressing: str
    bucket: str
    ca_file: str
    concurrency: int
    credentials: str
    encryption_key: str
    endpoint: str
    former_keys: _containers.RepeatedScalarFieldContainer[str]
    max_bytes_per_second: int
    name: str
    prefix: str
    region: str
    source_cluster_id: str
    def __init__(self, name: _Optional[str] = ..., endpoint: _Optional[str] = ..., bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., region: _Optional[str] = ..., addressing: _Optional[str] = ..., ca_file: _Optional[str] = ..., credentials: _Optional[str] = ..., encryption_key: _Optional[str] = ..., former_keys: _Optional[_Iterable[str]] = ..., max_bytes_per_second: _Optional[int] = ..., concurrency: _Optional[int] = ..., source_cluster_id: _Optional[str] = ...) -> None: ...

class BackupTargetStatus(_message.Message):
    __slots__ = ["checkpoints", "failing_since_unix_ms", "failure", "newest_unix_ms", "objects", "run", "stored_bytes", "target"]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FAILING_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    checkpoints: int
    failing_since_unix_ms: int
    failure: str
    newest_unix_ms: int
    objects: int
    run: BackupRun
    stored_bytes: int
    target: BackupTarget
    def __init__(self, target: _Optional[_Union[BackupTarget, _Mapping]] = ..., checkpoints: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., objects: _Optional[int] = ..., newest_unix_ms: _Optional[int] = ..., failure: _Optional[str] = ..., failing_since_unix_ms: _Optional[int] = ..., run: _Optional[_Union[BackupRun, _Mapping]] = ...) -> None: ...

class GetBackupStatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetBackupStatusResponse(_message.Message):
    __slots__ = ["jobs", "warnings"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobBackupStatus]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobBackupStatus, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class HoldBackupRequest(_message.Message):
    __slots__ = ["held", "job", "request_id", "step", "target"]
    HELD_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    held: bool
    job: str
    request_id: str
    step: int
    target: str
    def __init__(self, request_id: _Optional[str] = ..., target: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., held: bool = ...) -> None: ...

class HoldBackupResponse(_message.Message):
    __slots__ = ["backup"]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    backup: Backup
    def __init__(self, backup: _Optional[_Union[Backup, _Mapping]] = ...) -> None: ...

class JobBackupStatus(_message.Message):
    __slots__ = ["behind", "cluster_committed_unix_ms", "job", "newest_committed_unix_ms", "newest_step", "pool", "target", "waiting_checkpoints"]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_COMMITTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NEWEST_COMMITTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_STEP_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WAITING_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    behind: str
    cluster_committed_unix_ms: int
    job: str
    newest_committed_unix_ms: int
    newest_step: int
    pool: str
    target: str
    waiting_checkpoints: int
    def __init__(self, job: _Optional[str] = ..., pool: _Optional[str] = ..., target: _Optional[str] = ..., newest_step: _Optional[int] = ..., newest_committed_unix_ms: _Optional[int] = ..., cluster_committed_unix_ms: _Optional[int] = ..., waiting_checkpoints: _Optional[int] = ..., behind: _Optional[str] = ...) -> None: ...

class ListBackupPoliciesRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListBackupPoliciesResponse(_message.Message):
    __slots__ = ["policies"]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[BackupPolicyStatus]
    def __init__(self, policies: _Optional[_Iterable[_Union[BackupPolicyStatus, _Mapping]]] = ...) -> None: ...

class ListBackupRunsRequest(_message.Message):
    __slots__ = ["target"]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class ListBackupRunsResponse(_message.Message):
    __slots__ = ["runs"]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[BackupRun]
    def __init__(self, runs: _Optional[_Iterable[_Union[BackupRun, _Mapping]]] = ...) -> None: ...

class ListBackupTargetsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListBackupTargetsResponse(_message.Message):
    __slots__ = ["targets"]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[BackupTargetStatus]
    def __init__(self, targets: _Optional[_Iterable[_Union[BackupTargetStatus, _Mapping]]] = ...) -> None: ...

class ListBackupsRequest(_message.Message):
    __slots__ = ["from_bucket", "job", "page_size", "page_token", "target"]
    FROM_BUCKET_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    from_bucket: bool
    job: str
    page_size: int
    page_token: str
    target: str
    def __init__(self, target: _Optional[str] = ..., job: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., from_bucket: bool = ...) -> None: ...

class ListBackupsResponse(_message.Message):
    __slots__ = ["backups", "next_page_token"]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    backups: _containers.RepeatedCompositeFieldContainer[Backup]
    next_page_token: str
    def __init__(self, backups: _Optional[_Iterable[_Union[Backup, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RecallCheckpointRequest(_message.Message):
    __slots__ = ["job", "request_id", "save_id", "step"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    request_id: str
    save_id: str
    step: int
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., save_id: _Optional[str] = ...) -> None: ...

class RecallCheckpointResponse(_message.Message):
    __slots__ = ["done_bytes", "is_done", "target", "total_bytes"]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    is_done: bool
    target: str
    total_bytes: int
    def __init__(self, target: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., is_done: bool = ...) -> None: ...

class RemoveBackupPolicyRequest(_message.Message):
    __slots__ = ["job", "pool", "request_id", "target"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    job: str
    pool: str
    request_id: str
    target: str
    def __init__(self, request_id: _Optional[str] = ..., target: _Optional[str] = ..., pool: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class RemoveBackupPolicyResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class RemoveBackupTargetRequest(_message.Message):
    __slots__ = ["accept_data_loss", "name", "request_id"]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    accept_data_loss: bool
    name: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., accept_data_loss: bool = ...) -> None: ...

class RemoveBackupTargetResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class RotateBackupKeyRequest(_message.Message):
    __slots__ = ["encryption_key", "name", "request_id"]
    ENCRYPTION_KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    encryption_key: str
    name: str
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., encryption_key: _Optional[str] = ...) -> None: ...

class RotateBackupKeyResponse(_message.Message):
    __slots__ = ["rewrapped_keys"]
    REWRAPPED_KEYS_FIELD_NUMBER: _ClassVar[int]
    rewrapped_keys: int
    def __init__(self, rewrapped_keys: _Optional[int] = ...) -> None: ...

class SetBackupPolicyRequest(_message.Message):
    __slots__ = ["policy", "request_id"]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    policy: BackupPolicy
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., policy: _Optional[_Union[BackupPolicy, _Mapping]] = ...) -> None: ...

class SetBackupPolicyResponse(_message.Message):
    __slots__ = ["policy"]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: BackupPolicy
    def __init__(self, policy: _Optional[_Union[BackupPolicy, _Mapping]] = ...) -> None: ...

class StartBackupRunRequest(_message.Message):
    __slots__ = ["kind", "request_id", "selection", "target"]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    kind: BackupRunKind
    request_id: str
    selection: BackupSelection
    target: str
    def __init__(self, request_id: _Optional[str] = ..., target: _Optional[str] = ..., kind: _Optional[_Union[BackupRunKind, str]] = ..., selection: _Optional[_Union[BackupSelection, _Mapping]] = ...) -> None: ...

class StartBackupRunResponse(_message.Message):
    __slots__ = ["run"]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: BackupRun
    def __init__(self, run: _Optional[_Union[BackupRun, _Mapping]] = ...) -> None: ...

class StopBackupRunRequest(_message.Message):
    __slots__ = ["target"]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class StopBackupRunResponse(_message.Message):
    __slots__ = ["run"]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: BackupRun
    def __init__(self, run: _Optional[_Union[BackupRun, _Mapping]] = ...) -> None: ...

class TestBackupTargetRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TestBackupTargetResponse(_message.Message):
    __slots__ = ["detail", "ok", "step", "where"]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    detail: str
    ok: bool
    step: str
    where: str
    def __init__(self, where: _Optional[str] = ..., step: _Optional[str] = ..., ok: bool = ..., detail: _Optional[str] = ...) -> None: ...

class BackupRunKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
