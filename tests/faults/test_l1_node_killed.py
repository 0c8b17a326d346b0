"""The only node that holds a checkpoint at L1 is killed: a clear error, no promotion, and all is back with the node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdrs import errors
from tests.support.battered import HEAL_SECONDS, BatteredCluster, make_battered, running
from tests.support.ledger import Ledger
from tests.support.program import Program
from tests.support.states import MIB
from tests.support.waiting import wait_for

POOL = "single"
SIZE_BYTES = 3 * MIB


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredCluster]:
    local = make_battered(tmp_path_factory.mktemp("l1"), node_count=2, controller={"repair_interval_seconds": 0.5})
    with running(local) as cluster:
        cluster.client.create_pool(POOL, "L1")
        yield cluster


@pytest.fixture
def cluster(shared: BatteredCluster) -> BatteredCluster:
    shared.heal()
    return shared


def test_a_killed_node_makes_its_checkpoints_unavailable_and_nothing_else(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "unavailable", POOL, level="L1")
    step = ledger.save(SIZE_BYTES)
    before = cluster.group(POOL)
    (name,) = ledger.holders(step)
    lost = cluster.node(name)
    lost.kill()

    with pytest.raises(errors.UnavailableError, match=f"unavailable step {step}.*{name}"):
        ledger.ckpts.restore(step=step)
    wait_for(lambda: cluster.client.info().unavailable_count == 1, "the checkpoint to be told", HEAL_SECONDS)
    assert any(f"unavailable step {step}" in warning for warning in cluster.client.info().warnings)
    # New saves go elsewhere, at their full level.
    assert ledger.holders(ledger.save(SIZE_BYTES)) == {other.name for other in cluster.local.nodes} - {name}
    # I4: an L1 group is never moved by itself.
    refused = Program(cluster.local.url).run("failover", before.id, expect=4)
    assert f"unavailable step {step}" in refused
    assert "--accept-data-loss" in refused
    assert cluster.client.group(before.id).group.epoch == before.epoch
    assert not [event for event in cluster.client.history(group=before.id) if event.epoch > before.epoch]

    cluster.heal()
    wait_for(lambda: cluster.client.info().unavailable_count == 0, "the checkpoint to be back", HEAL_SECONDS)
    ledger.check()


def test_a_loss_that_is_accepted_is_named_and_can_be_taken_back_with_the_node(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "accepted", POOL, level="L1")
    step = ledger.save(SIZE_BYTES)
    before = cluster.group(POOL)
    (name,) = ledger.holders(step)
    cluster.node(name).kill()
    kept = ledger.save(SIZE_BYTES)

    wait_for(lambda: cluster.client.node(name)[0].state == "down", "the node to be missed", HEAL_SECONDS)
    program = Program(cluster.local.url)
    outcome = program.json("failover", before.id, "--accept-data-loss", "--yes")
    assert [(lost["job"], lost["step"]) for lost in outcome["lost"] if lost["job"] == "accepted"] == [
        ("accepted", step)
    ]
    assert outcome["primary"] != name
    assert [save.step for save in ledger.ckpts.list()] == [kept]
    with pytest.raises(errors.NotFoundError):
        ledger.ckpts.restore(step=step)

    cluster.heal()
    assert [save.step for save in ledger.ckpts.list()] == [kept], "what was given up is back by itself"
    ledger.ckpts.undelete(step)
    ledger.check()
