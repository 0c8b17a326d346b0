"""4+2 over six nodes: every pair of them may be lost, a third may not, and whoever returns counts for what it has."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sdrs import errors
from tests.support.battered import POOL, BatteredCluster, make_battered, running
from tests.support.ledger import Ledger
from tests.support.waiting import wait_for

# Nothing is made elsewhere meanwhile: what is read is what is left.
PATIENT = {"repair_after_seconds": 3600, "repair_last_copy_after_seconds": 3600}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredCluster]:
    local = make_battered(tmp_path_factory.mktemp("lost"), node_count=6, controller=PATIENT)
    with running(local, "L3", ec="4+2") as battered:
        yield battered


def pairs_by_one_swap(count: int) -> list[set[int]]:
    """All pairs of ``count``, each differing from the one before it in one of the two."""
    pairs: list[set[int]] = []
    for high in range(1, count):
        row = [{low, high} for low in range(high)]
        pairs += row if high % 2 else row[::-1]
    return pairs


def are_up(cluster: BatteredCluster, names: set[str]) -> bool:
    return {node.id for node in cluster.client.nodes() if node.state == "up"} == names


def test_every_pair_of_nodes_may_be_lost_and_a_third_may_not(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "pairs", POOL, "L3")
    for _ in range(3):
        ledger.save()
    nodes = cluster.local.nodes
    before = dict(ledger.acknowledged)
    dead: set[int] = set()
    for pair in pairs_by_one_swap(len(nodes)):
        for number in pair - dead:
            nodes[number].kill()
        for number in dead - pair:
            nodes[number].start()
        dead = pair
        alive = {node.name for number, node in enumerate(nodes) if number not in dead}
        wait_for(lambda alive=alive: are_up(cluster, alive), f"all but {dead} to be up")
        for step in before:
            ledger.check_step(step)
    # Saves go on too, with six fragments on the four nodes that are left (P10).
    step = ledger.save()
    assert max(map(len, ledger.indexes(step).values())) <= 2
    assert ledger.ckpts.latest().degraded
    # A third one is one too many for what was saved before: a clear error, and soon.
    third = next(number for number in range(6) if number not in dead)
    nodes[third].kill()
    began = time.monotonic()
    with pytest.raises(errors.UnavailableError, match="out of reach"):
        ledger.ckpts.restore(step=1)
    assert time.monotonic() - began < 30, "it hung"
    nodes[third].start()
    wait_for(lambda: are_up(cluster, alive), "the third one to be back")
    ledger.check()
    cluster.heal()
    ledger.check()
    wait_for(lambda: not ledger.ckpts.latest().degraded, "what was crowded to be spread again", 60)
    assert all(len(indexes) <= 1 for indexes in ledger.indexes(step).values())


def test_a_node_that_returns_with_stale_fragments_is_brought_up_to_date(cluster: BatteredCluster) -> None:
    """While it was away a checkpoint was deleted, one was saved, and one of its own fragments went bad."""
    cluster.heal()
    ledger = Ledger(cluster.client, "stale", POOL, "L3")
    for _ in range(3):
        ledger.save(5_000_000)
    away = cluster.local.nodes[2]
    away.kill()
    ledger.ckpts.delete(1)
    ledger.forget(1)
    ledger.save(5_000_000)
    held = sorted(path for path in cluster.local.fragments() if away.name in path.parts)
    with held[0].open("r+b") as file:
        file.seek(5000)
        file.write(b"\x00\xff" * 50)
    ledger.check()
    cluster.heal()
    ledger.check()
    cluster.client.start_scrub(deep=True)
    wait_for(lambda: cluster.client.scrub_status().scrub.ended_unix_ms, "the scrub to end", 60)
    wait_for(lambda: cluster.is_whole(), "every fragment to be back", 60)
    assert all(ledger.ckpts.verify(step) for step in ledger.acknowledged)
    ledger.check()
