"""Waiting for commits: one watcher for each save, however many ranks of it this process saves."""

from __future__ import annotations

import threading
import time

from sdrs.rpc.control import Control
from sdrs.saving import Saving
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import (
    NotFoundError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    StaleAttemptError,
    UnavailableError,
)
from sdrs_core.ids import SaveId
from sdrs_proto.convert import save_from
from sdrs_proto.limits import MAX_WAIT_MS
from sdrs_proto.v1.control_pb2 import WaitSaveRequest

# I10: each watched save costs a thread. A rank that is so many steps ahead of the others has lost them.
MAX_UNCOMMITTED = 64
# How long an exiting process still waits for other ranks, once it is seen to exit.
EXIT_SECONDS = 10.0


class Commits:
    """Belongs to one process."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._followers: dict[SaveId, list[Saving]] = {}

    def check_room(self) -> None:
        with self._lock:
            if len(self._followers) < MAX_UNCOMMITTED:
                return
            oldest = next(iter(self._followers.values()))[0]
        raise RefusedError(
            f"{MAX_UNCOMMITTED} saves of this process wait for other ranks, the oldest is {oldest}: a rank is dead "
            "or far behind"
        )

    def follow(self, save_id: SaveId, saving: Saving) -> None:
        """Settle ``saving`` when the save has ended. The first to follow a save watches it, for all who come later."""
        with self._lock:
            if save_id in self._followers:
                self._followers[save_id].append(saving)
                return
            followers = self._followers[save_id] = [saving]
        try:
            committed = self._watch(save_id, followers)
        except BaseException as error:
            for follower in self._end(save_id):
                follower.outcome.set_exception(error)
        else:
            for follower in self._end(save_id):
                follower.outcome.set_result(committed)

    def _end(self, save_id: SaveId) -> list[Saving]:
        with self._lock:
            return self._followers.pop(save_id)

    def _watch(self, save_id: SaveId, followers: list[Saving]) -> Save:
        first = followers[0]
        give_up: float | None = None
        while True:
            # The main thread is gone: the interpreter waits for this one.
            if give_up is None and not threading.main_thread().is_alive():
                give_up = time.monotonic() + EXIT_SECONDS
            left_ms = MAX_WAIT_MS if give_up is None else int(1000 * (give_up - time.monotonic()))
            save, shard_count = self._ask(save_id, first, max(0, min(MAX_WAIT_MS, left_ms)))
            if save.state is SaveState.ABORTED:
                raise SaveFailedError(f"{first} was not committed: {save.note or 'it was aborted'}; save it again")
            if save.state is not SaveState.PENDING:
                # P6: one's own commit is success, also if it was replaced or deleted before its answer came.
                return save
            with self._lock:
                for follower in followers:
                    follower.note_ranks(shard_count, save.world_size)
            if left_ms <= 0:
                raise SaveFailedError(
                    f"the process ended before {first} was committed: {shard_count} of {save.world_size} ranks were in"
                )

    def _ask(self, save_id: SaveId, saving: Saving, wait_ms: int) -> tuple[Save, int]:
        request = WaitSaveRequest(save_id=save_id, job=saving.job, step=saving.step, wait_ms=wait_ms)
        try:
            response = self._control.call("wait_save", request, wait_ms=wait_ms)
        except NotFoundError as error:
            raise SaveFailedError(f"{saving} was not committed, and is gone: save it again") from error
        except UnavailableError as error:
            raise UnavailableError(
                f"{saving} is durable on its node, but whether it is committed cannot be seen: {error}; it may "
                "still be: look with latest() once the controller is back"
            ) from error
        except StaleAttemptError:
            raise
        except SdrsError as error:
            raise SaveFailedError(f"{saving} may not be committed: {error}") from error
        return save_from(response.checkpoint), response.shards_registered
