"""A new generation of a step, though others may write to it as well.

1. ``_check_owner``: a job that a training run owns is left alone (its attempt would be superseded, P1).
2. ``_let_others_finish``: a writer that is at it is waited for; a dead one not for long.
3. ``BeginSave`` under an attempt of its own: from here on nobody who came before can begin or seal anything.
4. ``_settle``: what was sealed before that may still be committed; it is waited for.
5. The newest generation is read *now*: nothing can come between it and the commit, except
6. a writer who does the same after us. Then our commit fails as stale, and we start again from its generation.

So of two writers of different files both succeed, and neither file is lost.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from sdrs.cluster import Cluster
from sdrs.fsspec.carrying import new_generation
from sdrs.fsspec.failures import os_errors
from sdrs.fsspec.generations import Generations
from sdrs.fsspec.places import Place
from sdrs.fsspec.trees import Edit, Tree, apply
from sdrs.save.order import SaveOrder
from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import SdrsError, StaleAttemptError
from sdrs_core.ids import random_id
from sdrs_core.levels import Level
from sdrs_proto.convert import attempt_to, kind_to, level_to, save_from
from sdrs_proto.v1 import control_pb2 as messages

MAX_TRIES = 20
FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 2.0
# How long another writer's save is waited for before it is taken for dead. A live one that is overtaken tries again.
PATIENCE_SECONDS = 10.0
LOOK_SECONDS = 0.05
# No host name has a colon, so nobody else's owner begins like this.
OWNER = "fsspec: "
_LISTED = 8


class StepWriter:
    def __init__(
        self,
        cluster: Cluster,
        generations: Generations,
        job: str,
        step: int,
        *,
        pool: str | None,
        level: Level,
        compression: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._control = cluster.process().control
        self._generations = generations
        self._place = Place(job, step)
        self._job = job
        self._step = step
        self._pool = pool
        self._level = level
        self._compression = compression
        self._sleep = sleep

    def write(self, edits: Sequence[Edit]) -> None:
        """Commit the newest generation of the step with ``edits``; if nothing is left in it, delete the step."""
        with os_errors(self._place.path):
            for pause_seconds in self._pauses():
                self._check_owner()
                try:
                    self._try(self._order(self._let_others_finish()), edits)
                    return
                except StaleAttemptError:
                    self._sleep(pause_seconds)
        raise OSError(errno.EBUSY, f"others wrote to the job {MAX_TRIES} times in a row: try again", self._place.path)

    def _try(self, order: SaveOrder, edits: Sequence[Edit]) -> None:
        begun = self._begin(order)
        try:
            newest = self._settle(begun.attempt)
            tree = apply(self._files(newest), edits, lambda parts: self._place.below(*parts).path)
            if tree:
                new = new_generation(tree)
                self._cluster.process().saves.commit(order, new.content, new.known)
                return
        except BaseException:
            self._abort(begun, "its writer gave up")
            raise
        self._abort(begun, "nothing is left to save")
        if newest:
            self._delete(newest)

    def _delete(self, save: Save) -> None:
        """The step, unless somebody wrote to it in this moment."""
        if self._generations.find(self._job, self._step).save_id != save.save_id:
            raise StaleAttemptError(f"{save.title} has a newer generation")
        self._cluster.checkpoints(self._job).delete(self._step)

    def _check_owner(self) -> None:
        for job in self._cluster.jobs():
            if job.name == self._job and job.attempt and not job.attempt_owner.startswith(OWNER):
                raise PermissionError(
                    errno.EPERM,
                    f'job "{self._job}" belongs to a run ({job.attempt_owner}), which a write would take it away from: '
                    "write under another job name",
                    self._place.path,
                )

    def _files(self, newest: Save | None) -> Tree:
        if newest is None:
            return {}
        if newest.kind is not ContentKind.FILES:
            raise PermissionError(
                errno.EPERM,
                "the step holds a state: use restore, or write to another step",
                self._place.path,
            )
        return self._generations.open(newest).tree

    # Others

    def _let_others_finish(self) -> Save | None:
        """The newest generation, after waiting a while for those who are about to make a newer one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            pending, newest = self._look()
            if not pending or time.monotonic() > deadline:
                return newest
            self._sleep(LOOK_SECONDS * random.uniform(0.5, 1.5))

    def _settle(self, attempt: int) -> Save | None:
        """The newest generation, once no older attempt can make another: the controller has ended what was pending, and
        what was sealed became a checkpoint that we must not miss.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            pending, newest = self._look()
            if not any(save.attempt < attempt and save.step == self._step for save in pending):
                return newest
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "an older write has no end: try again", self._place.path)
            self._sleep(LOOK_SECONDS)

    def _look(self) -> tuple[list[Save], Save | None]:
        """Saves under way, of the step and of later ones; and the newest generation of the step."""
        pending: list[Save] = []
        request = messages.ListCheckpointsRequest(job=self._job, all_states=True, page_size=_LISTED)
        for page in self._control.pages("list_checkpoints", request):
            for save in map(save_from, page.checkpoints):
                # Newest steps first, and of a step the newest attempts. Nothing is pending below one that has ended:
                # its writer has waited for that, and there may be hundreds.
                if save.state is SaveState.PENDING and save.step >= self._step:
                    pending.append(save)
                elif save.step <= self._step:
                    is_current = save.step == self._step and save.state is SaveState.COMMITTED
                    return pending, save if is_current else None
        return pending, None

    def _pauses(self) -> Iterator[float]:
        """Ever longer, each cut by chance, so that two who overtake each other part."""
        for number in range(MAX_TRIES):
            yield min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number) * random.uniform(0.2, 1.0)

    # The save

    def _order(self, newest: Save | None) -> SaveOrder:
        attempt = Attempt(f"fsspec:{random_id()}", 0, f"{OWNER}{socket.gethostname()} pid {os.getpid()}")
        pool = self._pool or (newest.pool if newest else DEFAULT_POOL)
        kind = ContentKind.FILES
        return SaveOrder(self._job, self._step, 0, 1, attempt, pool, self._level, kind, self._compression)

    def _begin(self, order: SaveOrder) -> messages.BeginSaveResponse:
        """Open the attempt, before anything is read; the save finds the same record."""
        request = messages.BeginSaveRequest(
            request_id=random_id(),
            job=order.job,
            step=order.step,
            rank=order.rank,
            world_size=order.world_size,
            attempt=attempt_to(order.attempt),
            pool=order.pool,
            level=level_to(order.level),
            kind=kind_to(order.kind),
            host=socket.gethostname(),
        )
        begun: messages.BeginSaveResponse = self._control.call("begin_save", request)
        return begun

    def _abort(self, begun: messages.BeginSaveResponse, reason: str) -> None:
        request = messages.AbortSaveRequest(
            request_id=random_id(),
            save_id=begun.save_id,
            job=self._job,
            step=self._step,
            capability=begun.capability,
            reason=reason,
        )
        with suppress(SdrsError):  # then it expires, or was superseded already
            self._control.call("abort_save", request, patience_seconds=0.0)
