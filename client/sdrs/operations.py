"""What operators do to a cluster: see and move its groups, cordon nodes, read its history, carry its catalog about.

Each of these may be refused by the controller as unsafe or undecidable: a ``RefusedError`` that says why.
"""

from __future__ import annotations

import io
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from sdrs.process import Process
from sdrs.views import (
    Event,
    FailoverOutcome,
    GroupInfo,
    MetaImport,
    MetaRebuild,
    StageReport,
    event_from,
    failover_outcome_from,
    group_info_from,
)
from sdrs_core.cluster import Group, Node
from sdrs_core.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from sdrs_core.ids import ClusterId, random_id
from sdrs_proto.convert import group_from, node_from
from sdrs_proto.limits import MAX_GIVEN_SNAPSHOT_BYTES, MAX_PAGE_SIZE
from sdrs_proto.v1 import control_pb2 as messages

DRAIN_SECONDS = 30.0
MAX_DRAIN_SECONDS = 24 * 3600.0
HISTORY_LIMIT = 100
# To find what is lost the controller may have to read its whole catalog.
_FAILOVER_MS = 60_000
# The catalog of a large cluster, over a slow line.
_TRANSFER_SECONDS = 3600.0
# Every fragment of every node is read.
_REBUILD_SECONDS = 7 * 24 * 3600.0
_CHUNK_BYTES = 1 << 20
_GZIP = 31  # zlib's word for it


