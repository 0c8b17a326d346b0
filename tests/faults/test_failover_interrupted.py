"""kill -9 of the controller at each step of a failover, on SQLite: the next one completes what was begun.

The primary of the save under way dies too, and stays dead. Nothing acknowledged is lost, and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.battered import POOL, BatteredCluster, make_battered, running
from tests.support.ledger import Ledger
from tests.support.states import MIB

SIZE_BYTES = 3 * MIB
POINTS = ["save.begun", "failover.decided", "failover.stored", "receipt.stored", "commit.before", "commit.after"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredCluster]:
    local = make_battered(
        tmp_path_factory.mktemp("interrupted"),
        node_count=3,
        # After a restart, a node that never calls is waited for twice as long.
        controller={"suspect_after_seconds": 1, "grace_seconds": 0.5, "repair_after_seconds": 3600},
    )
    with running(local) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: BatteredCluster) -> BatteredCluster:
    shared.heal()
    return shared


@pytest.mark.parametrize("point", POINTS)
def test_a_failover_that_the_controller_did_not_survive_is_completed(cluster: BatteredCluster, point: str) -> None:
    ledger = Ledger(cluster.client, point, POOL)
    ledger.save()
    before, controller = cluster.group(), cluster.local.controller
    primary = cluster.node(before.primary)
    cluster.arm(controller, f"{point}=kill")
    cluster.arm(primary, "relay.block=kill")
    saving = ledger.begin(SIZE_BYTES)
    controller.wait_for_death()
    primary.kill()  # unless the save came far enough to have it killed
    cluster.disarm(controller)
    controller.start()
    step = ledger.end(saving)
    after = cluster.wait_until_moved(before)
    assert (after.primary != primary.name, primary.name not in after.members) == (True, True)
    assert len(ledger.holders(step) - {primary.name}) == 2
    ledger.save()
    ledger.check()
    promotions = [e for e in cluster.client.history(group=before.id) if e.epoch == after.epoch]
    assert len(promotions) == 1, f"one change of the group, told {len(promotions)} times"
