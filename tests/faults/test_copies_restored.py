"""Copies that are lost, damaged or late: what is left serves, and each blob comes back to two live copies by itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs_core.levels import Level
from tests.support.battered import HEAL_SECONDS, BatteredCluster, make_battered, running
from tests.support.cluster import DaemonProcess
from tests.support.ledger import Ledger
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit
from tests.support.waiting import wait_for

SIZE_BYTES = 3 * MIB
PAYLOAD_OFFSET = 4096
# Patience with silence and none with loss: who is replaced here is replaced because its primary said so.
CONTROLLER = {
    "suspect_after_seconds": 8,
    # Longer than a node takes to start: who comes back at once finds nothing repaired yet.
    "repair_after_seconds": 2,
    "repair_last_copy_after_seconds": 2,
    "repair_interval_seconds": 0.5,
}
STEPS = 3


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredCluster]:
    local = make_battered(
        tmp_path_factory.mktemp("copies"), node_count=4, controller=CONTROLLER, node={"slow_member_seconds": 1.5}
    )
    with running(local) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: BatteredCluster) -> BatteredCluster:
    shared.heal()
    return shared


def _saved(cluster: BatteredCluster, job: str) -> Ledger:
    """In a pool of its own: none of its groups remembers who failed in another test."""
    cluster.client.create_pool(job, "L2")
    ledger = Ledger(cluster.client, job, job)
    for _ in range(STEPS):
        ledger.save(SIZE_BYTES)
    return ledger


def _files(cluster: BatteredCluster, ledger: Ledger, step: int) -> dict[str, Path]:
    """The file of the step's only blob on each node that has one."""
    (shard,) = ledger.ckpts.shards(step)
    (blob,) = shard.blobs
    found = {node.name: list(node.data_dir.glob(f"disk-*/fragments/*/{blob.id}.0")) for node in cluster.local.nodes}
    return {name: paths[0] for name, paths in found.items() if paths}


def _live_copies(cluster: BatteredCluster, ledger: Ledger, step: int) -> set[str]:
    """The nodes that are on record for the step with a disk that they have, and are up."""
    disks = {node.id: {disk.id for disk in node.disks} for node in cluster.client.nodes() if node.state == "up"}
    (shard,) = ledger.ckpts.shards(step)
    (blob,) = shard.blobs
    return {h.node_id for h in blob.holders if not h.dropping and h.disk_id in disks.get(h.node_id, set())}


def _wait_for_two_copies(cluster: BatteredCluster, ledger: Ledger) -> None:
    """On record, and on the disks of those who are on record."""

    def has_two(step: int) -> bool:
        live = _live_copies(cluster, ledger, step)
        return len(live) == 2 and live <= _files(cluster, ledger, step).keys()

    wait_for(lambda: all(map(has_two, ledger.acknowledged)), "two live copies of every blob", HEAL_SECONDS)


def test_copies_of_a_node_that_stays_away_are_made_elsewhere_and_are_too_many_when_it_returns(
    cluster: BatteredCluster,
) -> None:
    ledger = _saved(cluster, "away")
    lost = cluster.primary("away")
    lost.kill()
    _wait_for_two_copies(cluster, ledger)
    assert all(lost.name not in _live_copies(cluster, ledger, step) for step in ledger.acknowledged)
    ledger.check()
    cluster.heal()
    _wait_for_two_copies(cluster, ledger)
    wait_for(
        lambda: all(_files(cluster, ledger, s).keys() == ledger.holders(s) for s in ledger.acknowledged),
        "what is beyond two copies to go",
        HEAL_SECONDS,
    )
    ledger.check()


def test_a_node_that_comes_back_on_an_empty_disk_counts_for_nothing_and_is_filled(cluster: BatteredCluster) -> None:
    """P2: a holder is a disk, not a name."""
    ledger = _saved(cluster, "wiped")
    wiped = cluster.primary("wiped")
    wiped.kill()
    shutil.rmtree(wiped.data_dir / "disk-1")
    wiped.start()
    _wait_for_two_copies(cluster, ledger)
    ledger.check()
    for step in ledger.acknowledged:
        # The lost disk is on record for as long as it may come back, and nothing is wrong with the others.
        assert all(problem.undecided for problem in ledger.ckpts.verify(step).problems)


def test_a_node_that_lost_its_identity_too_does_not_take_over_its_old_name(cluster: BatteredCluster) -> None:
    ledger = _saved(cluster, "stranger")
    stranger = cluster.primary("stranger")
    stranger.kill()
    kept = stranger.folder / "kept"
    stranger.data_dir.rename(kept)
    try:
        stranger.start(wait=False)
        wait_for(lambda: "belongs to another node" in stranger.log_path.read_text(), "the stranger to be refused")
        _wait_for_two_copies(cluster, ledger)
        ledger.check()
    finally:
        stranger.kill()
        shutil.rmtree(stranger.data_dir)
        kept.rename(stranger.data_dir)


