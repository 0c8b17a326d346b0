"""Memory before disks: what was saved on this host may still lie where it was staged.

The segment belongs to the process that saved, which may be about to fill it again. So each block is copied, and counts
only if the copy matches the record (I5); one that does not is no damage of anything, and is read from its holders.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing

from sdrs.restore.blocks import BlockTable
from sdrs.save.local_stage import LocalStage
from sdrs.transfer.staged_copy import open_staged
from sdrs_core.checkpoints import Blob, Save
from sdrs_core.checksums import block_spans
from sdrs_core.cluster import Node, NodeState
from sdrs_core.errors import SdrsError

log = logging.getLogger("sdrs")


class StagedCopies:
    """Of one rank's part of a save; shared by all ranges of a read."""

    def __init__(self, stage: LocalStage, save: Save, rank: int) -> None:
        self._stage = stage
        self._save = save
        self._rank = rank
        self._lock = threading.Lock()
        self._nodes: list[Node] | None = None
        self._is_told = False

    def read(
        self,
        blob: Blob,
        start: int,
        end: int,
        window: Callable[[int, int], memoryview],
        accept: Callable[[int, memoryview], None],
        stop: threading.Event,
    ) -> None:
        """As far as it is here, as it was saved: ``accept`` gets (start, bytes) of each block, verified, in order."""
        for node in self._candidates():
            try:
                with closing(open_staged(node, self._save.save_id, self._rank, blob, start)) as stream:
                    table = BlockTable(blob.as_saved, stream.summary)
                    for first, last in block_spans(start, end):
                        if stop.is_set():
                            return
                        memory = window(first, last)
                        stream.read_into(memory, last - first)
                        block = memory[: last - first]
                        table.check(first, block)
                        self._tell(node)
                        accept(first, block)
                        start = last
                return
            except SdrsError as error:
                self._leave(node, error)

    def _candidates(self) -> list[Node]:
        with self._lock:
            if self._nodes is None:
                self._nodes = [node for node in self._stage.nodes(self._rank) if node.state is NodeState.UP]
            return self._nodes

    def _leave(self, node: Node, why: Exception) -> None:
        """For good: a blob that is gone was not the only one."""
        log.debug("%s, rank %s is not read from the staging of node %s: %s", self._save.title, self._rank, node.id, why)
        with self._lock:
            self._nodes = [other for other in self._nodes or [] if other.id != node.id]

    def _tell(self, node: Node) -> None:
        if not self._is_told:
            self._is_told = True
            log.info(
                "%s, rank %s is read from the memory of this host, where node %s still has it staged",
                self._save.title,
                self._rank,
                node.id,
            )
