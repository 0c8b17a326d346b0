"""One target as this machine sees it: its objects, and the keys that they are encrypted with."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sdrs_core.backup import layout
from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target
from sdrs_core.errors import PermissionDeniedError
from sdrs_storaged.bucket.encryption import DataKey, DataKeys, ObjectCipher
from sdrs_storaged.bucket.failures import where
from sdrs_storaged.bucket.patience import Patience
from sdrs_storaged.bucket.store import ObjectStore
from sdrs_storaged.bucket.transfer_memory import TransferMemory


class Bucket:
    """Safe for use by several threads; all calls block. ``store`` has keys relative to the target's prefix."""

    def __init__(
        self,
        target: Target,
        store: ObjectStore,
        keys: DataKeys | None,
        patience: Patience,
        memory: TransferMemory | None = None,
    ) -> None:
        """``memory``: what its transfers share with those of other buckets."""
        self.target = target
        self.store = store
        # None where the target is not encrypted.
        self.keys = keys
        self.patience = patience
        self.memory = memory or TransferMemory()

    def new_data_key_id(self, cluster_id: str) -> str:
        """Under which data key new objects and manifests go; made if there is none yet. Empty: not encrypted."""
        return self.keys.current(cluster_id).id if self.keys else ""

    def new_place(self, cluster_id: str, blake3: str, run_id: str, size_bytes: int) -> ObjectPlace:
        """Where ``run_id`` is to upload content with this BLAKE3 (P25). Names of encrypted objects tell nothing."""
        if self.keys is None:
            return ObjectPlace(layout.object_key(cluster_id, blake3, run_id), size_bytes)
        key = self.keys.current(cluster_id)
        return ObjectPlace(layout.object_key(cluster_id, key.name_of(blake3), run_id), size_bytes, key.id)

    def data_key(self, cluster_id: str, key_id: str) -> DataKey:
        if self.keys is None:
            raise PermissionDeniedError(
                f"{where(self.target)} is encrypted, and the target names no encryption_key: name where the key is"
            )
        return self.keys.get(cluster_id, key_id)

    def cipher(self, place: ObjectPlace) -> ObjectCipher | None:
        """None: the object is not encrypted."""
        if not place.data_key_id:
            return None
        cluster_id = place.key.partition("/")[0]
        return self.data_key(cluster_id, place.data_key_id).cipher(place.key, place.size_bytes)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
