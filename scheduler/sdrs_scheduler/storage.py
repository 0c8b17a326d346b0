"""What the scheduler asks the checkpoint storage for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sdrs.cluster import Cluster
from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Blob, Save
from sdrs_core.errors import NotFoundError, RefusedError
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.levels import Level, parse_level
from sdrs_core.soundness import counted, is_readable
from sdrs_scheduler.jobs.resume import Check, Generation
from sdrs_scheduler.jobs.spec import CheckpointWish

# What the cluster's history calls trouble: a job that fails around it may have failed because of it.
_TROUBLE_KINDS = ("node_lost", "failover", "primary", "checkpoints_unavailable", "disk")
_EVENTS_LOOKED_AT = 50


class Storage(Protocol):
    def generations(self, history: str) -> tuple[Generation, ...]:
        """The committed ones, newest step first; none for a history that nobody began."""

    def check(self, history: str, generation: Generation) -> Check:
        """Have every byte of it read; may take long."""

    def wanted_level(self, wish: CheckpointWish) -> Level:
        """How durable a checkpoint is to be before its job may be stopped."""

    def delete(self, history: str, step: int) -> None: ...

    def open_attempt(self, history: str, job_id: str, number: int) -> None:
        """Fence the older attempts of the history (P1)."""

    def trouble_since(self, unix_ms: int) -> tuple[str, ...]:
        """Failovers and outages since then, in the cluster's own words, newest first."""

    def cordoned_nodes(self) -> Mapping[str, str]:
        """Storage nodes that take no new saves by an operator's word, or ours, with the reason."""

    def cordon(self, node: str, reason: str) -> bool:
        """Whether there is such a storage node."""


class ClusterStorage:
    """May be used from several threads."""

    def __init__(self, cluster: Cluster, owner: str) -> None:
        self._cluster = cluster
        self._owner = owner

    def generations(self, history: str) -> tuple[Generation, ...]:
        try:
            return tuple(generation_from(save) for save in self._cluster.checkpoints(history).list())
        except NotFoundError:
            return ()

    def check(self, history: str, generation: Generation) -> Check:
        checkpoints = self._cluster.checkpoints(history)
        try:
            result = checkpoints.verify(generation.step)
        except NotFoundError as error:
            return Check(False, error.message)
        except RefusedError as error:
            return Check(None, error.message)  # in a backup only: it has to be brought back first
        if result.checkpoint.damage:
            return Check(False, result.checkpoint.damage)
        bad = {(problem.blob_id, problem.node_id) for problem in result.problems}
        if not any(problem.undecided for problem in result.problems):
            return Check(True)
        # Some node did not answer. It is whole if the others have enough of every blob.
        if all(_is_readable_without(bad, blob, mirrors) for blob, mirrors in self._blobs(history, generation.step)):
            return Check(True)
        return Check(None, result.problems[0].problem)

    def _blobs(self, history: str, step: int) -> list[tuple[Blob, list[Blob]]]:
        """Every blob of a generation with its mirrors, also what it only refers to."""
        checkpoints = self._cluster.checkpoints(history)
        found: list[tuple[Blob, list[Blob]]] = []
        homes: dict[int, list[Blob]] = {}
        for shard in checkpoints.shards(step):
            for blob in shard.blobs:
                found.append((blob, [mirror for mirror in shard.mirrors if mirror.ordinal == blob.ordinal]))
            for reference in shard.references:
                if reference.home.step not in homes:
                    homes[reference.home.step] = [
                        blob for home in checkpoints.shards(reference.home.step) for blob in home.blobs
                    ]
        found += [(blob, []) for blobs in homes.values() for blob in blobs]
        return found

    def wanted_level(self, wish: CheckpointWish) -> Level:
        if wish.level:
            return parse_level(wish.level)
        return self._cluster.pool(wish.pool or "default").pool.level

    def delete(self, history: str, step: int) -> None:
        self._cluster.checkpoints(history).delete(step)

    def open_attempt(self, history: str, job_id: str, number: int) -> None:
        self._cluster.open_attempt(history, Attempt(f"job:{job_id}", number, self._owner))

    def trouble_since(self, unix_ms: int) -> tuple[str, ...]:
        return tuple(
            event.text
            for event in self._cluster.history(limit=_EVENTS_LOOKED_AT)
            if event.unix_ms >= unix_ms and event.kind.startswith(_TROUBLE_KINDS)
        )

    def cordoned_nodes(self) -> Mapping[str, str]:
        return {
            node.id: node.cordoned_because or "cordoned by an operator"
            for node in self._cluster.nodes()
            if node.cordoned
        }

    def cordon(self, node: str, reason: str) -> bool:
        try:
            self._cluster.cordon(node, reason)
        except NotFoundError:
            return False
        return True


def generation_from(save: Save) -> Generation:
    return Generation(
        save.save_id, save.step, save.level, save.created_unix_ms, save.committed_unix_ms, save.held, save.damage
    )


def _is_readable_without(bad: set[tuple[BlobId, NodeId]], blob: Blob, mirrors: list[Blob]) -> bool:
    return any(
        is_readable(form, [holder for holder in counted(form) if (form.id, holder.node_id) not in bad])
        for form in (blob, *mirrors)
    )
