"""Encryption before upload."""

from __future__ import annotations

from sdrs_core.backup.targets import Target
from sdrs_storaged.bucket.store import ObjectStore


class DataKey:
    """A random key of one cluster's objects. Only its id may be shown."""

    def __init__(self, key_id: str, secret: bytes) -> None:
        self.id = key_id
        self._secret = secret

    def name_of(self, blake3: str) -> str:
        """What stands for a content's BLAKE3 in the name of its object: as long, and telling nothing."""
        raise NotImplementedError


class DataKeys:
    """The data keys in a bucket, as far as this machine has the keys that they are wrapped with."""

    def __init__(self, store: ObjectStore, target: Target) -> None: ...

    def current(self, cluster_id: str) -> DataKey:
        """The one for what is new; made if there is none."""
        raise NotImplementedError

    def get(self, cluster_id: str, key_id: str) -> DataKey:
        """PermissionDeniedError if it is wrapped with a key that is not here; it names that one's id."""
        raise NotImplementedError

    def rotate(self, cluster_id: str) -> int:
        """Wraps each data key anew that is not under the target's ``encryption_key``; how many those were.

        What they were wrapped with must be among ``former_keys`` or be the present one. Interrupted, it is run again.
        """
        raise NotImplementedError
