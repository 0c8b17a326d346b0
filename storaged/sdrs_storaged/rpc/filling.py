"""A member is given what it lacks of a blob, made of what others hold: copied, or rebuilt from fragments."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace

from sdrs_core.cluster import Group, Node
from sdrs_core.codes import parse_code
from sdrs_core.errors import CorruptDataError, SaveFailedError, SdrsError, UnavailableError
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.fragment_streams import FragmentStream, fragment_stream
from sdrs_storaged.rpc.peers import CopyChannel, Peers
from sdrs_storaged.rpc.sources import BlobFacts, Source, Sources
from sdrs_storaged.store.fragment import FragmentOrigin


class SourcesUnavailableError(UnavailableError):
    """What it is to be made of cannot be read now, which is not the fault of the member that it is for."""


class Filling:
    def __init__(self, groups: Groups, peers: Peers, sources: Sources, metrics: NodeMetrics) -> None:
        self._groups = groups
        self._peers = peers
        self._sources = sources
        self._metrics = metrics

    def fill(
        self, group: Group, node: Node, origin: FragmentOrigin, blob: BlobFacts, sources: Sequence[Source], index: int
    ) -> None:
        """Fragment ``index`` of ``blob``, to a member of the group; blocks. ``origin``: what its header is to say.

        Raises why it could not be made, or why the member did not take it.
        """
        is_coded = parse_code(blob.code) is not None
        origin = replace(
            origin,
            blob_id=blob.id,
            fragment_index=index,
            code=blob.code,
            source_size_bytes=blob.size_bytes if is_coded else 0,
        )
        with fragment_stream(self._sources.open, self._sources.buffers, blob, sources, index) as stream:
            intent = WriteIntent(origin, stream.size_bytes, group.id, group.epoch, relayed=True)
            copy = self._peers.open_copy(node, intent)
            if copy is None:
                return
            with copy, self._groups.watching(lambda: self._shut_if_moved(copy, group)):
                with closing(_made(stream, blob)) as blocks:
                    for checksum, block in blocks:
                        copy.send_block(checksum, block)
                        self._metrics.relayed_bytes.inc(len(block))
                        reach("fill.block")
                copy.finish(_summary(stream, blob, is_coded=is_coded))

    def _shut_if_moved(self, copy: CopyChannel, group: Group) -> None:
        if not self._groups.is_current(group):
            copy.shut()


def _made(stream: FragmentStream, blob: BlobFacts) -> Generator[tuple[bytes, memoryview], None, None]:
    try:
        with closing(stream.blocks()) as blocks:
            yield from blocks
    except SdrsError as error:
        what = f"fragment {stream.index} of blob {blob.id} cannot be made of what its group holds: {error.message}"
        if isinstance(error, CorruptDataError):
            raise SaveFailedError(f"{what}; send it again") from error
        raise SourcesUnavailableError(what) from error


def _summary(stream: FragmentStream, blob: BlobFacts, *, is_coded: bool) -> pb.BlobSummary:
    summary = pb.BlobSummary(size_bytes=stream.size_bytes, hash=stream.fragment_hash)
    if is_coded:
        summary.source_size_bytes = blob.size_bytes
        summary.source_hash = blob.hash
        summary.source_table = stream.source_table
    return summary
