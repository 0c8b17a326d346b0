"""Who is vouched for where a blob is spread over some of a group's members: coded, or mirrored because it is small.

Every member that can be reached says what it holds. What survives the loss of any one failure domain is good enough at
once (P10): repair adds the rest. Only what is worth less is filled up first, from what is there. A member that fails
is not waited for longer than a slow one, and costs nothing while the others have enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Shard
from sdrs_core.cluster import Group, Node
from sdrs_core.codes import parse_code
from sdrs_core.errors import SaveFailedError, SdrsError, StaleEpochError, UnavailableError
from sdrs_core.ids import BlobId, NodeId, check_random_id
from sdrs_core.redundancy import Standing, form_of
from sdrs_core.shares import least_standing
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.rpc.census import Answers, Census
from sdrs_storaged.rpc.filling import SourcesUnavailableError
from sdrs_storaged.rpc.sources import BlobFacts, Source
from sdrs_storaged.rpc.vouching import Vouched, held_of, keys_of, lacking, vouch
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.seeing_through import all_of
from sdrs_storaged.store.fragment import FragmentKey, FragmentOrigin

# Gives a member a fragment, by its index, that is made of what the sources hold; it blocks (``filling``).
Fill = Callable[[Group, Node, FragmentOrigin, BlobFacts, Sequence[Source], int], None]


class SpreadSeal:
    def __init__(self, groups: Groups, census: Census, reports: MemberReports, fill: Fill, pushes: Workers) -> None:
        self._groups = groups
        self._census = census
        self._reports = reports
        self._fill = fill
        self._pushes = pushes

    async def confirm(self, group: Group, shard: Shard, origin: FragmentOrigin) -> tuple[Blob, ...]:
        """The shard's blobs, each with who holds what of it; an error if that is not enough.

        ``origin``: what the header of a fragment says that has to be made.
        """
        for blob in shard.blobs:
            check_random_id(blob.id, "blob id")
        held = _Held(self._groups, self._census, group, shard)
        spared = [member for member in group.members if self._reports.is_spared(group, member)]
        await held.ask([member for member in group.members if member not in spared])
        if spared and not held.is_safe():
            await held.ask(spared)
        if not held.is_safe():
            await self._fill_up(group, held, origin)
        vouched = held.vouched()
        poor = [found for found in vouched if found.standing < least_standing(held.pool)]
        if poor:
            raise UnavailableError(
                f"blob {poor[0].blob.id} would not survive the loss of one failure domain, and the members of group "
                f"{group.id} that answer cannot take more of it"
            )
        return tuple(found.blob for found in vouched)

    async def _fill_up(self, group: Group, held: _Held, origin: FragmentOrigin) -> None:
        reach("seal.lacking")
        silent = set(group.members) - held.answered
        orders = []
        for found in held.vouched():
            if found.standing is Standing.LOST:
                raise _not_durable(found, group, silent)
            if found.standing < Standing.SAFE:
                targets = lacking(found, group, held.pool, self._groups.domains, silent)
                orders += [(found, index, member) for index, member in targets]
        given = await all_of(self._give(group, found, origin, index, member) for found, index, member in orders)
        takers = {member for member in given if member is not None}
        if takers:
            await held.ask(sorted(takers))

    async def _give(
        self, group: Group, found: Vouched, origin: FragmentOrigin, index: int, member: NodeId
    ) -> NodeId | None:
        """The member, if it took it."""
        blob = found.blob
        facts = BlobFacts(blob.id, blob.size_bytes, blob.hash, blob.code)
        holders = sorted(blob.holders, key=lambda holder: holder.node_id != group.primary)
        try:
            node = self._groups.node(member)
            sources = [Source(self._groups.node(h.node_id), h.fragment_index, h.fragment_hash) for h in holders]
            header = replace(origin, ordinal=blob.ordinal, packing=blob.packing)
            await self._pushes.run(self._fill, group, node, header, facts, sources, index)
            return member
        except (StaleEpochError, SaveFailedError, SourcesUnavailableError):
            raise
        except SdrsError as error:
            self._reports.note(group, member, error)
            return None


class _Held:
    """What members said so far in one seal."""

    def __init__(self, groups: Groups, census: Census, group: Group, shard: Shard) -> None:
        self.pool = groups.pool_of(group)
        self._domains = groups.domains
        self._census = census
        self._group = group
        self._shard = shard
        self._answers: dict[NodeId, Sequence[pb.HeldFragment]] = {}
        self._keys = [key for blob in shard.blobs for key in keys_of(blob, self.pool)]
        self._full_count = sum(form_of(self.pool, blob.size_bytes).total for blob in shard.blobs)

    @property
    def answered(self) -> Set[NodeId]:
        return self._answers.keys()

    async def ask(self, members: Collection[NodeId]) -> None:
        self._answers |= await self._census.ask(self._group, members, self._keys, self._would_be_full)
        # Of a pool whose code was changed since, there may be more of what its members named.
        more = {key for held in self._told() for key in _siblings(held)} - set(self._keys)
        if more:
            self._keys += sorted(more)
            self._answers |= await self._census.ask(self._group, self.answered, self._keys, lambda answers: False)

    def _told(self) -> Iterator[pb.HeldFragment]:
        for held in self._answers.values():
            yield from held

    def _would_be_full(self, answers: Answers) -> bool:
        together = self._answers | dict(answers)
        # Before there are so many, nothing need be looked at.
        if sum(map(len, together.values())) < self._full_count:
            return False
        return all(found.standing is Standing.FULL for found in self._vouch(together))

    def is_safe(self) -> bool:
        return all(found.standing >= Standing.SAFE for found in self.vouched())

    def vouched(self) -> list[Vouched]:
        return self._vouch(self._answers)

    def _vouch(self, answers: Answers) -> list[Vouched]:
        told: dict[str, list[tuple[NodeId, pb.HeldFragment]]] = {}
        for member, held_there in answers.items():
            for held in held_there:
                told.setdefault(held.blob_id, []).append((member, held))
        shard = self._shard
        return [
            vouch(blob, self.pool, held_of(blob, shard.save_id, told.get(blob.id, ())), self._domains)
            for blob in shard.blobs
        ]


def _not_durable(found: Vouched, group: Group, silent: Set[NodeId]) -> SdrsError:
    what = (
        f"blob {found.blob.id} is not durable in group {group.id}, which has {len(found.blob.holders)} of "
        f"{found.form.needed} fragments that are needed"
    )
    if silent:
        # They may have it: the group is re-formed, and then either they count again or it is sent once more.
        return UnavailableError(f"{what}, as far as its members answer ({', '.join(sorted(silent))} do not)")
    return SaveFailedError(f"{what}: send it again")


def _siblings(held: pb.HeldFragment) -> Iterator[FragmentKey]:
    code = parse_code(held.code)
    for index in range(code.total if code else 1):
        yield FragmentKey(BlobId(held.blob_id), index)
