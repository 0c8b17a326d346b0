"""What one process keeps for one cluster: connections, staging memory, saves under way. A forked child gets its own."""

from __future__ import annotations

from dataclasses import dataclass

from sdrs.restore.holders import HolderBook
from sdrs.restore.recalls import Recalls
from sdrs.restore.reports import DamageReports
from sdrs.rpc.channels import Channels
from sdrs.rpc.control import Control
from sdrs.rpc.map import Maps
from sdrs.save.in_flight import InFlight
from sdrs.save.local_stage import LocalStage
from sdrs.transfer.routes import Routes

# A save is renewed so often that several renewals may fail before it is taken for abandoned.
RENEWALS_PER_TTL = 4
MIN_RENEW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    addresses: tuple[str, ...]
    timeout_seconds: float
    # Of this process's own memory; and, if the user gave it, of what it takes of the daemon's.
    staging_bytes: int
    is_staging_given: bool
    save_ttl_seconds: float


class Process:
    def __init__(self, settings: Settings) -> None:
        self.channels = Channels()
        self.control = Control(self.channels, settings.addresses, settings.timeout_seconds)
        self.routes = Routes(self.channels)
        self.maps = Maps(self.control)
        self.holders = HolderBook()
        self.reports = DamageReports(self.control)
        self.recalls = Recalls(self.control)
        self.stage = LocalStage(
            self.control,
            limit_bytes=settings.staging_bytes if settings.is_staging_given else None,
            patience_seconds=settings.timeout_seconds,
        )
        self.saves = InFlight(
            self.control,
            self.routes,
            self.maps,
            self.stage,
            staging_bytes=settings.staging_bytes,
            renew_seconds=max(MIN_RENEW_SECONDS, settings.save_ttl_seconds / RENEWALS_PER_TTL),
        )
