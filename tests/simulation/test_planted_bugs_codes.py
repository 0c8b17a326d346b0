"""The simulator can fail, also where fragments of a code are written, moved, made anew and let go."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from sdrs_core import redundancy, repair
from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import Group
from sdrs_core.codes import parse_code
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.reshaping import Make
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.control.claims import Claims, FragmentName
from sdrs_storaged.control.collector import Collector, Fragment
from sdrs_storaged.control.copier import Copier, Leash, Pull
from sdrs_storaged.control.fresh_look import Found, FreshLook
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.maker import Maker
from sdrs_storaged.control.meta.store import Compare, Op
from sdrs_storaged.control.records import Records
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.rpc.blobs import BlobStore
from sdrs_storaged.rpc.census import Answers, Census
from sdrs_storaged.rpc.striping import Striping
from sdrs_storaged.store.fragment import FragmentKey
from tests.simulation.planted import found_by

Plant = pytest.MonkeyPatch


def test_a_seal_that_counts_a_fragment_which_nobody_acknowledged(monkeypatch: Plant) -> None:
    """A member that cannot be asked is taken to have what it was sent."""
    production = Census.ask

    async def ask(
        self: Census, group: Group, members: Collection[NodeId], keys: Sequence[FragmentKey], is_enough: Any
    ) -> Answers:
        answers = dict(await production(self, group, members, keys, is_enough))
        told = [held for of_member in answers.values() for held in of_member]
        for member in [member for member in members if member not in answers]:
            answers[member] = list(_supposed(told))
        return answers

    monkeypatch.setattr(Census, "ask", ask)
    found_by("I1", is_coded=True, kinds=("kill_node", "pause_node", "cut_node"))


def _supposed(told: Sequence[pb.HeldFragment]) -> Iterator[pb.HeldFragment]:
    for one in told:
        code = parse_code(one.code)
        there = {held.fragment_index for held in told if held.blob_id == one.blob_id}
        for index in range(code.total if code else 0):
            if index not in there:
                supposed = pb.HeldFragment()
                supposed.CopyFrom(one)
                supposed.fragment_index = index
                yield supposed


def test_a_member_that_takes_fragments_of_an_epoch_that_is_over(monkeypatch: Plant) -> None:
    production = Groups.admit

    async def admit(self: Groups, group_id: Any, epoch: int, *, as_primary: bool) -> Group:
        known = self._map.groups.get(group_id)
        return known if known and not as_primary else await production(self, group_id, epoch, as_primary=as_primary)

    monkeypatch.setattr(Groups, "admit", admit)
    monkeypatch.setattr(BlobStore, "_check", lambda self, intent: None)
    found_by("I3", is_coded=True, kinds=("cut_node", "pause_node", "bad_weather"))


def test_parity_that_is_not_that_of_the_data(monkeypatch: Plant) -> None:
    """P9: a bit flips in a data block just before the parity is computed; all checksums are right."""
    production = Striping._put_parity

    def put_parity(self: Striping) -> None:
        block = self._stripe()[0]
        block[0] ^= 1
        production(self)
        block[0] ^= 1

    monkeypatch.setattr(Striping, "_put_parity", put_parity)
    # I7: or the node itself computes it anew, and sets it aside, before anybody here knows what it should have been.
    found_by("P9", "I7", is_coded=True)


def test_repair_that_lets_go_of_what_it_needs(monkeypatch: Plant) -> None:
    """Whatever is not needed to read the blob goes."""

    def is_dispensable(self: Any, holder: Holder, left: list[Holder]) -> bool:
        others = [known for known in left if known != holder]
        return len(repair.shares(others, self.form.code)) >= self.form.needed

    monkeypatch.setattr(repair._Case, "_is_dispensable", is_dispensable)
    found_by("I7", is_coded=True, kinds=("clock_jump",), commands=("move",))


def test_shares_of_the_same_index_that_count_twice(monkeypatch: Plant) -> None:
    """A conversion makes one fragment twice and another one never, and what it made counts as all of them."""
    production = Maker.make

    async def make(self: Maker, save: Any, stored: Any, action: Make, *args: Any) -> Any:
        twice = tuple((max(0, index - 1), target) for index, target in action.targets)
        return await production(self, save, stored, replace(action, targets=twice), *args)

    monkeypatch.setattr(Maker, "make", make)
    monkeypatch.setattr(redundancy, "share_of", lambda holder, code: (holder.node_id, holder.fragment_index))
    found_by("I7", "I6", is_coded=True, commands=("convert",))


def test_a_conversion_that_is_recorded_before_it_is_durable(monkeypatch: Plant) -> None:
    production = Copier.pull

    async def pull(self: Copier, target: NodeId, order: Pull, sources: Sequence[Holder], leash: Leash) -> Holder:
        if order.blob.id == order.source.id:
            return await production(self, target, order, sources, leash)
        return Holder(target, DiskId("soon"), order.fragment_index, order.blob.hash)

    monkeypatch.setattr(Copier, "pull", pull)
    found_by("I1", is_coded=True, commands=("convert",))


def test_orphans_that_are_being_made(monkeypatch: Plant) -> None:
    """What is on no record yet is collected while the rest of its blob is made."""

    @contextmanager
    def take(self: Claims, node_id: NodeId, names: Any) -> Iterator[list[FragmentName]]:
        yield list(names)

    def all_of_them(self: Collector, fragments: Sequence[Fragment]) -> dict[FragmentName, Any]:
        return {
            (fragment.blob_id, fragment.index): fragment.save_id
            for fragment in fragments
            if self._commits.get(fragment.save_id) is None
        }

    monkeypatch.setattr(Claims, "take", take)
    monkeypatch.setattr(Collector, "_old_and_ended", all_of_them)
    production = Copier.pull

    async def pull(self: Copier, target: NodeId, order: Pull, sources: Sequence[Holder], leash: Leash) -> Holder:
        # Large blobs take longer than two scans.
        holder = await production(self, target, order, sources, leash)
        await asyncio.sleep(2.0)
        return holder

    monkeypatch.setattr(Copier, "pull", pull)
    found_by("I1", is_coded=True, kinds=("clock_jump",), commands=("convert",))


def test_a_node_that_is_removed_without_a_look(monkeypatch: Plant) -> None:
    async def without(self: FreshLook, node_id: NodeId) -> Found:
        return Found()

    monkeypatch.setattr(FreshLook, "without", without)
    found_by("P7", is_coded=True, kinds=("clock_jump",), commands=("drain", "remove", "add"))


def test_a_holder_that_is_recorded_without_comparing(monkeypatch: Plant) -> None:
    """P4: two who change one record at once overwrite each other."""
    production = Records.commit

    async def commit(self: Records, compare: Sequence[Compare], then: Sequence[Op]) -> int:
        kept = [one for one in compare if not one.key.startswith("shard/")]
        return await production(self, kept, then)

    monkeypatch.setattr(Records, "commit", commit)
    found_by("I1", "I4", "I7", "P14", "P2", is_coded=True, kinds=("kill_node",), commands=("drain", "convert", "add"))


def test_a_drop_of_a_fragment_without_the_mark(monkeypatch: Plant) -> None:
    async def mark_dropping(self: HolderRecords, stored: Any, blob_id: BlobId, holders: Any) -> Any:
        return stored

    monkeypatch.setattr(HolderRecords, "mark_dropping", mark_dropping)
    found_by("P14", is_coded=True, commands=("drain", "add"))
