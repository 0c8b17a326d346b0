"""What DCP calls to save.

1. ``set_up_storage_writer``, ``prepare_local_plan`` on all ranks, ``prepare_global_plan`` on the coordinator: all agree
   on the attempt and on their number, through the plan.
2. ``write_data`` on all ranks: each sends its shard from where it lies; it is durable and registered at the end.
3. ``finish`` on the coordinator, once all have: the metadata is the last shard, and its commit is waited for. It makes
   all of it visible at once (I2).
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from sdrs import forks
from sdrs.address import parse_checkpoint_url
from sdrs.attempt import resolve_attempt
from sdrs.checkpoints import Checkpoints
from sdrs.save.compression import Compress
from sdrs.torch.clusters import cluster_at
from sdrs.torch.metadata import DCP_VERSION, to_state
from sdrs.torch.shard import plan_shard
from sdrs.torch.staging import State, Ticket, staging
from sdrs_core.attempts import Attempt, attempt_from_environment
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import InvalidArgumentError, UnsupportedError
from sdrs_core.ids import random_id
from sdrs_core.levels import Level, parse_level

_runs: dict[int, str] = {}


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the coordinator tells each rank, in its plan. A planner that caches plans may bring that of an earlier save,
    so there is nothing in it that changes from one to the next.
    """

    rank: int
    rank_count: int
    # The coordinator's word for this start of the job, if no launcher has one.
    run: str
    owner: str


class StorageWriter(storage.StorageWriter):
    """``sdrs://host:port[,host:port...]/job/step``, or ``sdrs:///job/step`` with SDRS_URL.

    ``dcp.save`` returns when the checkpoint is committed, at the level that its pool promises; ``wait`` names a level
    to wait for beyond that. ``attempt`` says which start of the job this is (P1), else SDRS_ATTEMPT, torchrun or Slurm
    do; without any of them the coordinator's process stands for the start, and all ranks go by it. ``compress`` is that
    of ``cluster.checkpoints``.

    It is an AsyncStager too: ``dcp.async_save`` copies the state into memory that is kept from one save to the next.
    """

    # What DCP asks of an AsyncStager: ``stage`` has copied everything when it returns.
    _synchronize_after_execute = False
    should_synchronize_after_execute = False

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        pool: str | None = None,
        wait: str | Level | None = None,
        attempt: str | int | Attempt | None = None,
        compress: Compress | None = None,
    ) -> None:
        super().__init__()
        self._url = os.fspath(url)
        parse_checkpoint_url(self._url)
        self._pool = pool
        self._wait = wait
        self._attempt = attempt
        self._compress = compress
        self._agreed: Agreement | None = None
        self._ticket: Ticket | None = None

    def __getstate__(self) -> dict[str, Any]:
        # To the process of an async_save. This writer stays until that has ended, and keeps the memory until then.
        return {**self.__dict__, "_ticket": None}

    @property
    def checkpoint_id(self) -> str:
        return self._url

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        try:
            parse_checkpoint_url(os.fspath(checkpoint_id))
        except InvalidArgumentError:
            return False
        return True

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self._url)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._url = os.fspath(checkpoint_id)
            parse_checkpoint_url(self._url)
        self._agreed = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError(
                "use_collectives=False saves as many checkpoints as there are ranks: one of SDRS has the parts of all, "
                "leave use_collectives at True"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._check_level()
        run, owner = _own_run(), f"{socket.gethostname()} pid {os.getpid()}"
        self._agreed = Agreement(0, len(plans), run, owner)
        return [replace(plan, storage_data=replace(self._agreed, rank=rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        agreed = plan.storage_data
        assert isinstance(agreed, Agreement)
        ticket, self._ticket = self._ticket, None
        try:
            shard = plan_shard(plan, planner, agreed.rank)
            self._checkpoints(agreed).send_shard(
                self._step, shard.encoded, rank=agreed.rank, world_size=agreed.rank_count + 1
            )
        finally:
            if ticket:
                # It is durable, or nobody will send it: the next save may have the memory.
                ticket.is_over = True
        written: Future[list[WriteResult]] = Future()
        written.set_result(shard.results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._agreed is not None
        metadata.version = DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for written in results for result in written}
        metadata.storage_meta = self.storage_meta()
        rank_count = self._agreed.rank_count
        saving = self._checkpoints(self._agreed).save(
            self._step, to_state(metadata), rank=rank_count, world_size=rank_count + 1
        )
        saving.wait(self._wait)

    # AsyncStager

    def stage(self, state_dict: State) -> State:
        """A copy that training may go on beside."""
        copy, self._ticket = staging.copy(state_dict)
        return copy

    def synchronize_staging(self) -> None:
        pass

    def close(self) -> None:
        pass

    # What is saved where

    def _check_level(self) -> None:
        """Before anything is written: a level that is never reached is nothing to wait for."""
        if self._wait is None:
            return
        wanted, pool = parse_level(self._wait), self._pool or DEFAULT_POOL
        promised = cluster_at(parse_checkpoint_url(self._url)[0]).pool(pool).pool.level
        if wanted > promised:
            raise UnsupportedError(
                f'pool "{pool}" promises {promised}, so {wanted} is never reached: wait for {promised}, or save to a '
                "pool of that level"
            )

    @property
    def _step(self) -> int:
        return parse_checkpoint_url(self._url)[2]

    def _checkpoints(self, agreed: Agreement) -> Checkpoints:
        url, job, _ = parse_checkpoint_url(self._url)
        attempt = self._resolve_attempt(job, agreed)
        return cluster_at(url).checkpoints(job, pool=self._pool, attempt=attempt, compress=self._compress)

    def _resolve_attempt(self, job: str, agreed: Agreement) -> Attempt:
        is_named = self._attempt is not None or attempt_from_environment(os.environ, agreed.owner) is not None
        if is_named or agreed.rank_count == 1:
            return resolve_attempt(self._attempt, job, 1)
        return Attempt(agreed.run, 0, agreed.owner)


def _own_run() -> str:
    """One for each process, whatever it saves; a forked child has another."""
    return _runs.setdefault(forks.generation(), f"dcp:{random_id()}")
