"""S3 servers for tests: moto in a thread, and a real SeaweedFS in processes of its own; each with an empty bucket.

Fixtures for a test file: ``from tests.support.s3_servers import moto_s3, seaweed_s3, s3_server  # noqa: F401``; with
``s3_server`` a test runs on both. Each test takes a prefix of its own: ``server.target(tmp_path)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sdrs_core.backup.targets import Target


@dataclass(frozen=True)
class S3Server:
    """``access_key`` and ``secret_key`` may do everything."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    def target(self, folder: Path, name: str = "nas", **changes: object) -> Target:
        """A target with a fresh prefix; its credentials are in a file in ``folder``."""
        raise NotImplementedError
