"""A catalog that is gone comes back from coded fragments and mirrors of real nodes, with all that they hold (P19)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from sdrs_core.codes import MIRROR, Code
from sdrs_core.levels import Level
from tests.support.cluster import running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

CODE = Code(4, 2)
SMALL = 100_000
# It shrinks.
SPARSE = {"sparse": np.arange(12 * MIB, dtype=np.int32) % 7}
SIZES = {1: 9 * MIB + 77, 2: SMALL, 3: 6 * MIB}


def test_coded_checkpoints_and_their_mirrors_come_back_from_fragments_alone(tmp_path: Path) -> None:
    # No node gets a copy of the catalog.
    settings = {"snapshot_interval_seconds": 1e6, "repair_interval_seconds": 0.5, "repair_after_seconds": 1}
    with running_cluster(tmp_path, node_count=6, controller=settings) as cluster:
        with cluster.connect() as client:
            client.create_pool("spare", level="L2", mirrors=2)
            client.create_pool("deep", level="L3", ec=str(CODE), mirror_pool="spare", mirror_ratio=0.4)
            checkpoints = client.checkpoints("llm", pool="deep")
            for step, size_bytes in SIZES.items():
                checkpoints.save(step=step, state=make_state(step, size_bytes)).wait()
            packed = client.checkpoints("packed", pool="deep", compress="zstd")
            packed.save(step=1, state=SPARSE).wait()
            [shard] = packed.shards(1)
            assert shard.blobs[1].packing
            wait_for(lambda: packed.get(1).mirror_pool == "spare", "it to be mirrored", 60)
            wait_for(lambda: checkpoints.get(3).mirror_pool == "spare", "the newest to be mirrored", 60)
            before = {step: checkpoints.get(step) for step in SIZES}
            blobs = {step: checkpoints.shards(step)[0].blobs for step in SIZES}
            [mirror] = checkpoints.shards(3)[0].mirrors
            addresses = [node.endpoints.grpc for node in client.nodes()]
            cluster.controller.kill()
            shutil.rmtree(cluster.controller.data_dir)
            # What was lost with it: any two fragments of one, four of another that has a mirror.
            for step, indexes in ((1, (0, 4)), (3, (0, 1, 2, 5))):
                for index in indexes:
                    for path in cluster.fragments():
                        if path.name == f"{blobs[step][0].id}.{index}":
                            path.unlink()
            cluster.controller.start()
            rebuilt = client.rebuild_meta(addresses)
            assert rebuilt.checkpoint_count == 4
            assert [problem for problem in rebuilt.problems if "made anew" not in problem] == [
                "no node has a copy of the catalog: only what fragments tell can be brought back"
            ]
        cluster.wait_until_up()
        with cluster.connect() as client:
            checkpoints = client.checkpoints("llm", pool="deep")
            deep, spare = client.pool("deep").pool, client.pool("spare").pool
            assert (deep.level, deep.code, deep.mirror_pool) == (Level.L3, CODE, "spare")
            assert (spare.level, spare.mirrors) == (Level.L2, 2)
            for step in SIZES:
                after = checkpoints.get(step)
                assert (after.save_id, after.pool, after.size_bytes) == (
                    before[step].save_id,
                    "deep",
                    before[step].size_bytes,
                )
                [blob] = checkpoints.shards(step)[0].blobs
                assert (blob.id, blob.code, blob.hash) == (blobs[step][0].id, blobs[step][0].code, blobs[step][0].hash)
                assert same(checkpoints.restore(step=step), make_state(step, SIZES[step]))
            packed = client.checkpoints("packed", pool="deep")
            [again] = packed.shards(1)
            assert (again.size_bytes, again.content_hash) == (shard.size_bytes, shard.content_hash)
            assert [blob.packing for blob in again.blobs] == [blob.packing for blob in shard.blobs]
            assert packed.get(1).stored_bytes == sum(blob.size_bytes for blob in shard.blobs)
            assert same(packed.restore(), SPARSE)
            [back] = checkpoints.shards(3)[0].mirrors
            assert (back.id, back.code, len(back.holders)) == (mirror.id, MIRROR, 2)

            def is_full() -> bool:
                return not any(checkpoints.get(step).degraded for step in SIZES)

            wait_for(is_full, "repair to make what is lacking", 80)
            for step in SIZES:
                assert checkpoints.verify(step).problems == ()
                assert same(checkpoints.restore(step=step), make_state(step, SIZES[step]))