class Operations(ABC):
    """The operators' half of ``Cluster``."""

    @abstractmethod
    def process(self) -> Process:
        """What this process keeps for the cluster."""

    def groups(self, pool: str | None = None) -> list[Group]:
        """All groups, or those of one pool."""
        pages = self.process().control.pages("list_groups", messages.ListGroupsRequest(pool=pool or ""))
        return [group_from(group) for page in pages for group in page.groups]

    def group(self, group_id: str) -> GroupInfo:
        return group_info_from(self.process().control.call("get_group", messages.GetGroupRequest(group_id=group_id)))

    def switchover(self, group_id: str, to: str | None = None, drain_seconds: float = DRAIN_SECONDS) -> Group:
        """Move a group's primary to ``to``, else to its best other member, without failing a save.

        Saves under way are waited for as long as ``drain_seconds``; those left then go on at the new primary.
        """
        if not 0 <= drain_seconds <= MAX_DRAIN_SECONDS:
            raise InvalidArgumentError(f"drain_seconds is {drain_seconds!r}: give 0 to {MAX_DRAIN_SECONDS:.0f}")
        drain_ms = int(drain_seconds * 1000)
        request = messages.SwitchoverRequest(
            request_id=random_id(), group_id=group_id, to_node_id=to or "", drain_ms=drain_ms
        )
        return group_from(self.process().control.call("switchover", request, wait_ms=drain_ms).group)

    def failover(self, group_id: str, to: str | None = None, accept_data_loss: bool = False) -> FailoverOutcome:
        """Move a group's primary now, without waiting for anybody.

        ``accept_data_loss`` gives up the checkpoints that have no live copy left, for good; the answer names them.
        """
        request = messages.FailoverRequest(
            request_id=random_id(), group_id=group_id, to_node_id=to or "", accept_data_loss=accept_data_loss
        )
        return failover_outcome_from(self.process().control.call("failover", request, wait_ms=_FAILOVER_MS))

    def pause(self, reason: str = "") -> None:
        """No failover by itself from now on, until ``resume``; what an operator asks for is done all the same."""
        self._set_automatic(paused=True, reason=reason or "an operator paused it and gave no reason")

    def resume(self) -> None:
        self._set_automatic(paused=False, reason="")

    def _set_automatic(self, *, paused: bool, reason: str) -> None:
        request = messages.SetAutomaticRequest(request_id=random_id(), paused=paused, reason=reason)
        self.process().control.call("set_automatic", request)

    def cordon(self, node_id: str, reason: str = "") -> Node:
        """The node takes no part in new saves; what it holds stays readable. ``reason`` is kept with it until
        it is uncordoned.
        """
        return self._set_cordon(node_id, cordoned=True, reason=reason)

    def uncordon(self, node_id: str) -> Node:
        return self._set_cordon(node_id, cordoned=False, reason="")

    def _set_cordon(self, node_id: str, *, cordoned: bool, reason: str) -> Node:
        request = messages.SetCordonRequest(request_id=random_id(), node_id=node_id, cordoned=cordoned, reason=reason)
        return node_from(self.process().control.call("set_cordon", request).node)

    def history(self, group: str | None = None, node: str | None = None, limit: int = HISTORY_LIMIT) -> list[Event]:
        """What happened to the cluster, to one group or to one node; newest first."""
        if limit < 1:
            raise InvalidArgumentError(f"limit is {limit!r}: give a whole number from 1 on")
        request = messages.ListEventsRequest(
            page_size=min(limit, MAX_PAGE_SIZE), group_id=group or "", node_id=node or ""
        )
        events: list[Event] = []
        for page in self.process().control.pages("list_events", request):
            events += [event_from(event) for event in page.events]
            if len(events) >= limit:
                break
        return events[:limit]

    def export_meta(self, file: str | os.PathLike[str], seal: bool) -> int:
        """Write the catalog into a new file; its size in bytes.

        ``seal``: the cluster changes nothing any more from then on, so that the file can be imported elsewhere (P18).
        Repeating it is safe. Without it the file is a snapshot, for ``rebuild_meta``.
        """
        path = Path(file)
        # Looked for before anything is sealed, and never replaced: it may be the only other copy of a catalog.
        if path.exists():
            raise AlreadyExistsError(f"{path} exists: give another name, or move it away", file=path)
        part = path.with_name(f".{path.name}.part")
        try:
            # The keys that nodes and controller share are in it: for its owner's eyes only.
            with open(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as out:
                for data in self._exported(seal):
                    out.write(data)
                out.flush()
                os.fsync(out.fileno())
                size_bytes = out.tell()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return size_bytes

    def _exported(self, seal: bool) -> Iterator[bytes]:
        control = self._at_active_controller().control
        request = messages.ExportMetaRequest(request_id=random_id(), seal=seal)
        for chunk in control.stream("export_meta", request, timeout_seconds=_TRANSFER_SECONDS):
            yield chunk.data

    def import_meta(self, file: str | os.PathLike[str]) -> MetaImport:
        """Fill a controller whose catalog is empty from a file that ``export_meta`` wrote and sealed."""
        with open(file, "rb") as source:
            answer = self._at_active_controller().control.send(
                "import_meta", _chunks(source), timeout_seconds=_TRANSFER_SECONDS
            )
        return MetaImport(ClusterId(answer.cluster_id), answer.incarnation, answer.record_count)

    def rebuild_meta(
        self,
        node_addresses: Sequence[str],
        progress: StageReport | None = None,
        snapshot: str | os.PathLike[str] | None = None,
    ) -> MetaRebuild:
        """Bring a catalog that is lost for good back from what the nodes hold (P19); ``host:port`` of each.

        Nodes keep copies of the catalog; ``snapshot``, a file of ``export_meta``, is one more. The newest is taken, and
        what is newer by the nodes' fragments is added.
        """
        if not node_addresses:
            raise InvalidArgumentError("a catalog is rebuilt from its nodes: name them, as host:port")
        request = messages.RebuildMetaRequest(
            request_id=random_id(),
            node_addresses=list(node_addresses),
            snapshot=b"" if snapshot is None else _packed(Path(snapshot)),
        )
        control = self._at_active_controller().control
        problems: list[str] = []
        for answer in control.stream("rebuild_meta", request, timeout_seconds=_REBUILD_SECONDS):
            if progress is not None:
                progress(answer.stage, answer.done_count, answer.total_count)
            problems += [problem for problem in answer.problems if problem not in problems]
            if answer.done:
                return MetaRebuild(answer.checkpoint_count, tuple(problems))
        raise UnavailableError("the controller ended the rebuild before it was done: look at its log, and run it again")

    def _at_active_controller(self) -> Process:
        """Streams are not repeated at another address: a short call finds the active controller first."""
        process = self.process()
        process.control.call("get_cluster", messages.GetClusterRequest())
        return process


def _chunks(source: BinaryIO) -> Iterator[messages.MetaChunk]:
    while data := source.read(_CHUNK_BYTES):
        yield messages.MetaChunk(data=data)


def _packed(file: Path) -> bytes:
    """A snapshot as nodes keep theirs, in one message; memory is bounded by what a message takes."""
    packer = zlib.compressobj(wbits=_GZIP)
    packed = io.BytesIO()
    with open(file, "rb") as source:
        while data := source.read(_CHUNK_BYTES):
            packed.write(packer.compress(data))
            if packed.tell() > MAX_GIVEN_SNAPSHOT_BYTES:
                break
    packed.write(packer.flush())
    if packed.tell() > MAX_GIVEN_SNAPSHOT_BYTES:
        raise InvalidArgumentError(
            f"{file} has more than {MAX_GIVEN_SNAPSHOT_BYTES} bytes when it is packed, and no larger one can be sent: "
            "rebuild without it, from the copies that nodes keep",
            file=file,
        )
    return packed.getvalue()
