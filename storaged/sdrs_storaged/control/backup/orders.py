"""What backups ask of nodes; the other side is ``rpc.node_client``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.cluster import Node, Order


@dataclass(frozen=True, slots=True)
class Upload:
    """A blob into a bucket; ``blake3`` is that of its content."""

    blob: Blob
    target: Target
    place: ObjectPlace
    blake3: str
    # 0: as fast as it goes.
    max_bytes_per_second: int = 0
    # Whoever uploads it stops.
    is_called_off: bool = False


@dataclass(frozen=True, slots=True)
class UploadProgress:
    done_bytes: int
    sent_bytes: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class ProbeStep:
    name: str
    ok: bool
    detail: str = ""


class BackupCalls(Protocol):
    async def describe_blob(
        self, node: Node, blob: Blob, sources: Sequence[tuple[Node, Holder]], order: Order, *, wants_blake3: bool
    ) -> tuple[bytes, str]:
        """The table of its plain blocks, and its BLAKE3: as on record, or computed if it is wanted."""
        ...

    def upload_blob(
        self, node: Node, upload: Upload, sources: Sequence[tuple[Node, Holder]], order: Order
    ) -> AsyncGenerator[UploadProgress, None]:
        """``sources``: who holds which fragment of it. The last one is done; until then it goes on, also unheard."""
        ...

    def probe_target(self, node: Node, target: Target, order: Order) -> AsyncGenerator[ProbeStep, None]: ...
