"""kill -9 of primaries and replicas at each step of a replicated write: saves go on at L2, and nothing acknowledged is
lost.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.battered import POOL, BatteredCluster, make_battered, running
from tests.support.ledger import Ledger, Writer
from tests.support.states import MIB
from tests.support.stores import REPLICATION_POINTS, WRITE_POINTS
from tests.support.waiting import wait_for

NODE_COUNT = 4
# Large enough for the data channel: a copy is relayed block by block.
SIZE_BYTES = 3 * MIB
# Short: leftovers are collected while the tests run, and must not take anything else with them.
CONTROLLER = {"grace_seconds": 0.5, "repair_after_seconds": 3600, "repair_last_copy_after_seconds": 3600}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredCluster]:
    local = make_battered(tmp_path_factory.mktemp("killed"), node_count=NODE_COUNT, controller=CONTROLLER)
    with running(local) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: BatteredCluster) -> BatteredCluster:
    shared.heal()
    return shared


@pytest.mark.parametrize("point", [*WRITE_POINTS, *REPLICATION_POINTS])
def test_a_primary_killed_in_mid_save_costs_neither_the_save_nor_its_level(
    cluster: BatteredCluster, point: str
) -> None:
    ledger = Ledger(cluster.client, f"primary-{point}", POOL)
    ledger.save()
    before = cluster.group()
    primary = cluster.node(before.primary)
    cluster.arm(primary, f"{point}=kill")
    saving = ledger.begin(SIZE_BYTES)
    primary.wait_for_death()
    step = ledger.end(saving)
    assert len(ledger.holders(step)) == 2
    assert primary.name not in ledger.holders(step) or point == "seal.registered"
    assert cluster.wait_until_moved(before).primary != primary.name
    ledger.save()
    ledger.check()


@pytest.mark.parametrize("point", ["fragment.write", "fragment.synced", "fragment.renamed", "fragment.done"])
def test_a_replica_killed_in_mid_save_is_replaced_by_a_spare(cluster: BatteredCluster, point: str) -> None:
    ledger = Ledger(cluster.client, f"replica-{point}", POOL)
    ledger.save()
    before, replica = cluster.group(), cluster.replica()
    cluster.arm(replica, f"{point}=kill")
    saving = ledger.begin(SIZE_BYTES)
    replica.wait_for_death()
    step = ledger.end(saving)
    assert len(ledger.holders(step) - {replica.name}) == 2
    assert replica.name not in cluster.wait_until_moved(before).members
    ledger.save()
    ledger.check()


def test_two_nodes_killed_in_a_row_stop_nobody(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "two", POOL)
    with Writer(ledger) as writer:
        writer.wait_for_saves()
        group = cluster.group()
        for _ in range(2):
            cluster.node(group.primary).kill()
            group = cluster.wait_until_moved(group)
            writer.wait_for_saves()
    # With two of four nodes left, whatever was on the first two is gone with them, and named; it returns with them.
    cluster.heal()
    ledger.check()


def test_all_nodes_killed_at_once_come_back_with_everything(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "all", POOL)
    with Writer(ledger) as writer:
        writer.wait_for_saves()
        for node in cluster.local.nodes:
            node.kill()
        cluster.heal()
        writer.wait_for_saves()
    ledger.check()


def test_a_node_that_returns_with_unacknowledged_data_shows_it_to_nobody_and_loses_it(cluster: BatteredCluster) -> None:
    """It was killed after its fragment was durable and before the seal; the save went on without it."""
    ledger = Ledger(cluster.client, "unacknowledged", POOL)
    primary = cluster.primary()
    before = _fragments(cluster, primary.name)
    cluster.arm(primary, "fragment.done=kill")
    saving = ledger.begin(SIZE_BYTES)
    primary.wait_for_death()
    step = ledger.end(saving)
    (leftover,) = _fragments(cluster, primary.name) - before
    assert primary.name not in ledger.holders(step)
    cluster.heal()
    assert primary.name not in ledger.holders(step), "what was never acknowledged counts"
    ledger.check()
    wait_for(lambda: leftover not in _fragments(cluster, primary.name), "the leftover to be collected", 30)
    ledger.check()


def _fragments(cluster: BatteredCluster, node: str) -> set[str]:
    return {path.name for path in cluster.local.fragments() if node in path.parts}
