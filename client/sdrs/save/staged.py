"""Following a save that the daemon of this host carries out: progress, outcome, and what to do when the daemon dies.

The segment stays mapped here. A daemon that is back in a moment goes on by itself; if it is not, this process sends the
shard from the segment, as it would have without a daemon. Should the daemon come back after all, both bring in the same
bytes for the same save, and whoever is second finds the shard registered (P6).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from google.rpc.status_pb2 import Status

from sdrs.save.commits import EXIT_SECONDS
from sdrs.save.local_stage import LocalStage
from sdrs.save.mapped_segment import SegmentPayload
from sdrs.save.payload import Payload
from sdrs.save.stage_session import Ticket
from sdrs.saving import Saving
from sdrs_core.errors import SaveFailedError, SdrsError, UnavailableError
from sdrs_core.ids import SaveId
from sdrs_proto.status import from_status
from sdrs_proto.v1.staging_pb2 import STAGE_PHASE_FAILED, STAGE_PHASE_IN

# How long a daemon that went away is waited for: it may be restarted.
RETURN_SECONDS = 2.0
_RETRY_SECONDS = 0.2
# How often it is looked whether this process ends.
_LOOK_SECONDS = 1.0

log = logging.getLogger("sdrs")


class StagedSave:
    def __init__(
        self,
        stage: LocalStage,
        ticket: Ticket,
        saving: Saving,
        upload: Callable[[Payload], SaveId],
    ) -> None:
        """``upload`` sends a shard from this process."""
        self._upload = upload
        self._stage = stage
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
            except UnavailableError as error:
                self._stage.lose(self._ticket)
                if self._is_back():
                    continue
                log.warning("%s is sent by this process: %s", self._saving, error)
                return self._upload(SegmentPayload.of(self._ticket.segment, self._ticket.shard))
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

    def _is_back(self) -> bool:
        """The daemon was stopped, or died; whether it is there again, and goes on with the shard."""
        give_up = time.monotonic() + RETURN_SECONDS
        while time.monotonic() < give_up:
            self._check_exit()
            try:
                if self._stage.rejoin(self._ticket):
                    return True
            except SdrsError:
                return False  # without it: it was in before the daemon went, or was lost; sending it tells which
            time.sleep(_RETRY_SECONDS)
        return False
