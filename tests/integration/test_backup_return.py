"""What was backed up comes back: into the cluster that lost it, or into a new one, bit for bit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import sdrs
from sdrs import errors
from sdrs_core.backup.targets import Policy, Target
from sdrs_core.ids import PoolName
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.from_backups import back_up, break_object, bring_in, files_in, of_another, wipe
from tests.support.s3_servers import S3Server, moto_s3  # noqa: F401
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore::sdrs.errors.RestoreWarning")


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """Two of three nodes each; what lies about there is collected at once."""
    options = {"node_count": 3, "controller": {"grace_seconds": 0, "repair_interval_seconds": 1}}
    with (
        running_cluster(tmp_path_factory.mktemp("old"), **options) as old,  # type: ignore[arg-type]
        running_cluster(tmp_path_factory.mktemp("new"), **options) as new,  # type: ignore[arg-type]
    ):
        yield old, new


@pytest.fixture(scope="module")
def connected(clusters: tuple[LocalCluster, LocalCluster]) -> Iterator[tuple[sdrs.Cluster, sdrs.Cluster]]:
    with clusters[0].connect() as old, clusters[1].connect() as new:
        old.create_pool("coded", "L3", ec="2+1")
        old.create_pool("mirrored", "L2", mirrors=2)
        new.create_pool("coded", "L3", ec="2+1")
        yield old, new


@pytest.fixture
def target(
    connected: tuple[sdrs.Cluster, sdrs.Cluster],
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> Iterator[Target]:
    added = connected[0].backups.add_target(moto_s3.target(tmp_path))
    yield added
    connected[0].backups.remove_target(added.name, accept_data_loss=True)


@pytest.fixture
def borrowed(connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target) -> Iterator[Target]:
    """The bucket as the new cluster sees it."""
    old, new = connected
    added = new.backups.add_target(of_another(old, target))
    yield added
    new.backups.remove_target(added.name, accept_data_loss=True)


def test_a_new_cluster_gets_everything_back_bit_for_bit(
    connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target, borrowed: Target, tmp_path: Path
) -> None:
    old, new = connected
    for step in (1, 2):
        old.checkpoints("coded", pool="coded").save(step=step, state=make_state(step, 5 * MIB)).wait()
    ranks = old.checkpoints("ranks", pool="mirrored")
    savings = [ranks.save(step=7, state=make_state(rank, MIB), rank=rank, world_size=2, attempt=1) for rank in (0, 1)]
    for saving in savings:
        saving.wait()
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.bin").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "in" / "b.txt").write_text("as it was")
    old.checkpoints("files").save_files(step=3, path=tmp_path / "in").wait()
    back_up(old, target)

    run = bring_in(new, borrowed)
    assert (run.failure, run.problems, run.done_checkpoints, run.total_checkpoints) == ("", (), 4, 4)
    coded = new.checkpoints("coded", pool="coded")
    for step in (1, 2):
        assert same(coded.restore(step=step), make_state(step, 5 * MIB))
    assert {str(save.level) for save in coded.list()} == {"L3"}
    for rank in (0, 1):
        assert same(new.checkpoints("ranks").restore(step=7, rank=rank), make_state(rank, MIB))
    new.checkpoints("files").restore_files(tmp_path / "out", step=3)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "in")
    # A pool of that name was not there: it went into the default one.
    assert new.checkpoints("ranks").get(7).pool == "default"

    again = bring_in(new, borrowed)
    assert (again.skipped_checkpoints, again.moved_bytes) == (4, 0)


def test_a_lazy_import_brings_the_bytes_when_they_are_asked_for_and_says_so(
    connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target, borrowed: Target, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = connected
    old.checkpoints("lazy").save(step=1, state=make_state(1, 3 * MIB)).wait()
    back_up(old, target, job="lazy")
    run = bring_in(new, borrowed, job="lazy", lazy=True)
    assert (run.done_checkpoints, run.moved_bytes) == (1, 0)
    assert new.checkpoints("lazy").get(1).evicted == "nas"
    told: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING, "sdrs"):
        state = new.checkpoints("lazy").restore(progress=lambda done, total: told.append((done, total)))
    assert same(state, make_state(1, 3 * MIB))
    assert [r.message for r in caplog.records if "restoring" in r.message] == ["restoring lazy step 1 from backup nas"]
    assert told
    assert new.checkpoints("lazy").get(1).evicted == ""


def test_a_restore_finds_what_every_node_lost_in_the_backup(
    clusters: tuple[LocalCluster, LocalCluster], connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target
) -> None:
    old, _ = connected
    mirrored, coded = old.checkpoints("lost", pool="mirrored"), old.checkpoints("lost-coded", pool="coded")
    for step in (1, 2):
        mirrored.save(step=step, state=make_state(step, 2 * MIB)).wait()
    coded.save(step=1, state=make_state(9, 4 * MIB)).wait()
    back_up(old, target, job="lost")
    back_up(old, target, job="lost-coded")
    wipe(clusters[0])
    with ThreadPoolExecutor() as threads:  # several at once join
        states = list(threads.map(lambda _: mirrored.restore(), range(3)))
    assert all(same(state, make_state(2, 2 * MIB)) for state in states)
    assert same(coded.restore(step=1), make_state(9, 4 * MIB))
    assert same(mirrored.restore(step=1), make_state(1, 2 * MIB))
    assert mirrored.get(2).damage == ""
    # The wipe hit the other jobs of this cluster too: sync brings back what of them is in the backup.
    run = bring_in(old, target, missing_only=True)
    assert run.failure == ""


def test_ranks_that_restore_together_get_what_the_backup_alone_has(
    connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target, borrowed: Target
) -> None:
    old, new = connected
    ckpts = old.checkpoints("together")
    savings = [ckpts.save(step=1, state=make_state(r, MIB), rank=r, world_size=2, attempt=1) for r in (0, 1)]
    for saving in savings:
        saving.wait()
    back_up(old, target, job="together")
    bring_in(new, borrowed, job="together", lazy=True)

    def restore(rank: int) -> object:
        return new.checkpoints("together", attempt=5).restore(rank=rank, world_size=2)

    with ThreadPoolExecutor() as threads:
        states = list(threads.map(restore, (0, 1)))
    assert all(same(state, make_state(rank, MIB)) for rank, state in enumerate(states))


def test_a_new_cluster_takes_over_the_prefix_of_one_that_is_gone_and_goes_on_there(
    connected: tuple[sdrs.Cluster, sdrs.Cluster],
    moto_s3: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    old, new = connected
    target = old.backups.add_target(moto_s3.target(tmp_path, name="site"))
    old.checkpoints("moved").save(step=1, state=make_state(1, MIB)).wait()
    back_up(old, target, job="moved")
    old.backups.remove_target(target.name)
    with pytest.raises(errors.RefusedError, match="belongs to cluster"):
        new.backups.add_target(target)
    new.backups.add_target(target, take_over=True)
    assert bring_in(new, target, job="moved", lazy=True).done_checkpoints == 1
    ckpts = new.checkpoints("moved")
    assert same(ckpts.restore(), make_state(1, MIB))
    ckpts.save(step=2, state=make_state(2, MIB)).wait()
    back_up(new, target, job="moved")
    for step in (1, 2):
        ckpts.delete(step)
    run = bring_in(new, target, job="moved", missing_only=True)
    assert (run.done_checkpoints, run.problems) == (2, ())
    for step in (1, 2):
        assert same(ckpts.restore(step=step), make_state(step, MIB))
    new.backups.remove_target(target.name)


def test_sync_brings_back_only_what_is_missing(connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target) -> None:
    old, _ = connected
    ckpts = old.checkpoints("synced", pool="mirrored")
    for step in (1, 2):
        ckpts.save(step=step, state=make_state(step, 2 * MIB)).wait()
    back_up(old, target, job="synced")
    ckpts.delete(2)
    run = bring_in(old, target, job="synced", missing_only=True)
    assert (run.done_checkpoints, run.skipped_checkpoints) == (1, 1)
    assert 2 * MIB <= run.moved_bytes < 3 * MIB
    assert same(ckpts.restore(), make_state(2, 2 * MIB))


def test_a_conflict_is_named_and_what_is_here_stays(
    connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target, borrowed: Target
) -> None:
    old, new = connected
    old.checkpoints("both").save(step=1, state=make_state(1)).wait()
    back_up(old, target, job="both")
    new.checkpoints("both").save(step=1, state=make_state(2)).wait()
    run = bring_in(new, borrowed, job="both")
    assert run.failed_checkpoints == 1
    assert "both step 1 is here with other content" in run.problems[0]
    assert same(new.checkpoints("both").restore(), make_state(2))


def test_a_damaged_object_is_a_clear_error_and_an_older_generation_is_restored(
    connected: tuple[sdrs.Cluster, sdrs.Cluster],
    target: Target,
    borrowed: Target,
    moto_s3: S3Server,  # noqa: F811
) -> None:
    old, new = connected
    old.checkpoints("rotten").save(step=1, state=make_state(1)).wait()
    back_up(old, target, job="rotten")
    client = moto_s3.client()
    before = _objects(client, target)
    old.checkpoints("rotten").save(step=2, state=make_state(2)).wait()
    back_up(old, target, job="rotten")
    for key in _objects(client, target) - before:
        break_object(client, target, key)
    client.close()
    bring_in(new, borrowed, job="rotten", lazy=True)
    ckpts = new.checkpoints("rotten")
    with pytest.raises(errors.SdrsError, match=r"from the backup: .*backup nas.*does not match its checksum"):
        ckpts.restore(step=2)
    assert same(ckpts.restore(), make_state(1))
    assert ckpts.get(2).evicted == "nas"


def _objects(client: object, target: Target) -> set[str]:
    listed = client.list_objects_v2(Bucket=target.bucket, Prefix=target.prefix)["Contents"]  # type: ignore[attr-defined]
    return {one["Key"].removeprefix(f"{target.prefix}/") for one in listed if "/objects/" in one["Key"]}


def test_old_checkpoints_are_kept_in_the_backup_only_and_recalled_on_restore(
    clusters: tuple[LocalCluster, LocalCluster], connected: tuple[sdrs.Cluster, sdrs.Cluster], target: Target
) -> None:
    old, _ = connected
    ckpts = old.checkpoints("aging", pool="mirrored")
    others = set(clusters[0].fragments())
    ckpts.save(step=1, state=make_state(1, 2 * MIB)).wait()
    mine = set(clusters[0].fragments()) - others
    assert mine
    ckpts.save(step=2, state=make_state(2, 2 * MIB)).wait()
    back_up(old, target, job="aging")
    policy = Policy(target.name, PoolName("mirrored"), job="aging", evict_after_seconds=1)
    old.backups.set_policy(policy)
    wait_for(lambda: ckpts.get(1).evicted == "nas", "the older one to be evicted", 20)
    assert ckpts.get(2).evicted == ""
    old.backups.remove_policy(target.name, "mirrored", "aging")
    wait_for(lambda: not mine.intersection(clusters[0].fragments()), "its fragments to be collected", 20)
    assert same(ckpts.restore(step=1), make_state(1, 2 * MIB))
    assert ckpts.get(1).evicted == ""
    assert not [warning for warning in old.info().warnings if "aging" in warning]


def test_what_is_stored_compressed_comes_back_so_and_what_referred_to_it_too(
    connected: tuple[sdrs.Cluster, sdrs.Cluster],
    target: Target,
    borrowed: Target,
) -> None:
    old, new = connected
    packed = old.checkpoints("packed", pool="mirrored", compress="zstd")
    kept = np.zeros(5 * MIB, np.float32)
    states = {step: {"kept": kept, "new": np.full(5 * MIB, step, np.float32)} for step in (1, 2)}
    for step, state in states.items():
        packed.save(step=step, state=state).wait()
    assert packed.get(2).referenced_bytes >= kept.nbytes
    run = back_up(old, target, job="packed")
    assert run.moved_bytes < kept.nbytes / 10
    assert run.done_bytes == run.total_bytes

    bring_in(new, borrowed, job="packed")
    for step, state in states.items():
        assert same(new.checkpoints("packed").restore(step=step), state)
        assert new.checkpoints("packed").get(step).stored_bytes < kept.nbytes / 10

    # An evicted checkpoint owns what it referred to, and has it back as the home stored it.
    packed.save(step=3, state=make_state(3, MIB)).wait()
    back_up(old, target, job="packed")
    old.backups.set_policy(Policy(target.name, PoolName("mirrored"), job="packed", evict_after_seconds=1))
    wait_for(lambda: packed.get(2).evicted == "nas", "the older one to be evicted", 20)
    old.backups.remove_policy(target.name, "mirrored", "packed")
    assert same(packed.restore(step=2), states[2])
    assert packed.get(2).stored_bytes < kept.nbytes / 10
