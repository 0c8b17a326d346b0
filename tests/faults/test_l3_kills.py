"""4+2: nodes are killed while saves, restores, repair, drains, rebalancing and changes of a pool are under way; nothing
that was acknowledged is lost, and all of it goes on to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.battered import POOL, BatteredCluster, make_battered, running
from tests.support.cluster import storage_node
from tests.support.ledger import CODED_SIZES_BYTES, Ledger, Writer
from tests.support.states import MIB, make_state, same
from tests.support.stores import CODING_POINTS
from tests.support.waiting import wait_for

LARGE_BYTES = 24 * MIB
HEAL_SECONDS = 90.0
EAGER = {
    "grace_seconds": 0.5,
    "repair_after_seconds": 1,
    "repair_last_copy_after_seconds": 1,
    "repair_interval_seconds": 1,
    "settle_seconds": 1,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredCluster]:
    local = make_battered(tmp_path_factory.mktemp("kills"), node_count=7, controller=EAGER)
    with running(local, "L3", ec="4+2") as battered:
        yield battered


@pytest.fixture
def cluster(shared: BatteredCluster) -> BatteredCluster:
    shared.heal()
    return shared


def wait_until_whole(cluster: BatteredCluster) -> None:
    wait_for(cluster.is_whole, "the cluster to heal itself", HEAL_SECONDS)


# Neighbouring steps die alike: every other one here, the rest where time does not matter.
POINTS = [
    pytest.param(point, marks=[pytest.mark.soak] if number % 2 else []) for number, point in enumerate(CODING_POINTS)
]


@pytest.mark.parametrize("point", POINTS)
def test_a_primary_killed_in_mid_save_costs_neither_the_save_nor_its_level(
    cluster: BatteredCluster, point: str
) -> None:
    ledger = Ledger(cluster.client, f"primary-{point}", POOL, "L3")
    primary = cluster.primary()
    cluster.arm(primary, f"{point}=kill")
    saving = ledger.begin(LARGE_BYTES)
    primary.wait_for_death()
    ledger.end(saving)
    ledger.save()
    ledger.check()


def test_two_members_killed_in_mid_save_do_not_cost_it(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "two-members", POOL, "L3")
    group = cluster.group()
    victims = [cluster.node(name) for name in group.members if name != group.primary][:2]
    for victim in victims:
        cluster.arm(victim, "fragment.write=kill")
    saving = ledger.begin(LARGE_BYTES)
    for victim in victims:
        victim.wait_for_death()
    ledger.end(saving)
    ledger.check()
    cluster.heal()
    wait_until_whole(cluster)
    ledger.check()


def test_two_holders_killed_in_mid_restore_do_not_cost_it(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "restore", POOL, "L3")
    step = ledger.save(LARGE_BYTES)
    victims = [cluster.node(name) for name in sorted(ledger.indexes(step))[:2]]

    def progress(done_bytes: int, total_bytes: int) -> None:
        if victims and done_bytes > total_bytes // 5:
            victims.pop().kill()

    assert same(ledger.ckpts.restore(step=step, progress=progress), make_state(step, LARGE_BYTES))
    assert not victims


@pytest.mark.parametrize("point", ["pull.block", "fragment.synced", "fragment.done"])
def test_a_node_killed_while_it_repairs_leaves_the_rest_to_others(cluster: BatteredCluster, point: str) -> None:
    wait_until_whole(cluster)
    ledger = Ledger(cluster.client, f"repair-{point}", POOL, "L3")
    for _ in range(3):
        ledger.save(LARGE_BYTES)
    lost = cluster.node(next(iter(ledger.indexes(1))))
    # The one node that has nothing of it gets what is lost. No third one dies: that would be one too many.
    spare = next(node for node in cluster.local.nodes if node.name not in ledger.indexes(1))
    cluster.arm(spare, f"{point}=kill")
    lost.kill()
    wait_for(lambda: spare.process and spare.process.poll() is not None, "repair to hit it", 60)
    cluster.disarm(spare)
    ledger.check()
    cluster.heal()
    wait_until_whole(cluster)
    ledger.check()


def test_a_drain_goes_on_although_a_node_is_killed_in_it(cluster: BatteredCluster) -> None:
    wait_until_whole(cluster)
    ledger = Ledger(cluster.client, "drain", POOL, "L3")
    for _ in range(4):
        ledger.save(LARGE_BYTES)
    drained = cluster.group().primary
    other = cluster.node(next(name for name in cluster.group().members if name != drained))
    cluster.client.drain_node(drained)
    with Writer(ledger) as writer:
        cluster.arm(other, "pull.block=kill")
        wait_for(lambda: other.process and other.process.poll() is not None, "a move to hit it", 60)
        cluster.disarm(other)
        other.start()
        writer.wait_for_saves()
        wait_for(lambda: not held_by(ledger, drained), "the drained node to be empty", HEAL_SECONDS)
    ledger.check()
    cluster.client.drain_node(drained, cancel=True)
    wait_until_whole(cluster)
    ledger.check()


def held_by(ledger: Ledger, node_id: str) -> bool:
    return any(node_id in ledger.nodes_of(step) for step in list(ledger.acknowledged))


def test_a_pool_is_changed_while_saves_go_on_and_nodes_are_killed(tmp_path: Path) -> None:
    """Mirrors become 4+2, then 2+1, while a job saves and a node dies in each change."""
    local = make_battered(tmp_path, node_count=6, controller=EAGER)
    with running(local) as cluster:
        ledger = Ledger(cluster.client, "changing", POOL, "L1", CODED_SIZES_BYTES)
        with Writer(ledger) as writer:
            writer.wait_for_saves(3)
            for number, change in enumerate(({"level": "L3", "ec": "4+2"}, {"ec": "2+1"}, {"level": "L2"})):
                cluster.client.update_pool(POOL, **change)
                victim = cluster.local.nodes[number]
                writer.wait_for_saves(1)
                victim.kill()
                writer.wait_for_saves(2)
                cluster.heal()
        ledger.check()
        wait_until_whole(cluster)
        ledger.check()
        codes = {blob.code for step in ledger.acknowledged for s in ledger.ckpts.shards(step) for blob in s.blobs}
        assert codes == {"mirror"}


def test_a_node_that_joins_gets_its_part_although_one_is_killed(tmp_path: Path) -> None:
    local = make_battered(tmp_path, node_count=6, controller=EAGER, node={"disk_capacity_bytes": 4 << 30})
    with running(local, "L3", ec="4+2") as cluster:
        ledger = Ledger(cluster.client, "joining", POOL, "L3")
        for _ in range(8):
            ledger.save(LARGE_BYTES)
        newcomer = storage_node(
            tmp_path, "node-7", [local.address], {"disk_capacity_bytes": 4 << 30, "slow_member_seconds": 20}
        )
        newcomer.environment = {"SDRS_FAULT_POINTS": str(tmp_path / "node-7.points")}
        local.nodes.append(newcomer)
        newcomer.start()
        wait_for(lambda: held_by(ledger, "node-7"), "something to move to it", HEAL_SECONDS)
        local.nodes[0].kill()
        ledger.save(LARGE_BYTES)
        ledger.check()
        cluster.heal()
        wait_until_whole(cluster)
        ledger.check()
        # What was made to be elsewhere stays there: nothing is moved to and fro.
        assert cluster.client.repair().progress.done_blobs < 100


def test_a_full_disk_stops_no_repair(tmp_path: Path) -> None:
    """ENOSPC at one target: another one takes what it cannot."""
    local = make_battered(tmp_path, node_count=8, controller=EAGER)
    with running(local, "L3", ec="4+2") as cluster:
        ledger = Ledger(cluster.client, "enospc", POOL, "L3")
        for _ in range(3):
            ledger.save(LARGE_BYTES)
        lost = cluster.node(next(iter(ledger.indexes(1))))
        spares = [node for node in local.nodes if node.name not in ledger.indexes(1)]
        cluster.arm(spares[0], "fragment.write=ENOSPC")
        lost.kill()
        wait_for(
            lambda: all(len(set().union(*ledger.live_indexes(s, {lost.name}).values())) == 6 for s in (1, 2, 3)),
            "all fragments to be on others",
            HEAL_SECONDS,
        )
        assert not list((spares[0].data_dir / "disk-1" / "tmp").iterdir())
        ledger.check()
        cluster.heal()
        wait_until_whole(cluster)
        ledger.check()
