"""The scripts of docs/backup-format.md bring checkpoints out of a bucket, and its examples are of what lies there."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sdrs
from sdrs_core.backup.manifests import BackedUpBlob
from sdrs_core.backup.targets import Target
from sdrs_storaged.bucket.lock import PrefixLock
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.opening import open_bucket
from tests.support.backups import key_file
from tests.support.cluster import LocalCluster
from tests.support.from_backups import back_up, break_object, files_in
from tests.support.s3_servers import S3Server, moto_s3  # noqa: F401
from tests.support.states import MIB, make_state, same

PAGE = (Path(__file__).parents[2] / "docs" / "backup-format.md").read_text()
KEY = bytes(range(32))


def script(name: str, folder: Path) -> Path:
    """As somebody would paste it from the page."""
    [code] = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if code.startswith(f"# {name} ")]
    (folder / name).write_text(code)
    return folder / name


def bring_out(server: S3Server, target: Target, job: str, step: int, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "BACKUP_KEY": KEY.hex(),
    }
    told = [target.bucket, target.prefix, job, str(step), str(folder / "out")]
    # Isolated: nothing of this project is on its path but what is installed.
    command = [sys.executable, "-I", str(script("by_hand.py", folder)), *told]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with shared_cluster.connect() as connected:
        yield connected


@pytest.fixture
def target(cluster: sdrs.Cluster, moto_s3: S3Server, tmp_path: Path) -> Iterator[Target]:  # noqa: F811
    added = cluster.backups.add_target(moto_s3.target(tmp_path, name="plain"))
    yield added
    cluster.backups.remove_target(added.name)


@pytest.fixture
def encrypted(cluster: sdrs.Cluster, moto_s3: S3Server, tmp_path: Path) -> Iterator[Target]:  # noqa: F811
    key = key_file(tmp_path / "backup.key", KEY)
    added = cluster.backups.add_target(moto_s3.target(tmp_path, name="encrypted", encryption_key=key))
    yield added
    cluster.backups.remove_target(added.name)


def blobs_of(target: Target, cluster: sdrs.Cluster) -> list[BackedUpBlob]:
    with open_bucket(target) as bucket:
        manifests = ManifestStore(bucket, cluster.info().id)
        [record] = manifests.commits()
        return [blob for rank in range(record.world_size) for blob in manifests.get_shard(record, rank).blobs]


def test_a_state_is_restored_by_hand_bit_for_bit(
    cluster: sdrs.Cluster,
    target: Target,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states: list[dict[str, Any]] = []
    for rank in (0, 1):
        # Arrays that safetensors has no name for, one of a blob of its own that shrinks, and every kind of plain value.
        odd = {"complex": np.array([1 + 2j, 3j]), "big-endian": np.arange(5, dtype=">i4"), "scalar": np.array(2.5)}
        plain = {
            "none": None,
            "far": 1 << 80,
            "nan": [float("inf"), -1.5],
            "key": b"\0\1",
            7: "ä\ud800",
            "long": b"z" * 9999,
        }
        ramp = np.arange((17 if rank else 1) * MIB // 4, dtype=np.float32)
        states.append({**make_state(rank, MIB + 3), "odd": odd, "plain": plain, "pair": (1, 2j), "ramp": ramp})
    ckpts = cluster.checkpoints("state", compress="zstd")
    savings = [ckpts.save(step=9, state=states[rank], rank=rank, world_size=2, attempt=1) for rank in (0, 1)]
    for saving in savings:
        saving.wait()
    back_up(cluster, target, job="state")
    assert {bool(blob.packing) for blob in blobs_of(target, cluster)} == {True, False}

    done = bring_out(moto_s3, target, "state", 9, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for rank in (0, 1):
        monkeypatch.setattr(sys, "argv", ["to_state.py", str(tmp_path / "out" / f"{rank:06d}")])
        assert same(runpy.run_path(str(script("to_state.py", tmp_path)))["state"], states[rank])


def test_an_encrypted_folder_is_restored_by_hand_with_names_modes_and_times(
    cluster: sdrs.Cluster,
    encrypted: Target,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "in"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "deep" / "large.bin").write_bytes(np.random.default_rng(1).bytes(17 * MIB))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o750)
    (folder / "nothing").touch()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("a name that is no text")
    (folder / "link").symlink_to("deep/large.bin")
    (folder / "dull").write_bytes(bytes(17 * MIB))
    cluster.checkpoints("files", compress="zstd").save_files(step=3, path=folder).wait()
    back_up(cluster, encrypted, job="files")
    assert {(bool(blob.packing), bool(blob.place.data_key_id)) for blob in blobs_of(encrypted, cluster)} == {
        (True, True),
        (False, True),
    }

    done = bring_out(moto_s3, encrypted, "files", 3, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    monkeypatch.setattr(sys, "argv", ["to_files.py", str(tmp_path / "out" / "000000"), str(tmp_path / "back")])
    runpy.run_path(str(script("to_files.py", tmp_path)))
    assert files_in(tmp_path / "back") == files_in(folder)
    assert facts_of(tmp_path / "back") == facts_of(folder)


def facts_of(folder: Path) -> dict[str, tuple[int, object]]:
    facts: dict[str, tuple[int, object]] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        more = os.readlink(path) if path.is_symlink() else (stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        facts[str(path.relative_to(folder))] = stat.S_IFMT(status.st_mode), more
    return facts


def test_damage_is_told_by_hand(
    cluster: sdrs.Cluster,
    target: Target,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    cluster.checkpoints("damaged").save(step=1, state=make_state(1)).wait()
    back_up(cluster, target, job="damaged")
    [blob] = blobs_of(target, cluster)
    client = moto_s3.client()
    break_object(client, target, blob.place.key)
    client.close()
    done = bring_out(moto_s3, target, "damaged", 1, tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"{blob.place.key} is damaged: its BLAKE3 is not {blob.blake3}\n",
    )


def test_the_examples_have_the_fields_of_what_lies_in_the_bucket(
    cluster: sdrs.Cluster,
    target: Target,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    examples = [json.loads(code) for code in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    cluster.checkpoints("fields").save(step=1, state=make_state(1)).wait()
    back_up(cluster, target, job="fields")
    secret = moto_s3.target(tmp_path, name="secret", encryption_key=key_file(tmp_path / "backup.key", KEY))
    with open_bucket(secret) as bucket:
        bucket.new_data_key_id(cluster.info().id)
        PrefixLock(bucket, cluster.info().id, "somebody", lambda: 0.0).acquire()
    client = moto_s3.client()
    found = []
    for prefix in (target.prefix, secret.prefix):
        for one in client.list_objects_v2(Bucket=target.bucket, Prefix=f"{prefix}/")["Contents"]:
            if one["Key"].endswith(".json"):
                found.append(json.loads(client.get_object(Bucket=target.bucket, Key=one["Key"])["Body"].read()))
    client.close()
    assert sorted(map(fields, found)) == sorted(map(fields, examples))


def fields(record: dict[str, Any]) -> list[str]:
    """With those of blobs; in the order in which they are written."""
    return [*record, *(name for blob in record.get("blobs", []) for name in blob)]


def test_the_scripts_need_nothing_of_this_project() -> None:
    imported: set[str] = set()
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"boto3", "blake3", "cryptography", "zstandard", "safetensors"}
