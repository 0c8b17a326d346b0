"""Asking the controller to bring a checkpoint back from a backup: the last resort, before an older generation.

All ranks of a job may ask for the same one at once: they join what is on its way.
"""

from __future__ import annotations

import logging
import threading
import time

from sdrs.rpc.control import Control
from sdrs.views import Report
from sdrs_core.backoff import backoff
from sdrs_core.checkpoints import Save
from sdrs_core.errors import (
    DeadlineExceededError,
    NotFoundError,
    SdrsError,
    StaleTermError,
    UnavailableError,
    UnsupportedError,
    is_answered,
)
from sdrs_core.ids import SaveId, random_id
from sdrs_proto.v1.backup_pb2 import RecallCheckpointRequest
from sdrs_proto.v1.control_pb2 import GetClusterRequest

# It ends when it is done or fails: the controller tells something whenever a blob is there.
_RECALL_SECONDS = 24 * 3600.0
# Of controllers that went away in the middle; each next one goes on with what is there.
_MAX_LOST_CONTROLLERS = 5

log = logging.getLogger("sdrs")


class Recalls:
    """Belongs to one process."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._told: set[SaveId] = set()

    def recall(self, save: Save, report: Report | None = None) -> None:
        """Its bytes are on nodes again when this returns. NotFoundError if no backup has it, or else why none serves.

        ``report`` is told (brought back, total), in bytes.
        """
        request = RecallCheckpointRequest(request_id=random_id(), job=save.job, step=save.step, save_id=save.save_id)
        lost_controllers, pauses = 0, backoff()
        has_begun = False

        def follow(done_bytes: int, total_bytes: int) -> None:
            nonlocal has_begun
            has_begun = True
            if report:
                report(done_bytes, total_bytes)

        while True:
            try:
                self._follow(save, request, follow)
                return
            except UnsupportedError as error:
                raise NotFoundError(f"the controller knows no backups: {error}") from error
            except (UnavailableError, DeadlineExceededError, StaleTermError) as error:
                is_lost = not is_answered(error) or "standby" in error.facts or isinstance(error, StaleTermError)
                if not is_lost or lost_controllers >= _MAX_LOST_CONTROLLERS:
                    raise
                lost_controllers += 1
                time.sleep(next(pauses))
                # It finds the active one; and waits for it, if what was lost is worth that.
                self._control.call("get_cluster", GetClusterRequest(), patience_seconds=None if has_begun else 0.0)

    def _follow(self, save: Save, request: RecallCheckpointRequest, report: Report) -> None:
        for answer in self._control.stream("recall_checkpoint", request, timeout_seconds=_RECALL_SECONDS):
            self._tell(save, answer.target)
            report(answer.done_bytes, answer.total_bytes)
            if answer.is_done:
                return
        raise UnavailableError(f"the controller ended the recall of {save.title} before it was done: try again")

    def _tell(self, save: Save, target: str) -> None:
        with self._lock:
            if save.save_id in self._told:
                return
            self._told.add(save.save_id)
        log.warning("restoring %s from backup %s", save.title, target)


def with_backup(error: SdrsError, backup: SdrsError, save: Save) -> SdrsError:
    """Why neither nodes nor a backup can serve. It may be back with either of them, unless both say that it is lost."""
    if (isinstance(backup, NotFoundError) and not save.evicted) or not is_answered(backup):
        return error  # as far as anybody knows, there is none
    kind = type(error) if type(error) is type(backup) else UnavailableError
    return kind(f"{error}; and from the backup: {backup}", **error.facts)
