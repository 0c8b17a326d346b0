"""One job's history: save and restore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from sdrs.attempt import resolve_attempt
from sdrs.job.environment import resume_limit
from sdrs.job.pace import SavePace
from sdrs.restore.into import read_into
from sdrs.restore.parts import OpenShard
from sdrs.restore.readings import export_state, read_files, read_state
from sdrs.restore.restorer import Restorer
from sdrs.rpc.control import Control
from sdrs.save.order import SaveOrder
from sdrs.save.policy import SavePolicy
from sdrs.saving import Saving
from sdrs.staleness import warn_if_stale
from sdrs.views import Report, Verification, problem_from
from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import ContentKind, Shard
from sdrs_core.checkpoints import Save as Checkpoint
from sdrs_core.errors import NotFoundError, UnavailableError
from sdrs_core.ids import JobName, PoolName, check_rank, check_step, random_id
from sdrs_core.levels import Level
from sdrs_proto.convert import save_from, shard_from
from sdrs_proto.limits import CALL_SECONDS
from sdrs_proto.v1 import control_pb2 as messages

if TYPE_CHECKING:
    from sdrs.cluster import Cluster
    from sdrs.state import EncodedState

_CHECKPOINTS_PEEKED = 8
# Each may name thousands of blobs, and a page is one message.
_SHARDS_PER_PAGE = 20
# The slowest disk that a verification waits for.
_VERIFIED_BYTES_PER_SECOND = 10_000_000


CheckpointList = list[Checkpoint]  # inside the class, `list` is the method


class Checkpoints:
    """Made by ``cluster.checkpoints(job)``."""

    def __init__(
        self,
        cluster: Cluster,
        job: JobName,
        *,
        pool: PoolName,
        level: Level,
        attempt: str | int | Attempt | None,
        policy: SavePolicy | None = None,
        compression: str = "",
    ) -> None:
        self.job = job
        self.pool = pool
        self._cluster = cluster
        self._level = level
        self._attempt = attempt
        self._policy = policy or SavePolicy()
        self._compression = compression
        self._pace = SavePace(job)

    def save(
        self,
        step: int,
        state: Any,
        *,
        rank: int = 0,
        world_size: int = 1,
        attempt: str | int | Attempt | None = None,
        progress: Report | None = None,
    ) -> Saving:
        """Save ``state``: nested dicts, lists and tuples of arrays (torch, numpy) and plain values.

        Returns once the state is copied and may change again. Where a daemon of this user runs on this host, the copy
        is the daemon's: it becomes a checkpoint even if this process is killed right away. One that is larger than the
        staging memory is sent from where it lies instead, and this returns once it is durable on its node. With several
        ranks each saves its own part under the same attempt; the checkpoint is committed when all are in.

        ``progress(sent, total)`` is told the bytes as they go, in the thread that sends them; it starts again from 0
        when another node has to be tried. What it raises ends the save.
        """
        from sdrs.state import encode

        order = self._order(step, rank, world_size, attempt, ContentKind.STATE)
        return self._save(order, encode(state), progress)

    def save_files(
        self,
        step: int,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        attempt: str | int | Attempt | None = None,
        progress: Report | None = None,
    ) -> Saving:
        """Save the folder at ``path``; as ``save`` otherwise."""
        from sdrs.state import encode_files

        order = self._order(step, rank, world_size, attempt, ContentKind.FILES)
        return self._save(order, encode_files(path), progress)

    def send_shard(self, step: int, shard: EncodedState, *, rank: int, world_size: int) -> None:
        """For adapters that make their own shards: returns once this one is durable, without a copy of it and without
        waiting for the others. Whoever saves the last one waits for the commit.
        """
        self._cluster.process().saves.send(self._order(step, rank, world_size, None, ContentKind.STATE), shard)
        self._pace.saved(step, None)

    def should_save(self, step: int | None = None, *, world_size: int | None = None) -> bool:
        """Whether this is the step to save at: the job was warned of a preemption, or its save interval is over. To be
        asked after each step, by all ranks: they agree on one step, the same for all. Once said, it is said again for
        the next cause only.

        The number of ranks is the launcher's (RANK and WORLD_SIZE, or MPI's or Slurm's); ``world_size=1`` is for one
        rank that asks for all, and tells them. Outside of a job only SDRS_SAVE_INTERVAL_SECONDS is a cause.
        """
        return self._pace.should_save(step, world_size)

    def restore(
        self,
        step: int | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        into: Any = None,
        resume: bool | None = None,
        progress: Report | None = None,
    ) -> Any:
        """The state of ``step``, else of the newest generation that can be restored; every byte is verified (I5).

        ``into`` is a state whose arrays (torch or numpy) are filled in place, without a second copy of them in memory;
        the result has them, and the plain values of the checkpoint. An array of another shape or dtype, or that the
        checkpoint lacks, is an error that names its path, before anything is written. What ``into`` lacks is made.

        With ``world_size`` above 1 all ranks must call this, and all get the same generation (P16). ``resume`` (the
        default under SDRS_ATTEMPT) says that the job goes on from there: later generations are set aside. What the
        scheduler started goes on from SDRS_RESUME_STEP then, or from before that if it cannot be restored.
        ``progress(read, total)`` is told the bytes.
        """
        restorer = self._restorer(rank, world_size, ContentKind.STATE, progress)
        read = read_state if into is None else partial(read_into, into=into)
        limit = resume_limit(os.environ, self.job)
        return restorer.restore(read, step, resume=_resumes(resume), up_to_step=limit).value

    def restore_files(
        self,
        dest: str | os.PathLike[str],
        step: int | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        resume: bool | None = None,
        progress: Report | None = None,
    ) -> Checkpoint:
        """Put the files of a checkpoint into the folder ``dest``; as ``restore`` otherwise.

        Files of the same names are replaced, each at once and only after everything was verified.
        """
        restorer = self._restorer(rank, world_size, ContentKind.FILES, progress)
        limit = resume_limit(os.environ, self.job)
        read = partial(read_files, dest=dest)
        return restorer.restore(read, step, resume=_resumes(resume), up_to_step=limit).checkpoint

    def export_state(
        self, dest: str | os.PathLike[str], step: int | None = None, *, progress: Report | None = None
    ) -> Checkpoint:
        """Write the state of all ranks into the folder ``dest``, as safetensors files that other tools read."""
        restorer = self._restorer(None, 1, ContentKind.STATE, progress)
        return restorer.restore(lambda readers: export_state(readers, dest), step, resume=False).checkpoint

    def open(self, step: int | None = None, *, rank: int = 0) -> OpenShard:
        """Parts of what ``rank`` saved at ``step`` (the newest, if none is given): single arrays, files and ranges of
        bytes, without reading the rest. ``rank`` is any of those that saved, whatever the number of ranks now.
        """
        checkpoint = self.get(step) if step is not None else self.latest()
        if checkpoint is None:
            raise NotFoundError(f'job "{self.job}" has no checkpoint yet', job=self.job)
        return OpenShard(self._cluster.process(), checkpoint, rank)

    def list(self, all_states: bool = False) -> CheckpointList:
        """The checkpoints, newest first; with ``all_states`` also those set aside and those in the trash."""
        request = messages.ListCheckpointsRequest(job=self.job, all_states=all_states)
        found = [save_from(checkpoint) for page in self._listed(request) for checkpoint in page.checkpoints]
        # The trash comes last, and by its ids.
        return sorted(found, key=lambda save: (-save.step, -save.attempt, -save.created_unix_ms, save.save_id))

    def latest(self) -> Checkpoint | None:
        # The newest entries of the catalog may be saves that are not committed: a page can be empty, and not the last.
        request = messages.ListCheckpointsRequest(job=self.job, page_size=_CHECKPOINTS_PEEKED)
        for page in self._listed(request):
            if page.checkpoints:
                return save_from(page.checkpoints[0])
        return None

    def get(self, step: int) -> Checkpoint:
        request = messages.GetCheckpointRequest(job=self.job, step=check_step(step))
        answer = self._control.call("get_checkpoint", request)
        warn_if_stale(answer.stale, self.job)
        return save_from(answer.checkpoint)

    def _listed(self, request: messages.ListCheckpointsRequest) -> Iterator[messages.ListCheckpointsResponse]:
        for page in self._control.pages("list_checkpoints", request):
            warn_if_stale(page.stale, self.job)
            yield page

    def shards(self, step: int) -> tuple[Shard, ...]:
        """What each rank saved, and which nodes hold it."""
        request = messages.ListShardsRequest(save_id=self.get(step).save_id, page_size=_SHARDS_PER_PAGE)
        return tuple(shard_from(shard) for page in self._control.pages("list_shards", request) for shard in page.shards)

    def delete(self, step: int) -> Checkpoint:
        """Delete a checkpoint; ``undelete`` brings it back within the cluster's grace period."""
        return self._change("delete_checkpoint", messages.DeleteCheckpointRequest, step)

    def undelete(self, step: int) -> Checkpoint:
        return self._change("undelete_checkpoint", messages.UndeleteCheckpointRequest, step)

    def hold(self, step: int) -> Checkpoint:
        """Keep a checkpoint whatever the pool's retention says, until ``release``."""
        return self._change("hold_checkpoint", messages.HoldCheckpointRequest, step)

    def release(self, step: int) -> Checkpoint:
        return self._change("release_checkpoint", messages.ReleaseCheckpointRequest, step)

    def verify(self, step: int, progress: Report | None = None) -> Verification:
        """Have every stored byte read and checked where it lies; ``progress(checked, total)`` is told the bytes."""
        checkpoint = self.get(step)
        request = messages.VerifyCheckpointRequest(request_id=random_id(), job=self.job, step=step)
        seconds = CALL_SECONDS + checkpoint.size_bytes / _VERIFIED_BYTES_PER_SECOND
        for answer in self._control.stream("verify_checkpoint", request, timeout_seconds=seconds):
            if progress:
                progress(answer.checked_bytes, answer.total_bytes)
            if answer.done:
                problems = tuple(problem_from(problem) for problem in answer.problems)
                return Verification(
                    not problems, save_from(answer.checkpoint), answer.checked_bytes, answer.checked_blobs, problems
                )
        raise UnavailableError(
            f"the controller ended the verification of {checkpoint.title} before it was done: try again"
        )

    @property
    def skipped_count(self) -> int:
        """Saves of this process that were left out (``on_full="skip"``)."""
        return self._cluster.process().saves.skipped_count(self)

    def __repr__(self) -> str:
        return f'<Checkpoints of "{self.job}" at {self._cluster.url}>'

    @property
    def _control(self) -> Control:
        return self._cluster.process().control

    def _order(
        self, step: int, rank: int, world_size: int, attempt: str | int | Attempt | None, kind: ContentKind
    ) -> SaveOrder:
        check_step(step)
        check_rank(rank, world_size)
        resolved = resolve_attempt(self._attempt if attempt is None else attempt, self.job, world_size)
        return SaveOrder(self.job, step, rank, world_size, resolved, self.pool, self._level, kind, self._compression)

    def _save(self, order: SaveOrder, payload: EncodedState, progress: Report | None) -> Saving:
        saving = self._cluster.process().saves.save(self, order, payload, progress, self._policy)
        self._pace.saved(order.step, saving)
        return saving

    def _restorer(self, rank: int | None, world_size: int, kind: ContentKind, progress: Report | None) -> Restorer:
        return Restorer(
            self._cluster.process(),
            self.job,
            rank=rank,
            world_size=world_size,
            kind=kind,
            attempt=self._attempt,
            progress=progress,
        )

    def _change(self, method: str, request: Any, step: int) -> Checkpoint:
        message = request(request_id=random_id(), job=self.job, step=check_step(step))
        return save_from(self._control.call(method, message).checkpoint)


def _resumes(given: bool | None) -> bool:
    return "SDRS_ATTEMPT" in os.environ if given is None else given
