"""Nodes that are frozen or cut off, while the others go on: they are replaced, and what they say afterwards is void.

Nobody hears of a freeze or a cut: there is only silence. Whoever returns finds a higher epoch (I3).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sdrs_core.cluster import Group
from tests.support.battered import HEAL_SECONDS, POOL, BatteredCluster, make_battered, running
from tests.support.ledger import Ledger, Writer
from tests.support.network import CONTROLLER, Network, networked
from tests.support.states import MIB, make_state
from tests.support.waiting import wait_for

SUSPECT_AFTER_SECONDS = 0.7
TTL_SECONDS = 3
# One rank that saves once, and dies when its seal is answered or fails: it never tries again.
TRAINER = """
import os, sys
import sdrs
from sdrs.rpc.nodes import NodeCalls
from tests.support.states import make_state
real = NodeCalls.call
def call(self, method, *args, **options):
    try:
        return real(self, method, *args, **options)
    finally:
        if method == "seal_shard":
            os._exit(0)
NodeCalls.call = call
url, job, pool, size_bytes = sys.argv[1:]
with sdrs.connect(url) as cluster:
    cluster.checkpoints(job, pool=pool).save(1, make_state(1, int(size_bytes))).wait(timeout=60)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BatteredCluster, Network]]:
    local = make_battered(
        tmp_path_factory.mktemp("cut-off"),
        node_count=4,
        controller={"suspect_after_seconds": SUSPECT_AFTER_SECONDS, "save_ttl_seconds": TTL_SECONDS},
        node={"slow_member_seconds": 1},
    )
    with networked(local) as network, running(local) as cluster:
        yield cluster, network


@pytest.fixture
def network(shared: tuple[BatteredCluster, Network]) -> Network:
    shared[1].heal()
    return shared[1]


@pytest.fixture
def cluster(shared: tuple[BatteredCluster, Network], network: Network) -> BatteredCluster:
    shared[0].heal()
    return shared[0]


def test_a_frozen_primary_is_replaced_and_commits_nothing_when_it_wakes_up(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "frozen", POOL)
    with Writer(ledger) as writer:
        writer.wait_for_saves()
        before = cluster.group()
        primary = cluster.node(before.primary)
        cluster.freeze(primary)
        frozen_at, first = time.monotonic(), ledger.next_step
        writer.wait_for_saves()
        assert cluster.wait_until_moved(before).primary != primary.name
        wait_for(lambda: time.monotonic() - frozen_at > 3 * SUSPECT_AFTER_SECONDS, "the freeze to be long")
        last = max(ledger.acknowledged)
        # It could acknowledge nothing that began after it stood still.
        named = [step for step in range(first, last + 1) if primary.name in ledger.holders(step)]
        assert not named, f"{primary.name} stands still, and is on record for steps {named}"
        primary.thaw()
        writer.wait_for_saves()
        wait_for(lambda: _is_told(cluster, primary.name), f"{primary.name} to step down", HEAL_SECONDS)
    cluster.heal()
    ledger.check()


def test_a_save_through_a_primary_that_freezes_ends_at_another(cluster: BatteredCluster) -> None:
    ledger = Ledger(cluster.client, "in-flight", POOL)
    before = cluster.group()
    primary = cluster.node(before.primary)

    frozen: list[str] = []

    def freeze(sent: int, total: int) -> None:
        if sent and not frozen and cluster.group() == before:
            frozen.append(primary.name)
            primary.freeze()

    step = ledger.end(ledger.begin(12 * MIB, progress=freeze))
    assert len(ledger.holders(step) - set(frozen)) == 2
    primary.thaw()
    ledger.save()
    cluster.heal()
    ledger.check()


