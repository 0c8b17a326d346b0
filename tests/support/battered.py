"""Clusters whose daemons are killed, frozen and armed one by one, and that are well again before the next test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sdrs
from sdrs_core.cluster import Group
from tests.support.cluster import DaemonProcess, LocalCluster, make_cluster
from tests.support.waiting import wait_for

POOL = "fast"
HEAL_SECONDS = 40.0


def stands_still(pid: int) -> bool:
    """Whether every thread of the process is stopped, also those that were in a system call."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@dataclass
class BatteredCluster:
    """A cluster with one pool (``POOL``, two mirrors unless told), and a client of it."""

    local: LocalCluster
    client: sdrs.Cluster

    @property
    def daemons(self) -> list[DaemonProcess]:
        return [self.local.controller, *self.local.nodes]

    def node(self, name: str) -> DaemonProcess:
        return next(node for node in self.local.nodes if node.name == name)

    # Faults

    def arm(self, daemon: DaemonProcess, *points: str) -> None:
        """``points`` as in SDRS_FAULT_POINTS; they act on the running daemon, and on no other."""
        path = Path(daemon.environment["SDRS_FAULT_POINTS"])
        part = path.with_suffix(".part")
        part.write_text("\n".join(points))
        part.replace(path)

    def disarm(self, daemon: DaemonProcess) -> None:
        Path(daemon.environment["SDRS_FAULT_POINTS"]).unlink(missing_ok=True)

    def freeze(self, daemon: DaemonProcess) -> None:
        daemon.freeze()
        self.wait_until_frozen(daemon)

    def wait_until_frozen(self, daemon: DaemonProcess) -> None:
        wait_for(lambda: stands_still(daemon.pid), f"{daemon.name} to stand still")

    def heal(self) -> None:
        """Everybody runs, nothing is armed, all groups are whole."""
        for daemon in self.daemons:
            self.disarm(daemon)
        dead = [daemon for daemon in self.daemons if daemon.process is None or daemon.process.poll() is not None]
        for daemon in self.daemons:
            if daemon in dead:
                daemon.start(wait=False)
            else:
                daemon.thaw()
        for daemon in dead:
            daemon.wait_until_ready()
        wait_for(self._is_well, "all nodes to be up and all groups whole", HEAL_SECONDS)

    def _is_well(self) -> bool:
        nodes = self.client.nodes()
        is_up = len(nodes) == len(self.local.nodes) and all(node.state == "up" for node in nodes)
        return is_up and not any(group.problem for group in self.client.groups())

    def is_whole(self) -> bool:
        """Whether repair has nothing left to do."""
        info = self.client.info()
        left = (info.degraded_blob_count, info.unavailable_count, info.repair.waiting_blobs, info.repair.awaited_blobs)
        return not any(left) and self._is_well()

    # Who is who

    def group(self, pool: str = POOL) -> Group:
        """Where a save of rank 0 goes while all is well."""
        return min(self.client.groups(pool), key=lambda group: group.id)

    def primary(self, pool: str = POOL) -> DaemonProcess:
        return self.node(self.group(pool).primary)

    def replica(self, pool: str = POOL) -> DaemonProcess:
        group = self.group(pool)
        return self.node(next(member for member in group.members if member != group.primary))

    def wait_until_moved(self, before: Group) -> Group:
        """Until the group has another primary or other members."""
        return wait_for(lambda: self._moved(before), f"group {before.id} to be re-formed", HEAL_SECONDS)

    def _moved(self, before: Group) -> Group | None:
        group = self.client.group(before.id).group
        return group if group.epoch > before.epoch else None


def make_battered(folder: Path, **options: Any) -> LocalCluster:
    """Not started yet; each daemon reads its own file of fault points. Groups stay where failover put them.

    Nobody stages: a client that saves by itself takes the first group, so that it is known whom to hit.
    """
    controller = {"settle_seconds": 3600, **options.pop("controller", {})}
    node = {"staging_bytes": 0, **options.pop("node", {})}
    cluster = make_cluster(folder, controller=controller, node=node, **options)
    for daemon in [cluster.controller, *cluster.nodes]:
        daemon.environment = {"SDRS_FAULT_POINTS": str(folder / f"{daemon.name}.points")}
    return cluster


@contextmanager
def running(local: LocalCluster, level: str = "L2", **pool: Any) -> Iterator[BatteredCluster]:
    """Start it, and make its pool. A daemon that has a traceback in its log failed the test."""
    try:
        local.start()
        with local.connect(timeout_seconds=30) as client:
            client.create_pool(POOL, level, **pool)
            yield BatteredCluster(local, client)
        for daemon in [local.controller, *local.nodes]:
            assert "Traceback" not in daemon.log_path.read_text(), f"{daemon.name} had a defect: {daemon.log_path}"
    finally:
        for daemon in [*local.nodes, local.controller]:
            if daemon.process and daemon.process.poll() is None:
                daemon.kill()
