"""Real storage nodes under a teller of maps, for tests of what nodes do with and to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdrs_core.cluster import Group
from sdrs_core.ids import NodeId, PoolName, random_id
from sdrs_proto.v1 import membership_pb2
from tests.support.blob_sender import StorageCalls
from tests.support.cluster import DaemonProcess, storage_node
from tests.support.map_teller import POOL, MapTeller, group_of
from tests.support.waiting import wait_for

NAMES = ["n1", "n2", "n3"]
# Soon finds a member slow; the others are patient, so that a busy machine is not taken for a slow member.
IMPATIENT = "n4"
WRITE_SLOTS = 2


@dataclass
class ToldNodes:
    teller: MapTeller
    daemons: dict[str, DaemonProcess]
    _calls: dict[str, StorageCalls] = field(default_factory=dict)

    def calls(self, name: str) -> StorageCalls:
        node = self.teller.nodes[NodeId(name)]
        known = self._calls.get(name)
        if known is None or known.node != node:  # it was restarted, and is elsewhere
            known = self._calls[name] = StorageCalls(node)
        return known

    def close(self) -> None:
        for calls in self._calls.values():
            calls.close()

    def holders(self, *blob_ids: str) -> list[str]:
        """Who holds all of these blobs."""
        return [name for name in self.daemons if len(self.calls(name).held(*blob_ids)) == len(blob_ids)]

    def form(self, *members: str, pool: PoolName = POOL) -> Group:
        """A new group at epoch 1."""
        group = group_of(f"{pool}:{random_id()[:8]}", 1, *members, pool=pool)
        self.teller.tell(group)
        return group

    def reform(self, group: Group, *members: str) -> Group:
        moved = group_of(group.id, group.epoch + 1, *members, pool=group.pool)
        self.teller.tell(moved)
        return moved

    def fragments(self, blob_id: str) -> dict[tuple[str, int], Path]:
        """By node and index, the files that are durable of a blob."""
        return {
            (name, int(path.suffix[1:])): path
            for name, daemon in self.daemons.items()
            for path in daemon.data_dir.glob(f"disk-*/fragments/*/{blob_id}.*")
        }

    @contextmanager
    def dying_at(self, name: str, point: str) -> Iterator[None]:
        """The node dies when it reaches ``point``, which it must; it is back afterwards."""
        daemon = self.daemons[name]
        _points(daemon).write_text(f"{point}=kill")
        try:
            yield
            daemon.wait_for_death(30)
        finally:
            _points(daemon).unlink()
            daemon.kill()
            daemon.start()

    def wait_for_writing(self, name: str, blob_id: str) -> None:
        files = self.daemons[name].data_dir
        wait_for(lambda: list(files.glob(f"disk-*/tmp/{blob_id}*")), f"{name} to have begun with blob {blob_id}", 30)

    def reports_of(self, group: Group) -> list[membership_pb2.ReportMemberRequest]:
        return [report for report in self.teller.reports if report.group_id == group.id]

    def receipts_of(self, group: Group) -> list[membership_pb2.Receipt]:
        return [receipt for receipt in self.teller.receipts if receipt.group_id == group.id]


def _points(daemon: DaemonProcess) -> Path:
    return daemon.folder / f"{daemon.name}.points"


@contextmanager
def told_nodes(folder: Path, special: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[ToldNodes]:
    """``special``: settings of single nodes."""
    with MapTeller().serving() as teller:
        daemons = {}
        for name in [*NAMES, IMPATIENT]:
            settings = {"write_slots": WRITE_SLOTS, "slow_member_seconds": 6 if name == IMPATIENT else 30}
            settings |= (special or {}).get(name, {})
            daemon = daemons[name] = storage_node(folder, name, [teller.address], settings)
            daemon.environment["SDRS_FAULT_POINTS"] = str(_points(daemon))
        try:
            for daemon in daemons.values():
                daemon.start(wait=False)
            for daemon in daemons.values():
                daemon.wait_until_ready()
            with closing(ToldNodes(teller, daemons)) as nodes:
                yield nodes
        finally:
            for daemon in daemons.values():
                if daemon.process and daemon.process.poll() is None:
                    daemon.thaw()
                    daemon.kill()
