"""Following a save that the daemon of this host carries out: progress, outcome, and its return after a restart."""

from __future__ import annotations

import logging
import threading
import time

from google.rpc.status_pb2 import Status

from sdrs.rpc.control import Control
from sdrs.save.commits import EXIT_SECONDS
from sdrs.save.local_stage import LocalStage
from sdrs.save.stage_session import Ticket
from sdrs.saving import Saving
from sdrs_core.checkpoints import SaveState
from sdrs_core.errors import NotFoundError, SaveFailedError, SdrsError, UnavailableError
from sdrs_core.ids import SaveId
from sdrs_proto.convert import save_state_from
from sdrs_proto.status import from_status
from sdrs_proto.v1.control_pb2 import WaitSaveRequest
from sdrs_proto.v1.staging_pb2 import STAGE_PHASE_FAILED, STAGE_PHASE_IN

# How long a daemon that went away is waited for: it is restarted, or its machine is not well.
RETURN_SECONDS = 60.0
_RETRY_SECONDS = 0.2
# How often it is looked whether this process ends.
_LOOK_SECONDS = 1.0

log = logging.getLogger("sdrs")


class StagedSave:
    def __init__(self, stage: LocalStage, control: Control, ticket: Ticket, saving: Saving) -> None:
        self._stage = stage
        self._control = control
        self._ticket = ticket
        self._saving = saving
        self._exits_at: float | None = None

    def bring_in(self) -> SaveId:
        """Until the shard is stored and registered; raises why it is not."""
        try:
            return self._follow()
        finally:
            self._stage.done(self._ticket)

    def _follow(self) -> SaveId:
        while True:
            try:
                event = self._ticket.next(_LOOK_SECONDS)
            except UnavailableError:
                found = self._await_return()
                if found:
                    return found
                continue
            self._check_exit()
            if event is None:
                continue
            if event.phase == STAGE_PHASE_FAILED:
                raise from_status(Status.FromString(event.status))
            try:
                self._saving.set_sent(event.sent_bytes)
            except BaseException:
                # What the user's own function raises ends the save.
                self._stage.cancel(self._ticket)
                raise
            if event.phase == STAGE_PHASE_IN:
                return SaveId(event.save_id)

    def _check_exit(self) -> None:
        """The main thread is gone, and the interpreter waits for this one: not for long, the daemon needs nobody."""
        if threading.main_thread().is_alive():
            return
        now = time.monotonic()
        self._exits_at = now + EXIT_SECONDS if self._exits_at is None else self._exits_at
        if now >= self._exits_at:
            raise SaveFailedError(
                f"the process ended before {self._saving} was stored: the daemon of this host goes on with it"
            )

    def _await_return(self) -> SaveId | None:
        """The daemon was stopped, or died; it has the shard, and goes on with it when it is back. The save's id, if it
        is known to be in; None: it goes on.
        """
        give_up = time.monotonic() + RETURN_SECONDS
        while time.monotonic() < give_up:
            self._check_exit()
            try:
                if self._stage.rejoin(self._ticket):
                    return None
            except NotFoundError:
                return self._ended()
            time.sleep(_RETRY_SECONDS)
        raise UnavailableError(
            f"the daemon of this host has {self._saving}, and is gone for {RETURN_SECONDS:g} s: it goes on with it "
            "when it is started again, unless the machine is restarted before"
        )

    def _ended(self) -> SaveId:
        """The daemon is back without it: it was in before the daemon went, or was lost with a reboot."""
        if self._ticket.save_id:
            request = WaitSaveRequest(
                save_id=self._ticket.save_id, job=self._saving.job, step=self._saving.step, wait_ms=0
            )
            try:
                state = save_state_from(self._control.call("wait_save", request).checkpoint.state)
            except SdrsError as error:
                raise SaveFailedError(f"{self._saving} may not be committed: {error}") from error
            if state is not SaveState.PENDING:
                return SaveId(self._ticket.save_id)  # whatever it is, following it will tell
        raise SaveFailedError(
            f"{self._saving} was staged with the daemon of this host, which came back without it: save it again"
        )
