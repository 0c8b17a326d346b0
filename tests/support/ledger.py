"""What one job was told is safe, kept outside of the cluster and compared with it: the criterion of every fault test.

Each acknowledged checkpoint reads back identical, no step is committed twice, and nothing is there in part.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

import sdrs
from sdrs_core.codes import MIRROR
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

# In turn: one that goes by gRPC in one call, one over the data channel, one of several blocks.
SIZES_BYTES = (40_000, 3 * MIB, 1_500_000)
# For a pool that codes 4+2: one that is mirrored, one of a stripe and a bit, one of several stripes with a short end.
CODED_SIZES_BYTES = (1_500_000, 4 * MIB + 1, 11 * MIB + 77_777)
SAVE_SECONDS = 60.0


class Ledger:
    def __init__(
        self, client: sdrs.Cluster, job: str, pool: str, level: str = "L2", sizes_bytes: Sequence[int] = ()
    ) -> None:
        self.ckpts = client.checkpoints(job, pool=pool)
        self.level = level
        self._sizes_bytes = sizes_bytes or (CODED_SIZES_BYTES if level == "L3" else SIZES_BYTES)
        # Steps, with the size of what was saved; those that are only attempted may be there or not, but never in part.
        self.attempted: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}

    @property
    def next_step(self) -> int:
        return max(self.attempted, default=0) + 1

    def begin(self, size_bytes: int | None = None, progress: Callable[[int, int], None] | None = None) -> sdrs.Saving:
        """Begin to save the next step; ``end`` waits for it."""
        step = self.next_step
        usual_bytes = self._sizes_bytes[step % len(self._sizes_bytes)]
        self.attempted[step] = usual_bytes if size_bytes is None else size_bytes
        return self.ckpts.save(step, make_state(step, self.attempted[step]), progress=progress)

    def end(self, saving: sdrs.Saving) -> int:
        """Until it is acknowledged at the pool's level."""
        step = saving.wait(self.level, timeout=SAVE_SECONDS).step
        self.acknowledged[step] = self.attempted[step]
        return step

    def save(self, size_bytes: int | None = None) -> int:
        return self.end(self.begin(size_bytes))

    def holders(self, step: int) -> set[str]:
        """The nodes that each blob of the step is on record for."""
        (shard,) = self.ckpts.shards(step)
        per_blob = [{str(h.node_id) for h in blob.holders if not h.dropping} for blob in shard.blobs]
        assert all(names == per_blob[0] for names in per_blob), f"step {step} lies here and there: {per_blob}"
        return per_blob[0]

    def indexes(self, step: int) -> dict[str, set[int]]:
        """Of the step's coded blobs: which fragments each node is on record for."""
        held: dict[str, set[int]] = {}
        (shard,) = self.ckpts.shards(step)
        for blob in shard.blobs:
            if blob.code != MIRROR:
                for holder in blob.holders:
                    held.setdefault(str(holder.node_id), set()).add(holder.fragment_index)
        return held

    def live_indexes(self, step: int, lost: set[str]) -> dict[str, set[int]]:
        return {node_id: indexes for node_id, indexes in self.indexes(step).items() if node_id not in lost}

    def nodes_of(self, step: int) -> set[str]:
        """Whoever has something of the step on record."""
        shards = self.ckpts.shards(step)
        return {str(holder.node_id) for shard in shards for blob in shard.blobs for holder in blob.holders}

    def forget(self, step: int) -> None:
        """It was deleted."""
        del self.attempted[step], self.acknowledged[step]

    def check_step(self, step: int) -> None:
        assert same(self.ckpts.restore(step=step), make_state(step, self.attempted[step])), f"step {step} differs"

    def check(self) -> None:
        committed = Counter(save.step for save in self.ckpts.list(all_states=True) if save.state.is_readable)
        twice = [step for step, count in committed.items() if count > 1]
        assert not twice, f"committed more than once: {twice}"
        lost = sorted(self.acknowledged.keys() - committed.keys())
        assert not lost, f"acknowledged and lost: {lost}"
        invented = sorted(committed.keys() - self.attempted.keys())
        assert not invented, f"committed, but never saved: {invented}"
        for step in committed:
            self.check_step(step)


class Writer:
    """Saves step after step in a thread until it is stopped; a failure is raised by whoever looks."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{ledger.ckpts.job}")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.ledger.save()
        except Exception as error:
            self._failure = error

    def wait_for_saves(self, count: int = 2) -> None:
        """Until ``count`` more were begun after this call and acknowledged."""
        wanted = self.ledger.next_step + count
        wait_for(lambda: self._has_saved(wanted), f"{self.ledger.ckpts} to go on", SAVE_SECONDS)

    def _has_saved(self, step: int) -> bool:
        if self._failure is not None:
            raise AssertionError(f"the writer failed: {self._failure}") from self._failure
        return max(self.ledger.acknowledged, default=0) >= step

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure
