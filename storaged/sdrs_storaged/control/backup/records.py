"""What the MetaStore keeps of backups. The bucket alone is enough to restore; this says what need not be uploaded
again, and what nobody needs any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Policy, Target, TargetName
from sdrs_core.checkpoints import ContentKind
from sdrs_core.ids import JobName, PoolName, SaveId

# I10; the record of a run stays small, and is written often.
_MAX_PROBLEMS = 50
_MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class TargetRecord:
    target: Target
    request_id: str = ""
    # Of the cluster, when what the catalog has of it was last known to be in the bucket.
    incarnation: int = 0
    # Its records are on their way out; nothing is begun with it any more.
    is_leaving: bool = False
    # Why the last attempt failed, and since when all did; empty: it did not.
    failure: str = ""
    failing_since_unix_ms: int = 0


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    policy: Policy
    set_unix_ms: int
    # When the last run of it began that went well, and the last one at all; 0: none yet.
    done_unix_ms: int = 0
    tried_unix_ms: int = 0
    # How many have failed since, and why the last one did.
    failures: int = 0
    failure: str = ""


class ObjectState(StrEnum):
    UPLOADING = "uploading"
    STORED = "stored"
    # P25: never referred to again. What has the same content is uploaded under a name of its own.
    CONDEMNED = "condemned"


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """Content by its identity.

    ``former``: keys of condemned objects of the same content that may still be there; ``also``: of such that backups
    refer to which another history of this cluster made. They stay as long as the content is in use.
    """

    place: ObjectPlace
    state: ObjectState
    former: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


class CopyState(StrEnum):
    UPLOADING = "uploading"
    # The commit record is in the bucket, so it can be restored from there (I2).
    LISTED = "listed"
    CONDEMNED = "condemned"


@dataclass(frozen=True, slots=True)
class Copy:
    """One checkpoint in one bucket."""

    target: TargetName
    # Whose checkpoint it is, by the id that it has there.
    cluster_id: str
    save_id: SaveId
    job: JobName
    step: int
    attempt: int
    world_size: int
    pool: PoolName
    kind: ContentKind
    size_bytes: int
    created_unix_ms: int
    committed_unix_ms: int
    state: CopyState = CopyState.UPLOADING
    # Of its size, what the bucket did not have before.
    uploaded_bytes: int = 0
    backed_up_unix_ms: int = 0
    verified_unix_ms: int = 0
    damage: str = ""
    held: bool = False

    @property
    def title(self) -> str:
        return f"{self.job} step {self.step}"

    @property
    def is_good(self) -> bool:
        return self.state is CopyState.LISTED and not self.damage


@dataclass(frozen=True, slots=True)
class Uses:
    """Of one rank's shard in a copy. ``manifest``: the BLAKE3 of what the bucket has of it; empty: nothing yet."""

    identities: tuple[str, ...]
    manifest: str = ""


@dataclass(slots=True)
class Run:
    id: str
    target: TargetName
    kind: RunKind
    trigger: str
    selection: Selection
    request_id: str
    started_unix_ms: int
    # 0 while it goes on.
    ended_unix_ms: int = 0
    done_checkpoints: int = 0
    total_checkpoints: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    moved_bytes: int = 0
    # Why it ended early, or what it is waiting for now.
    failure: str = ""
    problems: list[str] = field(default_factory=list)
    skipped_checkpoints: int = 0
    failed_checkpoints: int = 0
    deleted_checkpoints: int = 0
    deleted_objects: int = 0
    deleted_bytes: int = 0
    current: str = ""
    # The last key that is done, of whatever its kind goes through: the next controller goes on behind it.
    done_key: str = ""
    # The key of the policy whose run this is; empty: an operator asked for it.
    policy_key: str = ""
    # An operator's word.
    is_stopping: bool = False

    @property
    def is_under_way(self) -> bool:
        return not self.ended_unix_ms

    @property
    def title(self) -> str:
        of = f' of job "{self.selection.job}"' if self.selection.job else ""
        return f"{self.kind} with target {self.target}{of}"

    def tell(self, sentence: str) -> None:
        """The first ones; the counts tell of the others."""
        sentence = sentence[:_MAX_PROBLEM_CHARS]
        if len(self.problems) < _MAX_PROBLEMS and sentence not in self.problems:
            self.problems.append(sentence)


def best_first(copies: Sequence[Copy]) -> list[Copy]:
    """To be read from: sound ones first, of these the one that was verified last."""
    return sorted(copies, key=lambda copy: (bool(copy.damage), -copy.verified_unix_ms, copy.target))