def test_a_receipt_of_an_old_epoch_does_not_count(cluster: BatteredCluster) -> None:
    """I3: the primary stands still between the members' acknowledgements and its receipt, and its client dies. When it
    wakes up all that it vouches for is true, the members are the same, and yet it is no longer the one to say so.
    """
    cluster.client.pause("the test moves the group itself")
    try:
        before = cluster.group()
        primary, replica = cluster.node(before.primary), cluster.replica()
        cluster.arm(primary, "seal.confirmed=stop")
        trainer = _start_trainer(cluster, "old-epoch")
        try:
            cluster.wait_until_frozen(primary)
        finally:
            trainer.kill()
            trainer.wait()
        moved = cluster.client.failover(before.id, to=replica.name).group
        assert (moved.primary, set(moved.members)) == (replica.name, set(before.members))
        cluster.disarm(primary)
        primary.thaw()
        wait_for(lambda: _is_told(cluster, primary.name), f"{primary.name} to be back", HEAL_SECONDS)
        wait_for(lambda: _pending(cluster) == 0, "the save that nobody renews to end", HEAL_SECONDS)
    finally:
        cluster.client.resume()
    ckpts = cluster.client.checkpoints("old-epoch", pool=POOL)
    assert ckpts.list() == [], "a deposed primary committed"
    # And the step is free for the next attempt.
    assert ckpts.save(1, make_state(1)).wait("L2", timeout=60).step == 1


def _start_trainer(cluster: BatteredCluster, job: str) -> subprocess.Popen[bytes]:
    arguments = [cluster.local.url, job, POOL, str(3 * MIB)]
    return subprocess.Popen([sys.executable, "-c", TRAINER, *arguments], cwd=Path(__file__).parents[2])


def _is_told(cluster: BatteredCluster, name: str) -> bool:
    """Whether the node is up and refuses to act under epochs before those of now."""
    node, groups = cluster.client.node(name)
    return node.state == "up" and all(_epoch_known(cluster, group, name) == group.epoch for group in groups)


def _epoch_known(cluster: BatteredCluster, group: Group, name: str) -> int:
    info = cluster.client.group(group.id)
    return dict(zip((node.id for node in info.nodes), info.member_epochs, strict=True))[name]


def _pending(cluster: BatteredCluster) -> int:
    return cluster.client.info().pending_save_count


# Whom a cut parts: (network, primary, replica, all others) → done
Cut = Callable[[Network, str, str, list[str]], None]


def _from_the_controller(network: Network, primary: str, replica: str, others: list[str]) -> None:
    network.cut(primary, CONTROLLER)


def _it_does_not_hear_the_controller(network: Network, primary: str, replica: str, others: list[str]) -> None:
    network.lose(CONTROLLER, primary)


def _the_controller_does_not_hear_it(network: Network, primary: str, replica: str, others: list[str]) -> None:
    network.lose(primary, CONTROLLER)


def _from_all_other_nodes(network: Network, primary: str, replica: str, others: list[str]) -> None:
    for other in others:
        network.cut(primary, other)


def _its_replica_does_not_hear_it(network: Network, primary: str, replica: str, others: list[str]) -> None:
    network.lose(primary, replica)


def _it_does_not_hear_its_replica(network: Network, primary: str, replica: str, others: list[str]) -> None:
    network.lose(replica, primary)


CUTS: list[Cut] = [
    _from_the_controller,
    _it_does_not_hear_the_controller,
    _the_controller_does_not_hear_it,
    _from_all_other_nodes,
    _its_replica_does_not_hear_it,
    _it_does_not_hear_its_replica,
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__.strip("_"))
def test_saves_go_on_at_full_level_around_a_primary_that_is_cut_off(
    cluster: BatteredCluster, network: Network, cut: Cut
) -> None:
    # A pool of its own: no group of it remembers who was found slow in another test.
    pool = f"cut{cut.__name__}"
    cluster.client.create_pool(pool, "L2")
    ledger = Ledger(cluster.client, pool, pool)
    with Writer(ledger) as writer:
        writer.wait_for_saves()
        before = cluster.group(pool)
        primary, replica = before.primary, next(m for m in before.members if m != before.primary)
        cut(network, primary, replica, [node.name for node in cluster.local.nodes if node.name != primary])
        writer.wait_for_saves()
        cluster.wait_until_moved(before)
        network.heal()
        writer.wait_for_saves()
    cluster.heal()
    ledger.check()
