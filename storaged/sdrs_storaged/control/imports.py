"""Taking in an exported catalog (P18): staged and checked as it comes, written only when all of it proved whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from sdrs_core.errors import CorruptDataError, FullError, RefusedError
from sdrs_core.ids import ClusterId, random_id
from sdrs_storaged.control import keys
from sdrs_storaged.control.archive import Decoder, Summary
from sdrs_storaged.control.records import parse
from sdrs_storaged.control.replacement import Replacement
from sdrs_storaged.control.staging import Staging
from sdrs_storaged.control.tables import ClusterRecord

# Beyond what any MetaStore holds.
MAX_ARCHIVE_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class Imported:
    cluster_id: ClusterId
    incarnation: int
    record_count: int


class Importer:
    def __init__(self, replacement: Replacement, folder: Path) -> None:
        self._replacement = replacement
        self._folder = folder

    async def run(self, pieces: AsyncIterator[bytes]) -> Imported:
        await self._replacement.check_empty()
        staging = await Staging.open(self._folder)
        try:
            summary = await stage(staging, pieces)
            if not summary.header.sealed:
                # P18: its cluster went on after it. Nodes have seen more, and would take this for a rollback.
                raise RefusedError(
                    "this file is a snapshot, not an export: its cluster went on after it was written. `sdrs meta "
                    "rebuild --snapshot FILE` brings it back, together with what the nodes have since; `sdrs meta "
                    "export` writes files that can be imported"
                )
            cluster = await staging.run(staged_cluster, staging)
            await self._replacement.check_empty()  # it took a while
        except BaseException:
            staging.close()
            raise
        count = await self._replacement.carry_out(staging, cluster)
        return Imported(cluster.id, cluster.incarnation, count)


async def stage(staging: Staging, pieces: AsyncIterator[bytes]) -> Summary:
    """Everything that a file says, into ``staging``; CorruptDataError if it is torn or damaged."""
    decoder = Decoder()
    size_bytes = 0
    async for piece in pieces:
        size_bytes += len(piece)
        if size_bytes > MAX_ARCHIVE_BYTES:
            raise FullError(f"the exported catalog has more than {MAX_ARCHIVE_BYTES} bytes: this cannot be one")
        await staging.run(staging.apply_sync, decoder.feed(piece))
    summary = decoder.finish()
    cluster = await staging.run(staged_cluster, staging)
    if (cluster.id, cluster.incarnation) != (summary.header.cluster_id, summary.header.incarnation):
        raise CorruptDataError("the exported catalog is of another cluster than its first line says: export it again")
    return summary


def staged_cluster(staging: Staging) -> ClusterRecord:
    """The cluster's record; a copy without secrets gets a new one, which ends the capabilities given out before."""
    value = staging.get_sync(keys.CLUSTER)
    if value is None:
        raise CorruptDataError("the exported catalog has no record of its cluster: export it again")
    cluster = parse(keys.CLUSTER, value, ClusterRecord)
    return cluster if cluster.secret else replace(cluster, secret=random_id())
