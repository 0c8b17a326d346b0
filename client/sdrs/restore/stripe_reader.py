"""Reading stripe after stripe of one blob from those of its holders that serve.

One thread reads from as many fragments at once as the code needs, data fragments first. A holder that fails or has a
bad block is replaced by another from that stripe on, and one that is slow is raced by another while it is still waited
for: whoever delivers first serves the rest. What is not read as it is gets computed from what is (``decoding``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from sdrs.restore.blocks import BlockTable
from sdrs.restore.decoding import Decoding, Scratch
from sdrs.restore.lanes import Lane
from sdrs.restore.sources import Key, Sources, key_of
from sdrs.restore.stripes import Rank, Stripe, choose, stripes
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.codes import Code
from sdrs_core.errors import CorruptDataError, NotFoundError, SdrsError, UnavailableError

# How often a race is looked at.
_LOOK_SECONDS = 0.02
_OPEN_TIER = -1
# After all others: those that were too slow and were left for another.
_LEFT_TIER = 4

Window = Callable[[int, int], memoryview]
Accept = Callable[[int, memoryview], None]


class StoppedError(Exception):
    """Another range failed: this one need not go on."""


class OutOfFragmentsError(Exception):
    """Too few holders are left for a stripe."""


class StripeReader:
    """One try at one range. ``failures`` are added to: why holders could not serve, apart from what is damaged."""

    def __init__(
        self,
        sources: Sources,
        blob: Blob,
        code: Code,
        *,
        stall_seconds: float,
        stop: threading.Event,
        scratch: Scratch,
        failures: dict[Key, SdrsError],
    ) -> None:
        self._sources = sources
        self._pace = sources.book.pace
        self._blob = blob
        self._code = code
        self._stall_seconds = stall_seconds
        self._stop = stop
        self._scratch = scratch
        self._failures = failures
        self._lanes: dict[int, Lane] = {}  # by fragment, each about to read the same stripe
        self._opened: list[Lane] = []  # whatever became of them
        self._failed: set[Key] = set()
        self._left: set[Key] = set()
        self._plain: BlockTable | None = None
        self._end_stripe = 0
        # When the stripe was begun, and when one of its blocks came.
        self._began = self._progress = 0.0

    def read(self, start: int, end: int, window: Window, accept: Accept) -> None:
        """``accept`` gets (start, bytes) of each stripe once it is verified, in order."""
        self._end_stripe = -(-end // self._code.stripe_bytes)
        try:
            for stripe in stripes(self._code, self._blob.size_bytes, start, end):
                memory = window(stripe.start, stripe.end)
                self._fill(Decoding(stripe, memory, self._scratch))
                accept(stripe.start, memory[: stripe.end - stripe.start])
                self._keep_step(stripe)
            for lane in self._lanes.values():
                self._sources.book.note_read(
                    lane.holder.node_id, lane.opening_seconds, lane.read_bytes, lane.read_seconds
                )
        finally:
            for lane in self._opened:
                lane.close()

    def _fill(self, decoding: Decoding) -> None:
        self._began = self._progress = time.monotonic()
        while not decoding.complete(self._plain):
            if self._stop.is_set():
                raise StoppedError
            indexes = self._pursue(decoding)
            if not indexes:
                self._blame(decoding, decoding.doubtful)
                raise OutOfFragmentsError
            for index in indexes:
                if not self._take(decoding, index):
                    break
        self._blame(decoding, decoding.wrong)

    # Which fragments

    def _pursue(self, decoding: Decoding) -> list[int]:
        """The fragments to read next, all of them opened; nothing, if too few are left."""
        have, wanted, needed = decoding.have, decoding.missing, decoding.needed
        lanes = [index for index in self._lanes if index not in have]
        if wanted.issubset(lanes):
            return sorted(wanted)
        ranks: dict[int, Rank] = {index: (_OPEN_TIER, not self._lanes[index].is_ready, index) for index in lanes}
        holders: dict[int, Holder] = {}
        if len(lanes) < needed:
            for place, (tier, holder) in enumerate(self._candidates(decoding.stripe)):
                index = holder.fragment_index
                if index not in ranks and index not in have:
                    ranks[index] = (tier, index >= self._code.data, place)  # data before parity
                    holders[index] = holder
        indexes = choose(wanted, needed, ranks)
        for index in indexes:
            if index not in self._lanes:
                self._lanes[index] = self._open(holders[index], decoding.stripe)
        return indexes

    def _candidates(self, stripe: Stripe) -> list[tuple[int, Holder]]:
        """Who may be asked for a block of this stripe, best first."""
        size_bytes = (self._end_stripe - stripe.number) * BLOCK_BYTES
        left, others = [], []
        for tier, holder in self._sources.ranked(self._blob, stripe.number, size_bytes):
            key = key_of(self._blob, holder)
            if key in self._failed:
                continue
            if key in self._left:
                left.append((_LEFT_TIER, holder))
            else:
                others.append((tier, holder))
        return others + left

    def _open(self, holder: Holder, stripe: Stripe, *, early: bool = False) -> Lane:
        index = holder.fragment_index
        offset = stripe.number * BLOCK_BYTES
        end = min(self._end_stripe * BLOCK_BYTES, self._code.fragment_bytes(self._blob.size_bytes, index))
        open_stream = partial(self._sources.open, self._blob, holder, offset, end - offset, self._stall_seconds)
        early_bytes = stripe.bytes_of(index) if early else 0
        lane = Lane(self._blob, self._code, holder, stripe, open_stream, early_bytes=early_bytes)
        self._opened.append(lane)
        return lane

    def _keep_step(self, stripe: Stripe) -> None:
        """Close what did not take part in this stripe: it would read the wrong blocks from now on."""
        if stripe.number + 1 < self._end_stripe:
            for lane in [*self._lanes.values()]:
                if lane.next_stripe != stripe.number + 1:
                    self._remove(lane)

    def _remove(self, lane: Lane) -> None:
        lane.close()
        if self._lanes.get(lane.index) is lane:
            del self._lanes[lane.index]

    # One block

    def _take(self, decoding: Decoding, index: int) -> bool:
        """Read and verify a fragment's block; False if that did not come about, and another choice is to be made."""
        stripe, lane = decoding.stripe, self._lanes[index]
        into, size_bytes = decoding.place(index), stripe.bytes_of(index)
        before, was_open = time.monotonic(), lane.is_open
        try:
            if not lane.read(into, size_bytes, self._patience_seconds(lane)) and not self._race(lane, decoding, into):
                return False
            lane.check(stripe, into[:size_bytes])
        except SdrsError as error:
            self._fail(lane, error, stripe)
            return False
        self._progress = time.monotonic()
        if was_open:
            self._pace.note_block(self._progress - before)
        else:
            self._pace.note_opening(lane.opening_seconds)
        self._plain = lane.plain
        decoding.add(index)
        return True

    def _patience_seconds(self, lane: Lane) -> float:
        """For one that was not looked at while another one was waited for, the time counts all the same."""
        pace = self._pace
        seconds = pace.block_patience_seconds if lane.is_open else pace.opening_patience_seconds
        return max(max(self._began, lane.started) + seconds - time.monotonic(), seconds / 4)

    def _race(self, slow: Lane, decoding: Decoding, into: memoryview) -> bool:
        """Ask others for what ``slow`` does not deliver. True if it does so first after all; else others take its
        place.
        """
        asked = time.monotonic()
        rivals = self._ask_rivals(slow, decoding, [])
        try:
            while not slow.read(into, decoding.stripe.bytes_of(slow.index), _LOOK_SECONDS):
                if self._stop.is_set():
                    raise StoppedError
                now = time.monotonic()
                if any(rival.is_ready for rival in rivals):
                    self._leave(slow)
                    return False
                # Several that hang are waited for together, not one after the other.
                if now - max(self._progress, slow.last_heard) > self._stall_seconds:
                    raise UnavailableError(
                        f"node {slow.holder.node_id} sent nothing for {self._stall_seconds:g} s: it may hang"
                    )
                rivals = [rival for rival in rivals if not self._has_failed(rival, decoding.stripe)]
                if not rivals or now - asked > self._pace.opening_patience_seconds:
                    rivals += self._ask_rivals(slow, decoding, rivals)
                    asked = now
            while rivals:
                rivals.pop().close()
            return True
        finally:
            for rival in rivals:
                if self._lanes.get(rival.index, slow) is slow:
                    self._lanes[rival.index] = rival
                else:
                    rival.close()

    def _ask_rivals(self, slow: Lane, decoding: Decoding, rivals: list[Lane]) -> list[Lane]:
        """Another holder of the same fragment, or as many other fragments as make it dispensable."""
        asked = {lane.holder for lane in (*self._lanes.values(), *rivals)}
        others: dict[int, Holder] = {}
        for _, holder in self._candidates(decoding.stripe):
            if holder in asked:
                continue
            if holder.fragment_index == slow.index:
                return [self._open(holder, decoding.stripe, early=True)]
            others.setdefault(holder.fragment_index, holder)
        known = {*decoding.have, *self._lanes, *(rival.index for rival in rivals)}
        fresh = [holder for index, holder in others.items() if index not in known]
        # A node that has several is no faster with another of them (P10).
        fresh.sort(key=lambda holder: holder.node_id == slow.holder.node_id)
        wanting = max(1, self._code.data - len(known - {slow.index}))
        if len(fresh) < wanting:
            return []
        return [self._open(holder, decoding.stripe, early=True) for holder in fresh[:wanting]]

    # What goes wrong

    def _has_failed(self, rival: Lane, stripe: Stripe) -> bool:
        failure = rival.failure
        if failure is None:
            return False
        if not isinstance(failure, SdrsError):
            raise failure
        self._fail(rival, failure, stripe)
        return True

    def _leave(self, slow: Lane) -> None:
        self._left.add(key_of(self._blob, slow.holder))
        self._note_failure(slow)
        self._remove(slow)

    def _fail(self, lane: Lane, error: SdrsError, stripe: Stripe) -> None:
        """A bad block is an erasure in its stripe (I5); a fragment that does not fit the record is one in all."""
        self._remove(lane)
        if isinstance(error, CorruptDataError | NotFoundError):
            block = stripe.number if lane.plain is not None else None
            self._sources.note_damage(self._blob, lane.holder, error, block)
            return
        key = key_of(self._blob, lane.holder)
        self._failed.add(key)
        self._failures[key] = error
        self._note_failure(lane)

    def _note_failure(self, lane: Lane) -> None:
        waited_seconds = time.monotonic() - max(self._began, lane.started)
        self._sources.book.note_failure(lane.holder.node_id, waited_seconds)

    def _blame(self, decoding: Decoding, indexes: Collection[int]) -> None:
        """P9: these match their own checksums, and what is computed from them does not match the blob's."""
        for index in indexes:
            error = CorruptDataError(f"parity block {decoding.stripe.number} is not the parity of the blob")
            self._fail(self._lanes[index], error, decoding.stripe)
