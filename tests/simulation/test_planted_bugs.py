"""The simulator can fail: each bug that is planted here must be found by one of a few seeds.

All but one are planted in production code. ``acknowledgement before fsync`` is planted in the model of the disk, since
the real disk is not simulated; ``tests/faults/test_power_loss.py`` looks for that one on a real file system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sdrs_core.checkpoints import Holder, Shard
from sdrs_core.cluster import Group
from sdrs_core.ids import BlobId, GroupId, NodeId
from sdrs_storaged.control import receipts as receipts_module
from sdrs_storaged.control.collector import Collector, Fragment, FragmentName
from sdrs_storaged.control.commits import Commits, Pending
from sdrs_storaged.control.holders import HolderRecords
from sdrs_storaged.control.meta.store import Compare, Op
from sdrs_storaged.control.receipts import Receipt, Receipts
from sdrs_storaged.control.records import ConflictError, Records, Stored
from sdrs_storaged.control.tables import Layout
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.rpc.sealing import Sealing
from tests.simulation.node import NodeProcess
from tests.simulation.planted import found_by

Plant = pytest.MonkeyPatch


def test_members_that_obey_an_epoch_that_is_over(monkeypatch: Plant) -> None:
    production = Groups.check

    def check(self: Groups, group_id: GroupId, epoch: int, *, as_primary: bool) -> Group:
        known = self._map.groups.get(group_id)
        return known or production(self, group_id, epoch, as_primary=as_primary)

    monkeypatch.setattr(Groups, "check", check)
    found_by("I3", kinds=("cut_node", "pause_node", "bad_weather"))


def test_a_receipt_that_is_taken_from_a_deposed_primary(monkeypatch: Plant) -> None:
    production = Receipts._check

    async def check(self: Receipts, node_id: NodeId, receipt: Receipt) -> Any:
        group = self._members.group(receipt.group_id)
        return await production(self, group.primary, replace(receipt, epoch=group.epoch))

    monkeypatch.setattr(Receipts, "_check", check)
    monkeypatch.setattr(receipts_module, "_check_holders", lambda *_: None)
    found_by("I3", kinds=("cut_node", "pause_node", "bad_weather"))


def test_acknowledgement_before_fsync() -> None:
    def on_node(node: NodeProcess) -> None:
        node.store.acknowledges_before_fsync = True

    found_by("I1", on_node=on_node)


def test_a_holder_that_never_acknowledged(monkeypatch: Plant) -> None:
    disks: dict[NodeId, NodeProcess] = {}

    async def confirm(self: Sealing, group: Group, shard: Shard, member_id: NodeId) -> dict[BlobId, Holder]:
        disk_id = next(iter(disks[member_id].platter.disks))
        return {blob.id: Holder(member_id, disk_id, 0, blob.hash) for blob in shard.blobs}

    monkeypatch.setattr(Sealing, "_confirm", confirm)
    found_by("I1", on_node=lambda node: disks.update({node.platter.node_id: node}))


def test_a_commit_without_all_ranks(monkeypatch: Plant) -> None:
    production = Commits.commit_if_complete

    async def commit(self: Commits, pending: Pending) -> Any:
        pending.ranks = set(range(pending.stored.value.world_size)) if pending.ranks else pending.ranks
        return await production(self, pending)

    monkeypatch.setattr(Commits, "commit_if_complete", commit)
    found_by("I2")


def test_a_transaction_that_does_not_compare_the_term(monkeypatch: Plant) -> None:
    async def commit(self: Records, compare: Sequence[Compare], then: Sequence[Op]) -> int:
        result = await self.store.txn(compare, then)
        if not result.succeeded:
            raise ConflictError("a record changed in between")
        return result.revision

    monkeypatch.setattr(Records, "commit", commit)
    found_by("I2", kinds=("pause_controller", "cut_controller", "pause_node"))


def test_a_transaction_that_does_not_compare_the_layout(monkeypatch: Plant) -> None:
    production = Stored.unchanged

    def unchanged(self: Stored[Any]) -> Compare:
        return Compare.present(self.key) if isinstance(self.value, Layout) else production(self)

    monkeypatch.setattr(Stored, "unchanged", unchanged)
    found_by("I3", "I1", kinds=("kill_node", "pause_node", "cut_node"))


def test_a_drop_without_the_mark(monkeypatch: Plant) -> None:
    async def mark_dropping(self: HolderRecords, stored: Any, blob_id: BlobId, holders: Any) -> Any:
        return stored

    monkeypatch.setattr(HolderRecords, "mark_dropping", mark_dropping)
    found_by("P14")


def test_orphans_that_belong_to_a_pending_save(monkeypatch: Plant) -> None:
    def all_of_them(self: Collector, fragments: Sequence[Fragment]) -> dict[FragmentName, Any]:
        return {(fragment.blob_id, fragment.index): fragment.save_id for fragment in fragments}

    monkeypatch.setattr(Collector, "_old_and_ended", all_of_them)
    found_by("P13")
