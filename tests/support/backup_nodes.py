"""The control plane in one process over a real S3 server: nodes hold names only, and upload content that these give."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from sdrs_core import checksums
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.cluster import Node, Order
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import NodeId
from sdrs_storaged.bucket.opening import open_bucket
from sdrs_storaged.bucket.uploading import upload as put_object
from sdrs_storaged.control.backup.orders import Upload, UploadProgress
from sdrs_storaged.control.backup.records import Run
from tests.support.control import FakeNodes, Harness, ManualClock


class UploadingNodes(FakeNodes):
    """``failing``: those that cannot reach any bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[tuple[NodeId, str]] = []
        self.failing: set[NodeId] = set()

    async def describe_blob(
        self, node: Node, blob: Blob, sources: Sequence[tuple[Node, Holder]], order: Order, *, wants_blake3: bool
    ) -> tuple[bytes, str]:
        self._obey(node.id, order)
        data = _content(blob)
        return checksums.digest(data), blake3(data).hexdigest()

    async def upload_blob(
        self, node: Node, upload: Upload, sources: Sequence[tuple[Node, Holder]], order: Order
    ) -> AsyncGenerator[UploadProgress, None]:
        self._obey(node.id, order)
        if node.id in self.failing:
            raise UnavailableError(f"node {node.id} cannot reach the bucket")
        self.uploads.append((node.id, upload.place.key))
        data = _content(upload.blob)
        with open_bucket(upload.target) as bucket:
            put_object(bucket, upload.place, iter([memoryview(data)]), blake3=upload.blake3)
        yield UploadProgress(len(data), len(data), True)


def _content(blob: Blob) -> bytes:
    return blob.id.encode()[: blob.size_bytes]


class LateClock(ManualClock):
    """Some days after whatever the server says."""

    def __init__(self) -> None:
        self._seconds = time.time() + 3 * 86_400


@dataclass
class Backed:
    harness: Harness
    nodes: UploadingNodes
    target: Target

    @classmethod
    async def start(cls, target: Target, *, node_ids: tuple[NodeId, ...]) -> Backed:
        nodes = UploadingNodes()
        harness = Harness(nodes=nodes, node_ids=node_ids, clock=LateClock())
        backed = cls(harness, nodes, target)
        await harness.start()
        await harness.controller.backups.targets.add(target, take_over=False, request_id="")
        return backed

    async def run(self, kind: RunKind = RunKind.BACKUP, **selection: object) -> Run:
        """One, to its end."""
        self.harness.beat()
        runs = self.harness.controller.backups.runs
        await runs.start(kind, self.target.name, Selection(**selection))  # type: ignore[arg-type]
        await runs._pass_once()
        await runs._tasks[self.target.name]
        await runs._pass_once()
        run = runs.get(self.target.name)
        assert run
        assert not run.is_under_way
        return run

    async def steps(self) -> list[int]:
        copies, _ = await self.harness.controller.backups.listing.page(self.target.name, job="", after="", limit=100)
        return sorted(copy.step for copy in copies)
