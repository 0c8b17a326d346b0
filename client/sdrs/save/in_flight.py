"""The saves of one process: how many run at once, which way they take, and what became of them.

A save is staged with the daemon of this host, which carries it out; else copied into this process's own memory and sent
from there; else sent from where it lies. The threads that follow saves are not daemons, so that an exiting interpreter
waits for them; each of their waits has an end. A failure that nobody waited for is logged at once, told to the user's
own function, and raised by its owner's next save or by close (I6).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import wait as wait_for

from sdrs.rpc.control import Control
from sdrs.rpc.map import Maps
from sdrs.save.commits import Commits
from sdrs.save.local_stage import BusyError, LocalStage
from sdrs.save.order import SaveOrder
from sdrs.save.payload import Payload
from sdrs.save.policy import SavePolicy
from sdrs.save.private_memory import StagedPayload, Staging
from sdrs.save.staged import StagedSave
from sdrs.save.upload import Upload
from sdrs.saving import Saving
from sdrs.transfer.routes import Routes
from sdrs.views import Report
from sdrs_core.checkpoints import Save
from sdrs_core.errors import DeadlineExceededError, InvalidArgumentError, RefusedError, SdrsError
from sdrs_core.ids import SaveId
from sdrs_core.levels import Level
from sdrs_core.unchanged import Identity
from sdrs_proto.convert import level_from, save_from
from sdrs_proto.v1.control_pb2 import GetPoolRequest, WaitSaveRequest

MAX_SENDING = 4

log = logging.getLogger("sdrs")


class InFlight:
    """Belongs to one process."""

    def __init__(
        self,
        control: Control,
        routes: Routes,
        maps: Maps,
        stage: LocalStage,
        *,
        staging_bytes: int,
        renew_seconds: float,
    ) -> None:
        self._control = control
        self._routes = routes
        self._maps = maps
        self._stage = stage
        self._renew_seconds = renew_seconds
        self._staging = Staging(staging_bytes)
        self._commits = Commits(control)
        self._slots = threading.BoundedSemaphore(MAX_SENDING)
        self._changed = threading.Condition()
        # Under way, or failed and not seen yet, each with who asked for it; oldest first.
        self._savings: dict[Saving, object] = {}
        # By owner: saves that are not stored yet.
        self._unstored: Counter[object] = Counter()
        self._skipped: Counter[object] = Counter()

    def save(
        self,
        owner: object,
        order: SaveOrder,
        payload: Payload,
        report: Report | None = None,
        policy: SavePolicy | None = None,
    ) -> Saving:
        """Start a save: returns when ``payload`` is copied or, if it is too large for that, durable on its node."""
        policy = policy or SavePolicy()
        saving = Saving(
            order.job,
            order.step,
            payload.total_bytes,
            lambda: self._promised_level(order.pool),
            report,
            self._look_again,
        )
        try:
            self.raise_unseen(owner)
            self._commits.check_room()
            self._enter(owner, policy)
            try:
                self._begin(owner, order, payload, saving, policy)
            except BaseException:
                self._leave(owner)
                raise
        except BusyError as error:
            self._turn_away(owner, saving, policy, str(error))
        except InvalidArgumentError:
            raise  # the caller's mistake, whatever the policy is
        except SdrsError as error:
            if policy.raise_errors:
                raise
            saving.mark_seen()
            saving.outcome.set_exception(error)
            self._tell_failed(saving, error, policy)
        return saving

    def send(self, order: SaveOrder, payload: Payload, report: Report | None = None) -> SaveId:
        """Bring a shard in from where it lies: durable and registered. Its commit is somebody else's to wait for."""
        saving = Saving(order.job, order.step, payload.total_bytes, lambda: self._promised_level(order.pool), report)
        return self._upload(order, payload, saving)

    def commit(self, order: SaveOrder, payload: Payload, known: Mapping[int, Identity]) -> Save:
        """Bring a whole checkpoint in from where it lies, and wait for its commit. For a caller who waits in any case:
        nothing is copied, and who gets the failure raised needs no word of it in the log.

        ``known``: of blobs that are stored already, what the catalog says.
        """
        saving = Saving(order.job, order.step, payload.total_bytes, lambda: self._promised_level(order.pool))
        self._commits.follow(self._upload(order, payload, saving, known), saving)
        return saving.wait()

    def skipped_count(self, owner: object) -> int:
        return self._skipped[owner]

    # Room

    def _enter(self, owner: object, policy: SavePolicy) -> None:
        with self._changed:
            timeout_seconds = None if policy.on_full == "block" else 0
            if not self._changed.wait_for(lambda: self._unstored[owner] < policy.max_in_flight, timeout_seconds):
                raise BusyError(f"{self._unstored[owner]} saves are under way")
            self._unstored[owner] += 1

    def _leave(self, owner: object) -> None:
        with self._changed:
            self._unstored[owner] -= 1
            if not self._unstored[owner]:
                del self._unstored[owner]
            self._changed.notify_all()

    def _turn_away(self, owner: object, saving: Saving, policy: SavePolicy, why: str) -> None:
        if policy.on_full == "fail":
            error = RefusedError(f"{saving} was not begun: {why or 'earlier saves fill the staging'}; wait for them")
            if policy.raise_errors:
                raise error
            saving.mark_seen()
            saving.outcome.set_exception(error)
            self._tell_failed(saving, error, policy)
            return
        with self._changed:
            self._skipped[owner] += 1
        saving.skip(why or "earlier saves fill the staging")
        log.warning("%s was skipped: %s", saving, why or "earlier saves fill the staging")

    # The three ways

    def _begin(self, owner: object, order: SaveOrder, payload: Payload, saving: Saving, policy: SavePolicy) -> None:
        may_wait = policy.on_full == "block"
        if self._begin_with_daemon(owner, order, payload, saving, policy, may_wait):
            return
        if self._staging.holds(payload.total_bytes):
            self._begin_from_copy(owner, order, payload, saving, policy, may_wait)
            return
        save_id = self._upload(order, payload, saving)
        self._leave(owner)
        self._start(owner, saving, policy, lambda: self._commits.follow(save_id, saving))

    def _begin_with_daemon(
        self, owner: object, order: SaveOrder, payload: Payload, saving: Saving, policy: SavePolicy, may_wait: bool
    ) -> bool:
        segment = self._stage.take(payload, order.rank, may_wait=may_wait)
        if segment is None:
            return False
        try:
            saving.restart()  # what the user's function raises here ends the save before it has begun
            shard = self._stage.fill(segment, order, payload)
        except BaseException:
            self._stage.give_back(segment)
            raise
        ticket = self._stage.seal(shard, segment)
        if ticket is None:
            self._stage.give_back(segment)
            return False
        staged = StagedSave(self._stage, ticket, saving, lambda own: self._upload(order, own, saving))
        self._start(owner, saving, policy, lambda: self._carry(owner, saving, staged.bring_in))
        return True

    def _begin_from_copy(
        self, owner: object, order: SaveOrder, payload: Payload, saving: Saving, policy: SavePolicy, may_wait: bool
    ) -> None:
        if not self._slots.acquire(blocking=may_wait):
            raise BusyError(f"{MAX_SENDING} saves are being sent")
        try:
            copied = self._staging.stage(payload, may_wait=may_wait)
            if copied is None:
                raise BusyError("earlier saves fill the staging memory")
        except BaseException:
            self._slots.release()
            raise
        self._start(
            owner, saving, policy, lambda: self._carry(owner, saving, lambda: self._send_copy(order, copied, saving))
        )

    def _send_copy(self, order: SaveOrder, copied: StagedPayload, saving: Saving) -> SaveId:
        try:
            return self._upload(order, copied, saving)
        finally:
            # The node has it durable, or nobody will: either way the memory is free for the next.
            self._staging.release(copied)
            self._slots.release()

    def _carry(self, owner: object, saving: Saving, bring_in: Callable[[], SaveId]) -> None:
        try:
            save_id = bring_in()
        except BaseException as error:
            self._leave(owner)
            saving.outcome.set_exception(error)
            return
        self._leave(owner)
        self._commits.follow(save_id, saving)

    def _upload(
        self, order: SaveOrder, payload: Payload, saving: Saving, known: Mapping[int, Identity] | None = None
    ) -> SaveId:
        return Upload(
            self._control, self._routes, self._maps, order, payload, saving, self._renew_seconds, known=known
        ).run()

    # What becomes of them

    def _start(self, owner: object, saving: Saving, policy: SavePolicy, work: Callable[[], None]) -> None:
        with self._changed:
            self._savings[saving] = owner
        saving.outcome.add_done_callback(lambda _: self._ended(saving, policy))
        try:
            threading.Thread(target=work, name=f"sdrs-save-{saving.step}").start()
        except RuntimeError:
            work()  # an interpreter that is shutting down starts no more threads

    def _ended(self, saving: Saving, policy: SavePolicy) -> None:
        error = saving.outcome.exception()
        if error is None or not policy.raise_errors:
            with self._changed:
                self._savings.pop(saving, None)
        if error is not None:
            if not policy.raise_errors:
                saving.mark_seen()
            self._tell_failed(saving, error, policy)

    def _tell_failed(self, saving: Saving, error: BaseException, policy: SavePolicy) -> None:
        log.error("%s was not saved: %s", saving, error)
        if policy.on_error is not None:
            try:
                policy.on_error(saving, error)
            except Exception:
                log.exception("on_error itself failed for %s", saving)

    def raise_unseen(self, owner: object = None) -> None:
        """Raise a failure that nobody has seen yet, of ``owner``'s saves or (None) of any."""
        with self._changed:
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
        with self._changed:
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
