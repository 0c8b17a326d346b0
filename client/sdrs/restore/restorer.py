"""Which generation is restored: the one asked for, the newest that can be, or what all ranks agree on (P16)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sdrs.attempt import resolve_attempt
from sdrs.errors import RestoreWarning
from sdrs.process import Process
from sdrs.restore.readings import Read, Reading
from sdrs.restore.shard_reader import ShardReader, open_shard
from sdrs.restore.targets import ByteCount
from sdrs.staleness import warn_if_stale
from sdrs.views import Report
from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import ContentKind, Save
from sdrs_core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    NotRestorableError,
    SdrsError,
    UnavailableError,
    WorldSizeMismatchError,
)
from sdrs_core.ids import JobName, check_rank, check_step, random_id
from sdrs_proto.convert import attempt_to, save_from
from sdrs_proto.limits import MAX_WAIT_MS
from sdrs_proto.v1 import control_pb2 as messages

_METHODS = {ContentKind.STATE: "restore", ContentKind.FILES: "restore_files"}
# What makes a generation unreadable, as opposed to a request that can never work.
_UNREADABLE = (CorruptDataError, UnavailableError)
_MAX_NAMED_JOBS = 10
_MAX_NAMED_GENERATIONS = 3

log = logging.getLogger("sdrs")


@dataclass(frozen=True, slots=True)
class Restored:
    checkpoint: Save
    value: Any


class Restorer:
    """``rank`` None stands for the parts of all ranks at once."""

    def __init__(
        self,
        process: Process,
        job: JobName,
        *,
        rank: int | None,
        world_size: int,
        kind: ContentKind,
        attempt: str | int | Attempt | None,
        progress: Report | None,
    ) -> None:
        if rank is not None:
            # Alone, any rank's part can be read; a rank among several must be one of them.
            is_alone = world_size == 1 and isinstance(rank, int) and rank > 0
            check_rank(rank, rank + 1 if is_alone else world_size)
        self._process = process
        self._control = process.control
        self._job = job
        self._rank = rank
        self._world_size = world_size
        self._kind = kind
        self._attempt = attempt
        self._progress = progress
        self._passed_over: list[str] = []
        self._restore_id = random_id()

    def restore(self, read: Read, step: int | None, *, resume: bool, up_to_step: int | None = None) -> Restored:
        """``up_to_step``: without a step, and when it resumes, nothing later than this one."""
        if step is not None:
            check_step(step)
        if resume or self._world_size > 1:
            limit = up_to_step if resume and step is None else None
            restored = self._restore_together(read, step, resume=resume, up_to_step=limit)
        elif step is not None:
            restored = self._restore_step(read, self._get(step))
        else:
            restored = self._restore_newest(read)
        if self._passed_over:
            text = f"{restored.checkpoint.title} is restored instead of newer ones: {self._reasons()}"
            warnings.warn(RestoreWarning(text), stacklevel=3)
        return restored

    # Alone: this only reads.

    def _restore_newest(self, read: Read) -> Restored:
        damaged = []
        for save in self._generations():
            why = self._why_damaged(save)
            if why:
                self._pass_over(save, why)
                damaged.append(save)
            elif restored := self._try(read, save):
                return restored
        # What is known to be damaged may still be whole for this rank; the checks will tell.
        for save in damaged:
            if restored := self._try(read, save):
                return restored
        raise NotRestorableError(
            f'no generation of job "{self._job}" can be restored now: {self._reasons()}', job=self._job
        )

    def _why_damaged(self, save: Save) -> str:
        """Empty if it is not, or not any more: a backup had it."""
        if not save.damage:
            return ""
        try:
            self._process.recalls.recall(save, self._progress)
        except NotFoundError:
            return save.damage
        except SdrsError as error:
            return f"{save.damage}; and from the backup: {error}"
        return ""

    def _try(self, read: Read, save: Save) -> Restored | None:
        try:
            return self._restore_step(read, save)
        except _UNREADABLE as error:
            self._pass_over(save, str(error))
            return None

    def _restore_step(self, read: Read, save: Save) -> Restored:
        readers = self._open(save)
        try:
            return Restored(save, _finish(read(readers)))
        except CorruptDataError as error:
            self._report_failed(save, self._restore_id, error)
            raise

    def _generations(self) -> Iterator[Save]:
        request = messages.ListCheckpointsRequest(job=self._job)
        is_empty = True
        for page in self._control.pages("list_checkpoints", request):
            warn_if_stale(page.stale, self._job)
            for message in page.checkpoints:
                is_empty = False
                yield save_from(message)
        if is_empty:
            raise self._no_checkpoint()

    def _get(self, step: int) -> Save:
        request = messages.GetCheckpointRequest(job=self._job, step=step)
        answer = self._control.call("get_checkpoint", request)
        warn_if_stale(answer.stale, self._job)
        return save_from(answer.checkpoint)

    def _no_checkpoint(self) -> NotFoundError:
        page = self._control.call("list_jobs", messages.ListJobsRequest(page_size=_MAX_NAMED_JOBS))
        names = ", ".join(job.job for job in page.jobs) or "none"
        more = ", ..." if page.next_page_token else ""
        return NotFoundError(f'job "{self._job}" has no checkpoint yet; known jobs: {names}{more}', job=self._job)

    # Together: a round pins one generation for all ranks, and no rank returns before all have verified it.

    def _restore_together(self, read: Read, step: int | None, *, resume: bool, up_to_step: int | None) -> Restored:
        attempt = attempt_to(resolve_attempt(self._attempt, self._job, self._world_size))
        while True:
            join = messages.JoinRoundRequest(
                request_id=random_id(),
                job=self._job,
                attempt=attempt,
                rank=self._rank or 0,
                world_size=self._world_size,
                step=step,
                resume=resume,
                up_to_step=up_to_step,
            )
            joined = self._control.call("join_round", join)
            save = save_from(joined.checkpoint)
            report = messages.ReportRoundRequest(
                job=self._job, attempt=attempt, round=joined.round, rank=self._rank or 0
            )
            try:
                self._check_world(save)
                reading = read(self._open(save))
            except SdrsError as error:
                if isinstance(error, CorruptDataError):
                    self._report_failed(save, f"{attempt.run}:{attempt.ordinal}:{joined.round}", error)
                failure = self._report(report, str(error) or type(error).__name__)
                if step is not None or not isinstance(error, _UNREADABLE):
                    raise
                self._pass_over(save, failure)
                continue
            except BaseException:
                # The others must not wait for a rank that goes away.
                self._report(report, "the rank was interrupted")
                raise
            try:
                failure = self._report(report, "")
            except BaseException:
                reading.abort()
                raise
            if not failure:
                return Restored(save, _finish(reading))
            reading.abort()
            if step is not None:
                raise NotRestorableError(
                    f"{save.title} cannot be restored by all ranks: {failure}", job=self._job, step=step
                )
            self._pass_over(save, failure)

    def _report(self, report: messages.ReportRoundRequest, failure: str) -> str:
        """Tell how this rank fared, and wait for the others; empty when all have verified, else why it failed."""
        report.failure = failure
        report.wait_ms = 0 if failure else MAX_WAIT_MS
        while True:
            report.request_id = random_id()
            answer = self._control.call("report_round", report, wait_ms=report.wait_ms)
            if answer.outcome == messages.ROUND_OUTCOME_DONE:
                return ""
            if failure or answer.outcome == messages.ROUND_OUTCOME_NEXT:
                return failure or answer.failure
            log.warning(
                'rank %s of job "%s" has its part and waits for the other ranks of %s to restore theirs',
                report.rank,
                self._job,
                self._world_size,
            )

    def _check_world(self, save: Save) -> None:
        if self._world_size > 1 and save.world_size != self._world_size:
            raise WorldSizeMismatchError(
                f"{save.title} was saved by {save.world_size} ranks, and {self._world_size} restore it: start as many, "
                "or read single parts with rank= alone"
            )

    # Both

    def _open(self, save: Save) -> list[ShardReader]:
        if save.kind is not self._kind:
            raise InvalidArgumentError(
                f"{save.title} holds {save.kind}: use {_METHODS[save.kind]}, or name a step that holds {self._kind}"
            )
        ranks = range(save.world_size) if self._rank is None else [self._rank]
        count = ByteCount(self._progress)
        readers = [open_shard(self._process, save, rank, count) for rank in ranks]
        count.total_bytes = sum(reader.shard.size_bytes for reader in readers)
        return readers

    def _report_failed(self, save: Save, restore_id: str, error: CorruptDataError) -> None:
        """Several that fail mark the generation. One that is out of reach is not told: it may be back in a moment."""
        request = messages.ReportFailedRestoreRequest(
            request_id=random_id(),
            job=save.job,
            step=save.step,
            save_id=save.save_id,
            rank=self._rank or 0,
            restore_id=restore_id,
            failure=str(error),
        )
        with suppress(SdrsError):  # the restore's own failure is what is told
            self._control.call("report_failed_restore", request, patience_seconds=0.0)

    def _reasons(self) -> str:
        left = len(self._passed_over) - _MAX_NAMED_GENERATIONS
        more = f"; and {left} older ones" if left > 0 else ""
        return "; ".join(self._passed_over[:_MAX_NAMED_GENERATIONS]) + more

    def _pass_over(self, save: Save, why: str) -> None:
        # The user is told by the RestoreWarning or the error at the end.
        log.info("%s cannot be restored, going back one generation: %s", save.title, why)
        self._passed_over.append(f"step {save.step} ({why})")


def _finish(reading: Reading) -> Any:
    try:
        return reading.finish()
    except BaseException:
        reading.abort()
        raise
