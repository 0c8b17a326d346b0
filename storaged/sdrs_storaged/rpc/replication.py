"""What a primary sends to the other members of its group: while a blob comes in, or afterwards from its own disk.

What a member lacks costs nobody else anything: the blob is durable here, the controller hears of the member, and the
seal looks who has what before anybody is vouched for (I1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager

from sdrs_core.checksums import BLOCK_BYTES, Buffer, digest, table_entry
from sdrs_core.cluster import Group, Node
from sdrs_core.errors import CorruptDataError, FullError, NotFoundError, SaveFailedError, SdrsError
from sdrs_core.ids import BlobId, NodeId
from sdrs_proto.framing import Frame
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.assignment import Assignment, assign
from sdrs_storaged.rpc.peers import CopyChannel, Peers
from sdrs_storaged.rpc.relay import Relay
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.reader import FragmentReader


class Relays:
    """What goes to other members of one blob that is being received; nothing, if that was itself relayed."""

    def __init__(self, relays: Sequence[Relay] = ()) -> None:
        self._relays = relays

    def __iter__(self) -> Iterator[Relay]:
        return iter(self._relays)

    def put(self, checksum: bytes, block: Buffer) -> None:
        """To all of them, a block that was compared with its checksum: what a member then finds wrong with it is not
        the sender's.
        """
        for relay in self._relays:
            relay.put(checksum, block)

    def end(self, summary_of: Callable[[int], pb.BlobSummary]) -> None:
        """No more blocks. When this returns, the memory of all of them may be used again."""
        for relay in self._relays:
            relay.end(summary_of(relay.share))
        for relay in self._relays:
            relay.await_unused()

    def settle(self) -> None:
        """Until every member has the blob durable, or was given up."""
        for relay in self._relays:
            relay.settle()

    def close(self) -> None:
        """As ``end``, for a blob that will not come."""
        for relay in self._relays:
            relay.give_up()
        for relay in self._relays:
            relay.await_unused()

    def give_up_unless(self, is_member: Callable[[NodeId], bool]) -> None:
        for relay in self._relays:
            if not is_member(relay.member.id):
                relay.give_up()


class Replication:
    def __init__(
        self, store: FragmentStore, groups: Groups, peers: Peers, reports: MemberReports, metrics: NodeMetrics
    ) -> None:
        self._store = store
        self._groups = groups
        self._peers = peers
        self._reports = reports
        self._metrics = metrics

    def assign(self, intent: WriteIntent) -> Assignment:
        """Who stores what of a blob that comes to this primary."""
        group = self._groups.check(intent.group_id, intent.epoch, as_primary=True)
        return assign(
            group,
            self._groups.pool_of(group),
            self._groups.domains,
            intent.origin.blob_id,
            intent.size_bytes,
            held=dict(intent.held),
            failing=[
                member
                for member in group.members
                if self._reports.is_spared(group, member) or self._reports.is_full(member)
            ],
        )

    def lacks_room(self, group: Group) -> bool:
        """Whether a member refused something a moment ago because its disks are full: the group stays as it is."""
        return any(map(self._reports.is_full, group.members))

    def relay_count(self, intent: WriteIntent) -> int:
        """To how many a blob goes on."""
        return len(self.assign(intent).others)

    @contextmanager
    def relaying(self, assignment: Assignment, intent_of: Callable[[int], WriteIntent]) -> Iterator[Relays]:
        """To the others, what is assigned to them; left before the buffers are that it is sent from.

        ``intent_of``: under what a share is stored.
        """
        group = assignment.group
        others = self._others(assignment)
        relays = Relays([self._relay(group, node, share, intent_of(share)) for share, node in others])
        if not others:
            yield relays
            return
        try:
            with self._groups.watching(
                lambda: relays.give_up_unless(lambda node_id: self._groups.is_member(group.id, node_id))
            ):
                yield relays
        finally:
            relays.close()

    def _others(self, assignment: Assignment) -> list[tuple[int, Node]]:
        """Whom something is to be sent to, as far as they can be reached at all."""
        group = assignment.group
        reachable = []
        for share, member_id in assignment.others.items():
            try:
                reachable.append((share, self._groups.node(member_id)))
            except SdrsError as error:
                self._failed(group, member_id, error)
        return reachable

    def _relay(self, group: Group, node: Node, share: int, intent: WriteIntent) -> Relay:
        def failed(error: SdrsError) -> None:
            self._failed(group, node.id, error)

        return Relay(node, lambda: self._peers.open_copy(node, intent), failed, self._metrics.relayed_bytes.inc, share)

    def _failed(self, group: Group, member_id: NodeId, error: SdrsError) -> None:
        self._metrics.relays_failed.inc()
        if isinstance(error, FullError) and self._groups.pool_of(group).code is not None:
            # Its fragments go to the others (P10). To re-form the group would take it in again: it takes smaller ones.
            self._reports.note_full(member_id)
        else:
            self._reports.note(group, member_id, error)

    async def relay_small(self, assignment: Assignment, intent: WriteIntent, frames: Sequence[Frame]) -> None:
        """Copies of a blob that came in a few frames. A member that fails costs only its copy."""
        group = assignment.group
        others = self._others(assignment)
        await asyncio.gather(*(self._send_small(group, node, intent, frames) for _, node in others))

    async def _send_small(self, group: Group, node: Node, intent: WriteIntent, frames: Sequence[Frame]) -> None:
        try:
            await self._groups.run_while(
                self._peers.write_small(node, intent, frames),
                lambda: self._groups.is_member(group.id, node.id),
                group.id,
            )
            self._metrics.relayed_bytes.inc(intent.size_bytes)
        except SdrsError as error:
            self._failed(group, node.id, error)

    def push(self, group: Group, node: Node, blob_id: BlobId) -> None:
        """Give a member what it lacks, from this node's own disk; blocks. Raises why the member did not take it."""
        try:
            reader = self._store.open(blob_id, 0)
        except (NotFoundError, CorruptDataError) as error:
            raise self._own_failure(blob_id, error.message) from error
        with reader:
            intent = WriteIntent(reader.meta, reader.size_bytes, group.id, group.epoch, relayed=True)
            copy = self._peers.open_copy(node, intent)
            if copy is None:
                return
            with (
                copy,
                closing(_blocks(reader)) as blocks,
                self._groups.watching(lambda: self._shut_if_moved(copy, group)),
            ):
                try:
                    for checksum, block in blocks:
                        copy.send_block(checksum, block)
                        self._metrics.relayed_bytes.inc(len(block))
                except _OwnDamageError as error:
                    raise self._own_failure(blob_id, str(error)) from error
                copy.finish(pb.BlobSummary(size_bytes=reader.size_bytes, hash=reader.fragment_hash))

    def _shut_if_moved(self, copy: CopyChannel, group: Group) -> None:
        if not self._groups.is_current(group):
            copy.shut()

    def _own_failure(self, blob_id: BlobId, why: str) -> SaveFailedError:
        """What is wrong with this node's own copy is not the member's fault."""
        self._store.verify(blob_id, 0)  # quarantined, if it is as bad as it looks
        return SaveFailedError(f"blob {blob_id} is not sound on its primary ({why}): send it again")


class _OwnDamageError(Exception):
    """A fragment of this node does not match its own table, or cannot be read."""


def _blocks(reader: FragmentReader) -> Generator[tuple[bytes, memoryview], None, None]:
    """Each block with its digest, compared with the table (I5); valid until the next one."""
    index = 0
    try:
        with closing(reader.pieces(0, reader.size_bytes)) as pieces:
            for piece in pieces:
                for start in range(0, len(piece), BLOCK_BYTES):
                    block = piece[start : start + BLOCK_BYTES]
                    checksum = table_entry(reader.table, index)
                    if digest(block) != checksum:
                        raise _OwnDamageError(f"block {index} of {reader.path}")
                    yield checksum, block
                    index += 1
    except SdrsError as error:
        raise _OwnDamageError(error.message) from error
