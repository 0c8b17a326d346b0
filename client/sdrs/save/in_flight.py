"""The saves of one process: how many run at once, and what became of them.

Their threads are not daemons, so that an exiting interpreter waits for them; each of their waits has an end. A failure
that nobody waited for is logged at once, and raised by its owner's next save or by close (I6).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import wait as wait_for

from sdrs.rpc.control import Control
from sdrs.rpc.map import Maps
from sdrs.save.commits import Commits
from sdrs.save.order import SaveOrder
from sdrs.save.payload import Payload
from sdrs.save.staging import StagedPayload, Staging
from sdrs.save.upload import Upload
from sdrs.saving import Saving
from sdrs.transfer.routes import Routes
from sdrs.views import Report
from sdrs_core.checkpoints import Save
from sdrs_core.errors import DeadlineExceededError
from sdrs_core.ids import SaveId
from sdrs_core.levels import Level
from sdrs_proto.convert import level_from, save_from
from sdrs_proto.v1.control_pb2 import GetPoolRequest, WaitSaveRequest

MAX_SENDING = 4

log = logging.getLogger("sdrs")


class InFlight:
    """Belongs to one process."""

    def __init__(
        self, control: Control, routes: Routes, maps: Maps, *, staging_bytes: int, renew_seconds: float
    ) -> None:
        self._control = control
        self._routes = routes
        self._maps = maps
        self._renew_seconds = renew_seconds
        self._staging = Staging(staging_bytes)
        self._commits = Commits(control)
        self._slots = threading.BoundedSemaphore(MAX_SENDING)
        self._lock = threading.Lock()
        # Under way, or failed and not seen yet, each with who asked for it; oldest first.
        self._savings: dict[Saving, object] = {}

    def save(self, owner: object, order: SaveOrder, payload: Payload, report: Report | None = None) -> Saving:
        """Start a save: returns when ``payload`` is copied or, if it is too large for that, durable on its node."""
        self.raise_unseen(owner)
        self._commits.check_room()
        saving = Saving(
            order.job,
            order.step,
            payload.total_bytes,
            lambda: self._promised_level(order.pool),
            report,
            self._look_again,
        )
        if self._staging.holds(payload.total_bytes):
            self._save_staged(owner, order, payload, saving)
        else:
            save_id = self._upload(order, payload, saving)
            self._start(owner, saving, lambda: self._commits.follow(save_id, saving))
        return saving

    def send(self, order: SaveOrder, payload: Payload, report: Report | None = None) -> SaveId:
        """Bring a shard in from where it lies: durable and registered. Its commit is somebody else's to wait for."""
        saving = Saving(order.job, order.step, payload.total_bytes, lambda: self._promised_level(order.pool), report)
        return self._upload(order, payload, saving)

    def _save_staged(self, owner: object, order: SaveOrder, payload: Payload, saving: Saving) -> None:
        self._slots.acquire()
        try:
            staged = self._staging.stage(payload)
        except BaseException:
            self._slots.release()
            raise
        self._start(owner, saving, lambda: self._send_staged(order, staged, saving))

    def _send_staged(self, order: SaveOrder, staged: StagedPayload, saving: Saving) -> None:
        try:
            save_id = self._upload(order, staged, saving)
        except BaseException as error:
            saving.outcome.set_exception(error)
            return
        finally:
            # The node has it durable, or nobody will: either way the memory is free for the next.
            self._staging.release(staged)
            self._slots.release()
        self._commits.follow(save_id, saving)

    def _upload(self, order: SaveOrder, payload: Payload, saving: Saving) -> SaveId:
        return Upload(self._control, self._routes, self._maps, order, payload, saving, self._renew_seconds).run()

    def _start(self, owner: object, saving: Saving, work: Callable[[], None]) -> None:
        with self._lock:
            self._savings[saving] = owner
        saving.outcome.add_done_callback(lambda _: self._ended(saving))
        try:
            threading.Thread(target=work, name=f"sdrs-save-{saving.step}").start()
        except RuntimeError:
            work()  # an interpreter that is shutting down starts no more threads

    def _ended(self, saving: Saving) -> None:
        error = saving.outcome.exception()
        if error is None:
            with self._lock:
                self._savings.pop(saving, None)
        else:
            log.error("%s was not saved: %s", saving, error)

    def raise_unseen(self, owner: object = None) -> None:
        """Raise a failure that nobody has seen yet, of ``owner``'s saves or (None) of any."""
        with self._lock:
            failed = [(s, o) for s, o in self._savings.items() if s.outcome.done() and s.outcome.exception()]
            for saving, _ in failed:
                if saving.is_seen:
                    del self._savings[saving]
        for saving, who in failed:
            error = saving.outcome.exception()
            if error and not saving.is_seen and owner in (None, who):
                saving.mark_seen()
                error.add_note(f"{saving} failed before, and nobody had waited for it")
                raise error

    def finish(self, timeout_seconds: float) -> None:
        """Wait for everything under way; DeadlineExceededError if some of it takes longer."""
        with self._lock:
            outcomes = {saving.outcome: saving for saving in self._savings}
        late = wait_for(outcomes, timeout_seconds).not_done
        if late:
            raise DeadlineExceededError(
                f"{', '.join(str(outcomes[outcome]) for outcome in late)}: not committed after {timeout_seconds} s, "
                "and still under way in the background"
            )

    def _look_again(self, save: Save) -> Save:
        request = WaitSaveRequest(save_id=save.save_id, job=save.job, step=save.step)
        return save_from(self._control.call("wait_save", request).checkpoint)

    def _promised_level(self, pool: str) -> Level:
        return level_from(self._control.call("get_pool", GetPoolRequest(name=pool)).pool.level)
