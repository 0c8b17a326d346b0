"""Scrubs on real daemons: whatever is done to stored files is found, told, and mended; what is beyond that is named."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import sdrs
from sdrs import errors
from sdrs.scrubs import Scrub
from sdrs_core import checksums
from sdrs_core.checkpoints import Blob, Holder, Shard
from sdrs_core.checksums import DIGEST_BYTES
from sdrs_core.codes import MIRROR, Code
from sdrs_proto.channel import PAYLOAD_OFFSET
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.sqlite import SqliteMetaStore
from sdrs_storaged.control.records import put, stored_from
from sdrs_storaged.store.fragment import PAGE_BYTES, encode_coded_footer, read_contents
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.program import Program
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for

CODE = Code(4, 2)
POOL = "deep"
LARGE_BYTES = 9 * MIB + 12_345
SMALL_BYTES = 100_000
SMALL = 100  # the step that is so small that it is not coded


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"repair_interval_seconds": 0.5, "scrub_bytes_per_second": 0}
    with running_cluster(tmp_path_factory.mktemp("scrub"), node_count=6, controller=settings) as running:
        with running.connect() as client:
            client.create_pool(POOL, level="L3", ec=str(CODE))
        yield running


def state_of(step: int) -> dict[str, Any]:
    return make_state(step, SMALL_BYTES if step == SMALL else LARGE_BYTES)


def save(client: sdrs.Cluster, job: str, *steps: int) -> sdrs.Checkpoints:
    checkpoints = client.checkpoints(job, pool=POOL)
    for step in steps:
        checkpoints.save(step=step, state=state_of(step)).wait()
    return checkpoints


def blob_of(checkpoints: sdrs.Checkpoints, step: int) -> Blob:
    [blob] = checkpoints.shards(step)[0].blobs
    assert blob.code == (MIRROR if step == SMALL else str(CODE))
    return blob


def file_of(cluster: LocalCluster, blob: Blob, index: int, number: int = 0) -> Path:
    """Where one of its holders has this fragment."""
    holder = [holder for holder in blob.holders if holder.fragment_index == index][number]
    node = next(node for node in cluster.nodes if node.name == holder.node_id)
    [path] = node.data_dir.glob(f"disk-*/fragments/*/{blob.id}.{index}")
    return path


def flip(path: Path) -> None:
    flip_bit(path, PAYLOAD_OFFSET + 1000)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    shutil.move(one, aside)
    shutil.move(other, one)
    shutil.move(aside, other)


def scrubbed(client: sdrs.Cluster, *, deep: bool = True, job: str | None = None) -> Scrub:
    """A scrub, from its start to its end."""
    begun = client.start_scrub(deep=deep, job=job)

    def ended() -> Scrub | None:
        found = client.scrub_status().scrub
        return found if found and found.id == begun.id and not found.is_under_way else None

    found = wait_for(ended, "the scrub to end", 100)
    assert found
    return found


def is_full(checkpoints: sdrs.Checkpoints, step: int) -> bool:
    return not checkpoints.get(step).degraded


def check_full(client: sdrs.Cluster, checkpoints: sdrs.Checkpoints, *steps: int) -> None:
    """As its pool wants it, every byte of it."""
    wait_for(lambda: client.info().degraded_blob_count == 0, "nothing to be degraded", 60)
    for step in steps:
        wait_for(partial(is_full, checkpoints, step), f"step {step} to be at full redundancy", 60)
        for blob in checkpoints.shards(step)[0].blobs:
            holders = [holder for holder in blob.holders if not holder.dropping]
            assert len({holder.node_id for holder in holders}) == len(holders)
            if blob.code == MIRROR:
                assert len(holders) == CODE.parity + 1
            else:
                assert sorted(holder.fragment_index for holder in holders) == list(range(CODE.total))
        assert checkpoints.get(step).damage == ""
        assert checkpoints.verify(step).problems == ()
        assert same(checkpoints.restore(step=step), state_of(step))


def test_a_deep_scrub_finds_whatever_was_done_to_files_and_repair_mends_it_all(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        steps = (*range(1, 6), SMALL)
        checkpoints = save(client, "battered", *steps)
        clean = scrubbed(client)
        assert (clean.bad_fragments, clean.missing_fragments, clean.problems) == (0, 0, ())
        blobs = {step: blob_of(checkpoints, step) for step in steps}
        flip(file_of(cluster, blobs[1], 0))
        truncate(file_of(cluster, blobs[1], 5))
        file_of(cluster, blobs[2], 1).unlink()
        empty(file_of(cluster, blobs[2], 4))
        # Between two blobs, on one node; then between two nodes, of one blob.
        node_id = blobs[3].holders[0].node_id
        mine, theirs = (
            next(holder.fragment_index for holder in blobs[step].holders if holder.node_id == node_id)
            for step in (3, 4)
        )
        swap(file_of(cluster, blobs[3], mine), file_of(cluster, blobs[4], theirs))
        swap(file_of(cluster, blobs[5], 2), file_of(cluster, blobs[5], 3))
        flip(file_of(cluster, blobs[SMALL], 0))
        file_of(cluster, blobs[SMALL], 0, 1).unlink()

        found = scrubbed(client)
        damaged = 2 + 2 + 2 + 2 + 2
        assert found.bad_fragments + found.missing_fragments == damaged, found.problems
        assert (found.repaired_fragments, found.damaged_checkpoints, found.undecided_fragments) == (damaged, 0, 0)
        check_full(client, checkpoints, *steps)
        again = scrubbed(client)
        assert (again.bad_fragments, again.missing_fragments, again.unknown_fragments) == (0, 0, 0)
        kinds = [event.kind for event in client.history(limit=100)]
        assert kinds.count("scrub_started") == kinds.count("scrub_done") == 3
        with urlopen(f"http://{client.info().metrics_endpoint}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        assert re.search(r"^sdrs_scrub_repaired_fragments_total 10\.0$", metrics, re.MULTILINE)
        assert re.search(r'^sdrs_scrub_done_unix_seconds\{depth="deep"\} 1\.', metrics, re.MULTILINE)


@pytest.mark.parametrize("do", [truncate, empty, Path.unlink], ids=["truncate", "empty", "unlink"])
def test_a_shallow_scrub_finds_what_is_not_there_as_it_should_be(
    cluster: LocalCluster, do: Callable[[Path], None]
) -> None:
    job = f"shallow-{do.__name__}"
    with cluster.connect() as client:
        checkpoints = save(client, job, 1)
        do(file_of(cluster, blob_of(checkpoints, 1), 3))
        found = scrubbed(client, deep=False)
        assert found.bad_fragments + found.missing_fragments == 1, found.problems
        assert job in found.problems[0]
        check_full(client, checkpoints, 1)


def plant_wrong_parity(cluster: LocalCluster, blob: Blob, index: int) -> str:
    """As if a bit had flipped before the stripe was encoded: the file is sound in itself. Its hash."""
    path = file_of(cluster, blob, index)
    with open(path, "rb") as file:
        contents = read_contents(file.fileno())
        raw = bytearray(path.read_bytes())
    raw[PAYLOAD_OFFSET + 1000] ^= 0x10
    block = bytes(raw[PAYLOAD_OFFSET : PAYLOAD_OFFSET + min(MIB, contents.size_bytes)])
    table = checksums.digest(block) + contents.table[DIGEST_BYTES:]
    end = PAYLOAD_OFFSET + contents.size_bytes
    footer = encode_coded_footer(
        bytes(raw[:PAGE_BYTES]), contents.size_bytes, table, contents.source_size_bytes, contents.source_table
    )
    path.write_bytes(raw[:end] + footer)
    return checksums.blob_hash(contents.size_bytes, table)


def test_wrong_parity_with_good_checksums_is_found_by_computing_it_anew_p9(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        checkpoints = save(client, "planted", 1)
        blob = blob_of(checkpoints, 1)
        [shard] = checkpoints.shards(1)
        planted = {index: plant_wrong_parity(cluster, blob, index) for index in (4, 5)}

    def as_planted(holder: Holder) -> Holder:
        return replace(holder, fragment_hash=planted.get(holder.fragment_index, holder.fragment_hash))

    async def record() -> None:
        """The catalog believes in it, as it would have from the beginning."""
        store = await SqliteMetaStore.open(cluster.controller.data_dir / "controller" / "meta.db")
        try:
            entry = await store.get(keys.shard(shard.save_id, 0))
            assert entry
            stored = stored_from(entry, Shard).value
            blobs = (
                replace(known, holders=tuple(map(as_planted, known.holders))) if known.id == blob.id else known
                for known in stored.blobs
            )
            await store.txn([], [put(entry.key, replace(stored, blobs=tuple(blobs)))])
        finally:
            await store.close()

    cluster.controller.stop()
    asyncio.run(record())
    cluster.controller.start()
    cluster.wait_until_up()
    with cluster.connect() as client:
        checkpoints = client.checkpoints("planted", pool=POOL)
        assert not scrubbed(client, deep=False, job="planted").bad_fragments, "headers and hashes are as on record"
        found = scrubbed(client, job="planted")
        assert (found.bad_fragments, found.repaired_fragments) == (2, 2), found.problems
        assert "parity" in found.problems[0]
        check_full(client, checkpoints, 1)
        right = {holder.fragment_index: holder.fragment_hash for holder in blob.holders}
        assert {h.fragment_index: h.fragment_hash for h in blob_of(checkpoints, 1).holders} == right


def test_what_cannot_be_mended_is_damage_and_named_and_the_command_says_so(cluster: LocalCluster) -> None:
    program = Program(cluster.url)
    with cluster.connect() as client:
        checkpoints = save(client, "lost", 1, 2)
        lost, hurt = blob_of(checkpoints, 1), blob_of(checkpoints, 2)
        flip(file_of(cluster, hurt, 0))
        told = program.json("scrub", "start", "--deep", "--job", "lost", "--wait", expect=3)
        assert (told["bad_fragments"], told["repaired_fragments"], told["damaged_checkpoints"]) == (1, 1, 0)
        for index in (0, 2, 5):
            flip(file_of(cluster, lost, index))
        told = program.json("scrub", "start", "--deep", "--job", "lost", "--wait", expect=1)
        assert (told["bad_fragments"], told["repaired_fragments"], told["damaged_checkpoints"]) == (3, 0, 1)
        assert checkpoints.get(1).damage
        assert any("lost step 1 is damaged" in warning for warning in client.info().warnings)
        assert checkpoints.get(2).damage == ""
        assert "damaged checkpoints" in program.run("scrub", "status")
        assert program.json("scrub", "status")["scrub"]["id"] == told["id"]
        checkpoints.delete(1)


def test_a_scrub_survives_its_controller(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        checkpoints = save(client, "survivor", 1, 2, 3)
        flip(file_of(cluster, blob_of(checkpoints, 1), 2))
        begun = client.start_scrub(deep=True)
        cluster.controller.kill()
        cluster.controller.start()
        cluster.wait_until_up()

        def ended() -> bool:
            found = client.scrub_status().scrub
            assert found
            assert found.id == begun.id
            return not found.is_under_way

        wait_for(ended, "the scrub to end", 100)
        check_full(client, checkpoints, 1, 2, 3)


def test_a_scrub_that_is_stopped_is_told_of_and_the_next_one_begins(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        save(client, "stopped", 1)
        begun = client.start_scrub(deep=True)
        ended = client.stop_scrub()  # it may have been through already
        assert (ended.id, ended.is_under_way) == (begun.id, False)
        assert client.scrub_status().scrub == ended
        again = client.start_scrub(deep=True)
        assert again.id != begun.id
        wait_for(lambda: (found := client.scrub_status().scrub) and not found.is_under_way, "the next one to end", 100)


def test_a_job_that_is_not_known_is_told(cluster: LocalCluster) -> None:
    with cluster.connect() as client, pytest.raises(errors.NotFoundError, match="nobody"):
        client.start_scrub(job="nobody")
