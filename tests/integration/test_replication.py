"""Replicated writes on real nodes: who gets a copy, who is vouched for, and what an epoch that ends leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.cluster import Group
from sdrs_core.ids import NodeId, random_id
from sdrs_proto.v1 import membership_pb2
from tests.support.blob_sender import StorageCalls, intent_of
from tests.support.cluster import DaemonProcess, storage_node
from tests.support.map_teller import MapTeller, group_of
from tests.support.stores import hash_of, payload

NAMES = ["n1", "n2", "n3"]
SLOTS = 2


@dataclass
class Told:
    """Three nodes, and a teller of maps."""

    teller: MapTeller
    daemons: dict[str, DaemonProcess]

    def calls(self, name: str) -> StorageCalls:
        return StorageCalls(self.teller.nodes[NodeId(name)])

    def holders(self, *blob_ids: str) -> list[str]:
        """Who holds all of these blobs."""
        return [name for name in NAMES if len(self.calls(name).held(*blob_ids)) == len(blob_ids)]

    def form(self, *members: str) -> Group:
        """A new group at epoch 1."""
        group = group_of(f"told:{random_id()[:8]}", 1, *members)
        self.teller.tell(group)
        return group

    def reform(self, group: Group, *members: str) -> Group:
        moved = group_of(group.id, group.epoch + 1, *members)
        self.teller.tell(moved)
        return moved

    def reports_of(self, group: Group) -> list[membership_pb2.ReportMemberRequest]:
        return [report for report in self.teller.reports if report.group_id == group.id]

    def receipts_of(self, group: Group) -> list[membership_pb2.Receipt]:
        return [receipt for receipt in self.teller.receipts if receipt.group_id == group.id]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("told")
    with MapTeller().serving() as teller:
        settings = {"slow_member_seconds": 2, "write_slots": SLOTS, "member_slots": SLOTS}
        daemons = {name: storage_node(folder, name, [teller.address], settings) for name in NAMES}
        try:
            for daemon in daemons.values():
                daemon.start(wait=False)
            for daemon in daemons.values():
                daemon.wait_until_ready()
            yield Told(teller, daemons)
        finally:
            for daemon in daemons.values():
                if daemon.process and daemon.process.poll() is None:
                    daemon.thaw()
                    daemon.kill()


def _payload_on_disk(daemon: DaemonProcess, blob_id: str, size_bytes: int) -> bytes:
    (path,) = daemon.data_dir.glob(f"disk-*/fragments/*/{blob_id}.0")
    return Path(path).read_bytes()[4096 : 4096 + size_bytes]


@pytest.mark.parametrize("way", ["small", "stream", "channel"])
def test_both_copies_are_there_and_identical_when_a_blob_is_acknowledged(told: Told, way: str) -> None:
    group = told.form("n1", "n2")
    data = payload(5000 if way == "small" else 5 * BLOCK_BYTES + 77)
    intent = intent_of(group, len(data))
    primary = told.calls("n1")
    stored = primary.write(intent, data) if way == "channel" else primary.write_over_grpc(intent, data)
    assert stored.hash == hash_of(data)
    assert told.holders(intent.blob_id) == ["n1", "n2"]
    primary.seal(group, [intent], [data])
    (receipt,) = told.receipts_of(group)
    holders = receipt.shard.blobs[0].holders
    assert [(holder.node_id, holder.fragment_hash) for holder in holders] == [
        ("n1", hash_of(data)),
        ("n2", hash_of(data)),
    ]
    assert len({holder.disk_id for holder in holders}) == 2
    for name in ("n1", "n2"):
        assert _payload_on_disk(told.daemons[name], intent.blob_id, len(data)) == data
