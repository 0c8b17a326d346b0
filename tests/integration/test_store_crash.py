"""kill -9 at each step of the write path: what was acknowledged is whole, the rest is absent or complete (I1)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sdrs_core.checkpoints import Verdict
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.ids import BlobId
from tests.support.stores import WRITE_POINTS, all_keys, get, hash_of, opened, payload, put

# More than one buffer, and a tail that is not whole pages: every kind of write takes place.
SIZE = 3 * BLOCK_BYTES + 77
WRITER = """
import sys
from pathlib import Path
from tests.support.stores import opened, payload, put
with opened(Path(sys.argv[1])) as store:
    for seed in range(3):
        stored = put(store, payload(int(sys.argv[2]), seed))
        print(seed, stored.blob_id, flush=True)
"""


@pytest.mark.parametrize("point", WRITE_POINTS)
@pytest.mark.parametrize("visit", [1, 2, 3])
def test_kill_9_at_each_step(tmp_path: Path, point: str, visit: int) -> None:
    folder = tmp_path / "disk"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SDRS_FAULT_POINTS": f"{point}=kill@{visit}",
    }
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder), str(SIZE)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    acknowledged = {BlobId(blob_id): int(seed) for seed, blob_id in map(str.split, done.stdout.splitlines())}
    with opened(folder) as store:
        assert os.listdir(folder / "tmp") == []
        on_disk = {BlobId(path.name.partition(".")[0]) for path in folder.glob("fragments/*/*")}
        assert acknowledged.keys() <= on_disk
        assert all_keys(store) == sorted(on_disk)
        for blob_id, seed in acknowledged.items():
            stored = store.lookup(blob_id, 0)
            assert stored is not None
            assert stored.fragment_hash == hash_of(payload(SIZE, seed))
            assert get(store, stored) == payload(SIZE, seed)
        for blob_id in on_disk:
            assert store.verify(blob_id, 0).verdict is Verdict.OK
        assert get(store, put(store, b"life goes on")) == b"life goes on"
