"""A cluster on a real etcd of which any part is killed, frozen or armed, and that is well before the next test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sdrs
from sdrs_core.cluster import Group
from tests.support.battered import HEAL_SECONDS, POOL, stands_still
from tests.support.cluster import DaemonProcess
from tests.support.controllers import Controller, ReplicatedControl, running_controllers
from tests.support.etcd import EtcdCluster
from tests.support.ledger import Ledger
from tests.support.waiting import wait_for

# As short as etcd grants it: every takeover waits for it.
LEASE_SECONDS = 2
# Less than a client waits for a controller: it is told why there is no answer.
CALL_SECONDS = 2
# Groups stay where failover put them, and nothing is repaired meanwhile: epochs tell who was demoted.
_CONTROLLER = {
    "settle_seconds": 3600,
    "collect_interval_seconds": 0.5,
    "scan_interval_seconds": 0,
    "grace_seconds": 3600,
    "repair_after_seconds": 3600,
    "repair_last_copy_after_seconds": 3600,
}
_NODE = {"slow_member_seconds": 60}


@dataclass
class BatteredControl:
    """With one L2 pool (``POOL``, two mirrors)."""

    etcd: EtcdCluster
    control: ReplicatedControl
    client: sdrs.Cluster

    def ledger(self, job: str) -> Ledger:
        return Ledger(self.client, job, POOL)

    # Who is who

    def roles(self) -> tuple[Controller, Controller]:
        """The active controller, and the one that stands by."""
        return self.control.roles()

    def node(self, name: str) -> DaemonProcess:
        return next(node for node in self.control.nodes if node.name == name)

    def group(self) -> Group:
        """Where a save of rank 0 goes while all is well."""
        return min(self.client.groups(POOL), key=lambda group: group.id)

    def epochs(self) -> dict[str, int]:
        return {group.id: group.epoch for group in self.client.groups()}

    def fragments(self) -> set[Path]:
        """The files of all fragments on all nodes."""
        return {path for node in self.control.nodes for path in node.data_dir.glob("disk-*/fragments/*/*")}

    def seen_revisions(self) -> list[int]:
        """What each node remembers of the MetaStore (P18)."""
        files = [json.loads((node.data_dir / "node.json").read_text()) for node in self.control.nodes]
        return [file["authority"]["revision"] for file in files]

    def frozen_because(self) -> str:
        """Why the active controller changes nothing any more; empty if it does."""
        return next((text for text in self.client.info().warnings if "Nothing is changed" in text), "")

    def wait_until_moved(self, before: Group) -> Group:
        """Until the group has another primary or other members."""
        return wait_for(lambda: self._moved(before), f"group {before.id} to be re-formed", HEAL_SECONDS)

    def _moved(self, before: Group) -> Group | None:
        group = self.client.group(before.id).group
        return group if group.epoch > before.epoch else None

    # Faults

    def arm(self, daemon: DaemonProcess, *points: str) -> None:
        """``points`` as in SDRS_FAULT_POINTS; they act on the running daemon, and on no other."""
        path = Path(daemon.environment["SDRS_FAULT_POINTS"])
        part = path.with_suffix(".part")
        part.write_text("\n".join(points))
        part.replace(path)

    def disarm(self, daemon: DaemonProcess) -> None:
        Path(daemon.environment["SDRS_FAULT_POINTS"]).unlink(missing_ok=True)

    def wait_until_frozen(self, daemon: DaemonProcess) -> None:
        wait_for(lambda: stands_still(daemon.pid), f"{daemon.name} to stand still", 30)

    # Healing

    def heal(self) -> None:
        """Everybody runs, nothing is armed, one controller leads, all groups are whole."""
        self.etcd.heal()
        daemons = self.control.daemons()
        dead = [daemon for daemon in daemons if daemon.process is None or daemon.process.poll() is not None]
        for daemon in daemons:
            self.disarm(daemon)
            if daemon in dead:
                daemon.start(wait=False)
            else:
                daemon.thaw()
        for daemon in dead:
            daemon.wait_until_ready()
        self.wait_until_well()

    def wait_until_well(self) -> None:
        wait_for(self._is_well, "all nodes to be up and all groups whole", HEAL_SECONDS)

    def _is_well(self) -> bool:
        nodes = self.client.nodes()
        is_up = len(nodes) == len(self.control.nodes) and all(node.state == "up" for node in nodes)
        return is_up and not any(group.problem for group in self.client.groups())


@contextmanager
def running(
    etcd: EtcdCluster,
    folder: Path,
    *,
    endpoints: Sequence[str] = (),
    controller: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[BatteredControl]:
    """``endpoints``: where the controllers find etcd, if not at its own addresses. A daemon that has a traceback in its
    log failed the test.
    """
    with running_controllers(
        folder,
        endpoints or etcd.endpoints,
        controller={**_CONTROLLER, **(controller or {})},
        node=_NODE,
        lease_seconds=LEASE_SECONDS,
        call_seconds=CALL_SECONDS,
        **{"node_count": 3, **options},
    ) as control:
        with control.connect(timeout_seconds=60) as client:
            client.create_pool(POOL, "L2", mirrors=2)
            cluster = BatteredControl(etcd, control, client)
            cluster.wait_until_well()
            yield cluster
        for daemon in control.daemons():
            assert "Traceback" not in daemon.log_path.read_text(), f"{daemon.name} had a defect: {daemon.log_path}"
