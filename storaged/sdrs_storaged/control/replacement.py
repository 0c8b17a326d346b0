"""Putting a whole catalog in the place of an empty one: the end of an import and of a rebuild (P18, P19).

Many transactions, but one step to whoever looks: a marker is written first and removed with the last, which puts the
cluster's own record. Where the marker is found, what stands there is half a catalog and is thrown away: by the
controller that starts on it, or by the import that is repeated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import CorruptDataError, InternalError, RefusedError, StaleTermError, UnavailableError
from sdrs_core.failover import first_epoch
from sdrs_core.ids import random_id
from sdrs_storaged.control import keys
from sdrs_storaged.control.archive import is_content
from sdrs_storaged.control.meta.store import ELECTION_PREFIX, Compare, Delete, Op, Put
from sdrs_storaged.control.records import MAX_TXN_RECORDS, Records, batched, put
from sdrs_storaged.control.staging import Staging
from sdrs_storaged.control.tables import ClusterRecord
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("replacement")

_BUSY = "a catalog is being put in place here: wait until it is whole"
_KEPT = {keys.CLUSTER, keys.REPLACING}
_INTERRUPTED = "an import or rebuild was interrupted here: repeat it, or restart this controller"
_REPLACED = "the catalog was just replaced: this controller starts anew, try again in a moment"


@dataclass(frozen=True, slots=True)
class Replacing:
    """The marker; its id tells one try from the next."""

    id: str


async def undo_interrupted(records: Records) -> None:
    """Before a controller loads: what an interrupted replacement left is half a catalog, and empty is better."""
    marker = await records.get(keys.REPLACING, Replacing)
    if marker:
        await _clear(records)
        await _commit(records, [marker.unchanged()], [Delete(keys.REPLACING)])
        log.warning("interrupted_import_undone")


class Replacement:
    """``on_replaced`` is told once all is written: what this controller has in memory is then of another catalog, and
    its term must end. It may not wait for the call that is being answered.
    """

    def __init__(self, records: Records, on_replaced: Callable[[], None]) -> None:
        self._records = records
        self._on_replaced = on_replaced
        self._writing: asyncio.Task[int] | None = None

    async def check_empty(self) -> None:
        """RefusedError unless there is nothing here that could be lost."""
        if self._writing:
            raise RefusedError(_BUSY)
        if await self._records.get(keys.REPLACING, Replacing):
            return  # the rest of a try that failed: it is thrown away
        if self._records.frozen_because:
            raise RefusedError(self._records.frozen_because)
        for prefix, what in _CONTENTS:
            page = await self._records.store.range(prefix, limit=2)
            found = [entry.key for entry in page.entries if entry.key != keys.pool(DEFAULT_POOL)]
            if found:
                raise RefusedError(
                    f"this controller already has {what} ({found[0]}): a catalog is only put into an empty one; start "
                    "a controller on a new data_dir or store, without nodes, and try there"
                )

    async def carry_out(
        self, staging: Staging, cluster: ClusterRecord, progress: Callable[[int], None] = lambda count: None
    ) -> int:
        """Write what is staged, which then belongs to this call and is closed; the number of records.

        Carried through when the caller hangs up: half a catalog is of no use to anybody.
        """
        if self._writing:
            staging.close()
            raise RefusedError(_BUSY)
        self._writing = asyncio.create_task(self._carry_out(staging, cluster, progress))
        self._writing.add_done_callback(_tell_failure)
        return await asyncio.shield(self._writing)

    async def _carry_out(self, staging: Staging, cluster: ClusterRecord, progress: Callable[[int], None]) -> int:
        # Also if the store does not say whether the marker is there: whoever finds it later throws everything away, so
        # nothing else may be written meanwhile.
        afterwards = _INTERRUPTED
        marker = Replacing(random_id())
        try:
            self._records.frozen_because = _BUSY
            await _commit(self._records, [Compare.absent(keys.SEAL)], [put(keys.REPLACING, marker)])
            ours = Compare.value_is(keys.REPLACING, put(keys.REPLACING, marker).value)
            await _clear(self._records)
            reach("replace.cleared")
            count = await self._write(staging, cluster.incarnation, ours, progress)
            reach("replace.written")
            # P18: the cluster takes on its new identity last, when all of it is there.
            await self._finish(ours, cluster)
            afterwards = _REPLACED
            log.warning("catalog_replaced", cluster=cluster.id, incarnation=cluster.incarnation, record_count=count)
            self._on_replaced()
            return count
        finally:
            self._records.frozen_because = afterwards
            self._writing = None
            staging.close()

    async def _write(self, staging: Staging, incarnation: int, ours: Compare, progress: Callable[[int], None]) -> int:
        count = 0
        after = ""
        while page := await staging.run(staging.page_sync, "", after):
            after = page[-1][0]
            for batch in batched(_writes(page, incarnation)):
                await _commit(self._records, [ours], [write for _, write in batch])
                count += len(batch)
                progress(count)
        return count

    async def _finish(self, ours: Compare, cluster: ClusterRecord) -> None:
        try:
            await _commit(self._records, [ours], [put(keys.CLUSTER, cluster), Delete(keys.REPLACING)])
        except UnavailableError:
            # It may have happened: then the marker is gone, and only then.
            if await self._records.get(keys.REPLACING, Replacing):
                raise


def _tell_failure(writing: asyncio.Task[int]) -> None:
    """Also if whoever asked for it is gone."""
    if not writing.cancelled() and (error := writing.exception()):
        log.error("catalog_not_replaced", why=str(error))


_CONTENTS = (
    (keys.NODES, "nodes"),
    (keys.SAVES, "checkpoints"),
    (keys.TRASH, "deleted checkpoints"),
    (keys.SHARDS, "checkpoints"),
    (keys.JOBS, "jobs"),
    (keys.POOLS, "pools"),
    (keys.GROUPS, "groups"),
)


def _writes(page: list[tuple[str, bytes]], incarnation: int) -> Iterator[tuple[str, Put]]:
    for key, value in page:
        if is_content(key) and key != keys.CLUSTER:
            yield key, Put(key, _with_epoch(key, value, incarnation) if key.startswith(keys.GROUPS) else value)


def _with_epoch(key: str, value: bytes, incarnation: int) -> bytes:
    # I3: members may remember epochs that the copy does not know of.
    try:
        group = json.loads(value)
        group["epoch"] = max(int(group["epoch"]), first_epoch(incarnation))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"the metadata record {key} cannot be read: {error}") from error
    return json.dumps(group, separators=(",", ":")).encode()


async def _clear(records: Records) -> None:
    """Everything but who leads, the marker, and the cluster's own record."""
    after, more = "", True
    while more:
        page = await records.store.range("", after=after, limit=MAX_TXN_RECORDS)
        after = page.entries[-1].key if page.entries else after
        more = page.more
        gone = [e.key for e in page.entries if e.key not in _KEPT and not e.key.startswith(ELECTION_PREFIX)]
        if gone:
            await _commit(records, [Compare.present(keys.REPLACING)], [Delete(key) for key in gone])


async def _commit(records: Records, compare: list[Compare], then: list[Op]) -> None:
    """As ``Records.commit``, but while the records are frozen for everybody else."""
    result = await records.store.txn([records.term.unchanged(), *compare], then)
    if not result.succeeded:
        leader = await records.store.get(records.term.unchanged().key)
        if leader is None or leader.value != records.term.record():
            raise StaleTermError("this controller no longer leads: repeat it on the active one")
        raise InternalError("a record changed while the catalog was being replaced: repeat it")
