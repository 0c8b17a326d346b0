"""Checkpoints of a real cluster go into a bucket, and can be read from it bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

import sdrs
from sdrs.backups import Run
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Keep, Policy, Target
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError
from sdrs_core.ids import PoolName
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.opening import open_bucket
from tests.support.backed_up import BucketView, finished
from tests.support.backups import key_file
from tests.support.cluster import LocalCluster
from tests.support.s3_servers import S3Server, moto_s3, s3_server, seaweed_s3  # noqa: F401
from tests.support.waiting import wait_for

MIB = 1 << 20
POOL = PoolName("default")


def state(seed: int) -> dict[str, np.ndarray]:
    """A blob that changes, and one that never does and is uploaded in parts."""
    rng = np.random.default_rng(seed)
    return {"a": rng.integers(0, 256, MIB, dtype=np.uint8), "frozen": np.arange(17 * MIB, dtype=np.uint8)}


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with shared_cluster.connect() as connected:
        yield connected


@pytest.fixture
def target(cluster: sdrs.Cluster, moto_s3: S3Server, tmp_path: Path) -> Iterator[Target]:  # noqa: F811
    added = cluster.backups.add_target(moto_s3.target(tmp_path, name="moto"))
    yield added
    settle(cluster, added)
    cluster.backups.remove_target(added.name)


def settle(cluster: sdrs.Cluster, target: Target) -> None:
    for status in cluster.backups.policies():
        if status.policy.target == target.name:
            cluster.backups.remove_policy(target.name, status.policy.pool, status.policy.job)
    wait_for(lambda: not any(run.is_under_way for run in cluster.backups.runs(target.name)), "the last run to end")


def carry_out(cluster: sdrs.Cluster, target: Target, kind: RunKind = RunKind.BACKUP, **selection: object) -> Run:
    return finished(cluster, cluster.backups.start(kind, target.name, Selection(**selection)))  # type: ignore[arg-type]


def save(cluster: sdrs.Cluster, job: str, *steps: int) -> None:
    for step in steps:
        cluster.checkpoints(job).save(step=step, state=state(step)).wait()


def steps(cluster: sdrs.Cluster, job: str, target: Target) -> list[int]:
    return sorted(backup.step for backup in cluster.backups.list(job, target=target.name))


def test_a_backed_up_checkpoint_is_in_the_bucket_bit_for_bit(
    cluster: sdrs.Cluster,
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    target = cluster.backups.add_target(s3_server.target(tmp_path, name=s3_server.name))
    job = f"whole-{s3_server.name}"
    save(cluster, job, 1)
    run = carry_out(cluster, target, job=job)
    assert (run.failure, run.problems, run.done_checkpoints) == ("", (), 1)
    [backup] = cluster.backups.list(job, target=target.name)
    assert (backup.step, backup.in_cluster, backup.uploaded_bytes) == (1, True, backup.size_bytes)
    assert carry_out(cluster, target, RunKind.VERIFY, full=True).problems == ()
    with BucketView(target) as view:
        assert view.restorable() == {backup.save_id}
    assert [one.save_id for one in cluster.backups.list(target=target.name, from_bucket=True)] == [backup.save_id]
    cluster.backups.remove_target(target.name)


def test_what_is_unchanged_is_not_uploaded_again(cluster: sdrs.Cluster, target: Target) -> None:
    save(cluster, "same", 1)
    carry_out(cluster, target, job="same")
    cluster.checkpoints("same").save(step=2, state=state(1)).wait()
    again = carry_out(cluster, target, job="same")
    assert (again.done_checkpoints, again.moved_bytes) == (1, 0)
    save(cluster, "same", 3)
    changed = carry_out(cluster, target, job="same")
    assert MIB <= changed.moved_bytes < 2 * MIB
    assert carry_out(cluster, target, job="same").total_checkpoints == 0
    with BucketView(target) as view:
        assert len(view.restorable()) == 3


def test_a_policy_backs_up_by_itself_and_prunes_what_it_does_not_keep(cluster: sdrs.Cluster, target: Target) -> None:
    save(cluster, "kept", 1, 2)
    assert carry_out(cluster, target, job="kept").done_checkpoints == 2
    cluster.backups.hold(target.name, "kept", 1)
    save(cluster, "kept", 3, 4)
    cluster.backups.set_policy(Policy(target.name, POOL, "kept", on_commit=True, keep=Keep(last=1)))
    wait_for(lambda: steps(cluster, "kept", target) == [1, 4], "the newest and the held one to be all that is left")
    # What would have gone at once was not uploaded.
    [run] = cluster.backups.runs(target.name)
    assert finished(cluster, run).done_checkpoints == 1
    save(cluster, "kept", 5)
    wait_for(lambda: steps(cluster, "kept", target) == [1, 5], "the commit to be backed up by itself")
    settle(cluster, target)
    with BucketView(target) as view:
        backups = {backup.save_id for backup in cluster.backups.list(target=target.name)}
        assert view.restorable() == backups
        assert {place.key for place in view.places()} == view.object_keys(), "nothing else is left"


def test_a_dry_run_tells_what_would_go_and_deletes_nothing(cluster: sdrs.Cluster, target: Target) -> None:
    save(cluster, "dry", 1, 2)
    carry_out(cluster, target, job="dry")
    cluster.backups.set_policy(Policy(target.name, POOL, "dry", keep=Keep(last=1)))
    told = carry_out(cluster, target, RunKind.PRUNE, dry_run=True)
    assert (told.deleted_checkpoints, steps(cluster, "dry", target)) == (1, [1, 2])
    assert MIB <= told.deleted_bytes < 2 * MIB, "the tensor that both have stays"
    done = carry_out(cluster, target, RunKind.PRUNE)
    assert (done.deleted_objects, done.deleted_bytes) == (told.deleted_objects, told.deleted_bytes)
    with BucketView(target) as view:
        assert len(view.restorable()) == 1


def test_damage_in_the_bucket_is_found_told_and_mended_by_the_next_backup(
    cluster: sdrs.Cluster,
    target: Target,
    moto_s3: S3Server,  # noqa: F811
) -> None:
    save(cluster, "rot", 1, 2)
    carry_out(cluster, target, job="rot")
    with BucketView(target) as view:
        # What both of them have.
        shared = next(place for place in view.places() if view.users(place) == 2 and place.size_bytes > MIB)
    client = moto_s3.client()
    client.put_object(Bucket=moto_s3.bucket, Key=f"{target.prefix}/{shared.key}", Body=bytes(shared.size_bytes))
    client.close()
    run = carry_out(cluster, target, RunKind.VERIFY, full=True, job="rot")
    assert run.failed_checkpoints >= 1
    assert all(backup.damage for backup in cluster.backups.list("rot", target=target.name))
    assert any("is damaged" in warning for warning in cluster.info().warnings)
    assert carry_out(cluster, target, job="rot").done_checkpoints == 2
    assert not any(backup.damage for backup in cluster.backups.list("rot", target=target.name))
    assert carry_out(cluster, target, RunKind.PRUNE).problems == ()
    with BucketView(target) as view:
        assert len(view.restorable()) == 2
        assert shared.key not in view.object_keys()


def test_a_prefix_of_another_cluster_is_only_read_until_it_is_taken_over(
    cluster: sdrs.Cluster,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    target = moto_s3.target(tmp_path, name="theirs")
    with open_bucket(target) as bucket:
        ManifestStore(bucket, "e" * 32).claim()
    assert cluster.backups.add_target(target).source_cluster_id == "e" * 32
    with pytest.raises(RefusedError, match="e" * 32):
        carry_out(cluster, target)
    with pytest.raises(RefusedError, match="e" * 32):
        cluster.backups.set_policy(Policy(target.name, PoolName("default"), every_seconds=60))
    assert cluster.backups.add_target(target, take_over=True).source_cluster_id == ""
    assert carry_out(cluster, target).failure == ""
    with pytest.raises(AlreadyExistsError, match="remove it first"):
        cluster.backups.add_target(replace(target, prefix="elsewhere"))
    assert cluster.backups.add_target(replace(target, concurrency=2)).concurrency == 2
    cluster.backups.remove_target("theirs")


def test_a_target_that_was_removed_and_added_again_still_has_its_backups(cluster: sdrs.Cluster, target: Target) -> None:
    save(cluster, "again", 1)
    carry_out(cluster, target, job="again")
    with BucketView(target) as view:
        before = view.object_keys()
    cluster.backups.remove_target(target.name)
    cluster.backups.add_target(target)
    run = carry_out(cluster, target, job="again")
    assert (run.total_checkpoints, run.moved_bytes) == (0, 0)
    carry_out(cluster, target, RunKind.PRUNE)
    assert steps(cluster, "again", target) == [1]
    with BucketView(target) as view:
        assert view.object_keys() == before


def test_a_failing_target_is_told_until_it_works_again(
    cluster: sdrs.Cluster,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    client = moto_s3.client()
    client.create_bucket(Bucket="fleeting")
    target = cluster.backups.add_target(moto_s3.target(tmp_path, name="fleeting", bucket="fleeting"))
    save(cluster, "failing", 1)
    client.delete_objects(Bucket="fleeting", Delete={"Objects": [{"Key": f"{target.prefix}/sdrs-backup.json"}]})
    client.delete_bucket(Bucket="fleeting")
    cluster.backups.set_policy(Policy(target.name, POOL, "failing", every_seconds=3600))
    wait_for(lambda: cluster.backups.target(target.name).failure, "the run to fail")
    assert any("backup target fleeting fails" in warning for warning in cluster.info().warnings)
    [policy] = [one for one in cluster.backups.policies() if one.policy.target == target.name]
    assert policy.behind
    assert policy.next_unix_ms
    client.create_bucket(Bucket="fleeting")
    client.close()
    assert carry_out(cluster, target, job="failing").failure == ""
    assert not cluster.backups.target(target.name).failure
    kinds = [event.kind for event in cluster.history()]
    assert kinds.index("backup_recovered") < kinds.index("backup_failed")
    settle(cluster, target)
    cluster.backups.remove_target(target.name)


def test_a_target_is_tried_from_the_controller_and_from_each_node(cluster: sdrs.Cluster, target: Target) -> None:
    tried = list(cluster.backups.test_target(target.name))
    assert {step.where for step in tried} == {"controller", "node-1", "node-2"}
    assert all(step.ok for step in tried), tried


def test_the_age_of_the_newest_backup_of_each_job_is_told(cluster: sdrs.Cluster, target: Target) -> None:
    save(cluster, "aging", 1)
    cluster.backups.set_policy(Policy(target.name, POOL, "aging", cron="0 0 1 1 *"))
    [before] = cluster.backups.status()[0]
    assert (before.newest_committed_unix_ms, before.waiting_checkpoints) == (0, 1)
    carry_out(cluster, target, job="aging")
    [after] = cluster.backups.status()[0]
    assert (after.newest_step, after.waiting_checkpoints) == (1, 0)
    assert after.newest_committed_unix_ms == after.cluster_committed_unix_ms > 0


def test_metrics_tell_of_backups(cluster: sdrs.Cluster, target: Target) -> None:
    save(cluster, "measured", 1)
    moved_bytes = carry_out(cluster, target, job="measured").moved_bytes
    wait_for(lambda: cluster.backups.target(target.name).checkpoint_count, "the run to be counted")
    with urlopen(f"http://{cluster.info().metrics_endpoint}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert 'sdrs_backup_checkpoints{target="moto"} 1.0' in metrics
    assert 'sdrs_backup_newest_unix_seconds{job="measured",pool="default",target="moto"} 1.' in metrics
    assert 'sdrs_backup_runs_total{kind="backup",outcome="done",target="moto"}' in metrics
    assert moved_bytes > MIB


def test_an_encrypted_backup_goes_the_same_ways_and_its_key_can_be_changed(
    cluster: sdrs.Cluster,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    first, second = (key_file(tmp_path / name, name.encode() * 32) for name in "ab")
    target = cluster.backups.add_target(moto_s3.target(tmp_path, name="safe", encryption_key=first))
    save(cluster, "secret", 1, 2)
    carry_out(cluster, target, job="secret")
    assert cluster.backups.rotate_key(target.name, second) == 1
    target = cluster.backups.target(target.name).target
    assert (target.encryption_key, target.former_keys) == (second, (first,))
    save(cluster, "secret", 3)
    assert carry_out(cluster, target, job="secret").failure == ""
    assert carry_out(cluster, target, RunKind.VERIFY, full=True).problems == ()
    cluster.backups.set_policy(Policy(target.name, POOL, "secret", keep=Keep(last=1)))
    assert carry_out(cluster, target, RunKind.PRUNE).deleted_checkpoints == 2
    with BucketView(replace(target, former_keys=())) as view:
        assert len(view.restorable()) == 1
        assert {place.key for place in view.places()} == view.object_keys()
    settle(cluster, target)
    cluster.backups.remove_target(target.name)


def test_a_bucket_with_versions_and_object_lock_can_be_pruned(
    cluster: sdrs.Cluster,
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    client = moto_s3.client()
    client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    target = cluster.backups.add_target(moto_s3.target(tmp_path, name="locked", bucket="locked"))
    save(cluster, "versioned", 1, 2)
    carry_out(cluster, target, job="versioned")
    cluster.backups.set_policy(Policy(target.name, POOL, "versioned", keep=Keep(last=1)))
    done = carry_out(cluster, target, RunKind.PRUNE)
    assert (done.failure, done.deleted_checkpoints, done.deleted_objects) == ("", 1, 1)
    with BucketView(target) as view:
        assert len(view.restorable()) == 1
        assert {place.key for place in view.places()} == view.object_keys()
    versions = client.list_object_versions(Bucket="locked")
    assert versions["DeleteMarkers"], "what went is a version that the bucket still has"
    client.close()
    settle(cluster, target)
    cluster.backups.remove_target(target.name)


def test_a_backup_of_what_is_not_there_is_an_error_that_says_so(cluster: sdrs.Cluster, target: Target) -> None:
    """And no failure of the target, which would be warned of until its next run."""
    with pytest.raises(NotFoundError, match='job "nobody" has no checkpoints'):
        carry_out(cluster, target, job="nobody", step=7)
    with pytest.raises(NotFoundError, match='pool "nowhere" does not exist'):
        carry_out(cluster, target, pool="nowhere")
    with pytest.raises(NotFoundError, match='pool "nowhere" does not exist'):
        cluster.backups.start(RunKind.IMPORT, target.name, Selection(into_pool="nowhere"))
    assert not cluster.backups.target(target.name).failure
