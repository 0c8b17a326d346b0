"""What the members of a group hold of some blobs, each by its own word and at this very epoch (I1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import Group
from sdrs_core.errors import SdrsError, StaleEpochError
from sdrs_core.ids import DiskId, NodeId
from sdrs_proto.limits import MAX_BLOBS_PER_SHARD
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.rpc.blobs import held_to
from sdrs_storaged.rpc.peers import Peers
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentKey

# Who answered, and what.
Answers = Mapping[NodeId, Sequence[pb.HeldFragment]]


class Census:
    def __init__(
        self, store: FragmentStore, groups: Groups, peers: Peers, reports: MemberReports, looks: Workers
    ) -> None:
        self._store = store
        self._groups = groups
        self._peers = peers
        self._reports = reports
        self._looks = looks

    async def ask(
        self,
        group: Group,
        members: Collection[NodeId],
        keys: Sequence[FragmentKey],
        is_enough: Callable[[Answers], bool],
    ) -> Answers:
        """Of the primary, which this node is, and of others. Who cannot answer is reported, and is not in the answer.

        Nobody is waited for any more once it ``is_enough``. A member that knows of a later epoch ends it all.
        """
        answers: dict[NodeId, Sequence[pb.HeldFragment]] = {}
        asking = {asyncio.ensure_future(self._ask(group, member, keys)): member for member in members}
        waiting = set(asking)
        try:
            while waiting and not is_enough(answers):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task, member in asking.items():
                    answer = task.result() if task in done else None
                    if answer is not None:
                        answers[member] = answer
            return answers
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, group: Group, member: NodeId, keys: Sequence[FragmentKey]) -> Sequence[pb.HeldFragment] | None:
        if member == group.primary:
            return await self._looks.run(self._own, keys)
        names = [pb.FragmentName(blob_id=blob_id, fragment_index=index) for blob_id, index in keys]
        held: list[pb.HeldFragment] = []
        try:
            node = self._groups.node(member)
            for start in range(0, len(names), MAX_BLOBS_PER_SHARD):
                held += await self._peers.lookup(node, names[start : start + MAX_BLOBS_PER_SHARD], group)
        except StaleEpochError:
            raise
        except SdrsError as error:
            self._reports.note(group, member, error)
            return None
        return held

    def _own(self, keys: Sequence[FragmentKey]) -> list[pb.HeldFragment]:
        return [held_to(stored) for key in keys if (stored := self._store.lookup(*key)) is not None]


def holder_of(member: NodeId, held: pb.HeldFragment) -> Holder:
    return Holder(member, DiskId(held.disk_id), held.fragment_index, held.hash)
