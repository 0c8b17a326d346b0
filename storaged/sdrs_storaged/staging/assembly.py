"""Staging, put together for a node; none if it is switched off or has no place here."""

from __future__ import annotations

import socket
from pathlib import Path

from prometheus_client import CollectorRegistry

from sdrs_core.cluster import Staging as Figures
from sdrs_core.errors import SdrsError
from sdrs_storaged.config import NodeConfig
from sdrs_storaged.logs import get_log
from sdrs_storaged.metrics import StagingMetrics
from sdrs_storaged.rpc.controller_client import ControllerClient
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.staging.carrier import Carrier
from sdrs_storaged.staging.place import budget_bytes, default_folder, spare_bytes
from sdrs_storaged.staging.segments import Segments
from sdrs_storaged.staging.sending import Sending
from sdrs_storaged.staging.sessions import Sessions
from sdrs_storaged.staging.stager import Stager

log = get_log("staging")


def open_segments(config: NodeConfig, data_dir: Path) -> Segments | None:
    if not config.staging_bytes or not config.unix_socket:
        return None
    folder = config.staging_dir or default_folder(data_dir)
    try:
        if not folder.parent.is_dir() and config.staging_dir is None:
            log.warning("staging_off", why=f"{folder.parent} is absent: name a tmpfs (node.staging_dir)")
            return None
        segments = Segments(folder, 0, spare_bytes)
    except SdrsError as error:
        if config.staging_dir is not None:
            raise
        log.warning("staging_off", why=error.message)
        return None
    segments.budget_bytes = budget_bytes(folder) if config.staging_bytes < 0 else config.staging_bytes
    log.info("staging_ready", folder=str(folder), budget_bytes=segments.budget_bytes)
    return segments


class Staging:
    """``serve`` takes connections of processes, ``run`` is the loop."""

    def __init__(
        self,
        segments: Segments,
        client: ControllerClient,
        sending: Sending,
        workers: Workers,
        registry: CollectorRegistry,
    ) -> None:
        """Blocks for a moment. To be made before anybody is served: what is found now was left by an earlier run."""
        metrics = StagingMetrics(registry)
        self._segments = segments
        self._stager = Stager(segments, Carrier(client, sending, workers), metrics, segments.recover())
        self._sessions = Sessions(segments, self._stager, metrics)
        metrics.budget_bytes.set(segments.budget_bytes)
        metrics.taken_bytes.set_function(lambda: segments.taken_bytes)
        metrics.kept_bytes.set_function(lambda: segments.kept_bytes)
        metrics.waiting_count.set_function(lambda: self._stager.waiting_count)
        metrics.oldest_waiting_seconds.set_function(lambda: self._stager.oldest_waiting_seconds)

    def figures(self) -> Figures:
        return Figures(
            self._segments.budget_bytes,
            self._segments.taken_bytes,
            self._segments.kept_bytes,
            self._stager.waiting_count,
            int(1000 * self._stager.oldest_waiting_seconds),
        )

    def serve(self, connection: socket.socket) -> None:
        self._sessions.serve(connection)

    async def run(self) -> None:
        await self._stager.run()

    def close(self) -> None:
        self._sessions.close()