@pytest.mark.parametrize("damage", ["flipped", "deleted"])
def test_one_bad_copy_is_read_around_and_made_anew(cluster: BatteredCluster, damage: str) -> None:
    ledger = _saved(cluster, damage)
    step = max(ledger.acknowledged)
    name, path = sorted(_files(cluster, ledger, step).items())[0]
    bad = path.stat().st_ino
    if damage == "flipped":
        flip_bit(path, PAYLOAD_OFFSET + MIB + 7)
    else:
        path.unlink()

    def is_found() -> bool:
        # Whichever copy is read first: the bytes are right.
        assert same(ledger.ckpts.restore(step=step), make_state(step, SIZE_BYTES))
        return name not in ledger.holders(step) or (path.exists() and path.stat().st_ino != bad)

    wait_for(is_found, "a reader to come across the bad copy", HEAL_SECONDS)
    if damage == "flipped":
        quarantined = list(cluster.node(name).data_dir.glob(f"disk-*/quarantine/{path.name}*"))
        assert quarantined, "the bad copy is not kept for whoever wants to know"
    _wait_for_two_copies(cluster, ledger)
    assert ledger.ckpts.verify(step).ok
    assert not ledger.ckpts.get(step).damage
    ledger.check()


def test_a_member_that_missed_a_copy_is_given_it_before_anybody_vouches_for_it(cluster: BatteredCluster) -> None:
    """I1: failover is paused, so the group stays as it is although its primary finds the member failing."""
    ledger = _saved(cluster, "missed")
    replica = cluster.replica("missed")
    cluster.client.pause("the member is to stay")
    try:
        cluster.arm(replica, "fragment.created=EAGAIN@1")
        step = ledger.save(SIZE_BYTES)
        assert ledger.holders(step) == _files(cluster, ledger, step).keys()
        assert replica.name in ledger.holders(step)
        cluster.primary("missed").kill()
        assert same(ledger.ckpts.restore(step=step), make_state(step, SIZE_BYTES))
    finally:
        cluster.client.resume()
    cluster.heal()
    ledger.check()


def test_a_replica_whose_disk_is_full_is_replaced_by_a_spare(cluster: BatteredCluster) -> None:
    ledger = _saved(cluster, "full")
    before, replica = cluster.group("full"), cluster.replica("full")
    cluster.arm(replica, "fragment.write=ENOSPC")
    step = ledger.save(SIZE_BYTES)
    assert len(ledger.holders(step) - {replica.name}) == 2
    assert replica.name not in cluster.wait_until_moved(before).members
    ledger.check()


def test_a_replica_that_stalls_is_replaced_because_its_primary_says_so(cluster: BatteredCluster) -> None:
    """The node's silence would only count much later."""
    ledger = _saved(cluster, "stalled")
    before, replica = cluster.group("stalled"), cluster.replica("stalled")
    cluster.freeze(replica)
    step = ledger.save(SIZE_BYTES)
    assert len(ledger.holders(step) - {replica.name}) == 2
    causes = {event.kind for event in cluster.client.history(group=before.id) if event.epoch > before.epoch}
    assert causes == {"slow_member_replaced"}
    replica.thaw()
    ledger.save()
    ledger.check()


def test_without_a_spare_a_pool_that_allows_it_goes_on_at_l1_says_so_and_rises_again(cluster: BatteredCluster) -> None:
    pool = "lenient"
    cluster.client.create_pool(pool, "L2", allow_degraded=True)
    ledger = Ledger(cluster.client, pool, pool, level="L1")
    ledger.save(SIZE_BYTES)
    group = cluster.group(pool)
    for spare in _others(cluster, *group.members):
        spare.kill()
    replica = cluster.node(next(member for member in group.members if member != group.primary))
    cluster.freeze(replica)
    step = ledger.save(SIZE_BYTES)
    assert ledger.holders(step) == {group.primary}
    assert ledger.ckpts.get(step).level == Level.L1
    assert cluster.client.info().degraded_group_count > 0
    replica.thaw()
    wait_for(lambda: ledger.ckpts.get(step).level == Level.L2, "the level to rise by itself", HEAL_SECONDS)
    assert len(ledger.holders(step)) == 2
    ledger.check()


def _others(cluster: BatteredCluster, *names: str) -> list[DaemonProcess]:
    return [node for node in cluster.local.nodes if node.name not in names]
