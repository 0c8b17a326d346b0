"""Controllers and etcds are killed, frozen and cut off while a job saves: saves wait or go on, nothing acknowledged is
lost, and nobody is demoted because of the control plane alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import sdrs
from sdrs import errors
from tests.support.battered import POOL
from tests.support.battered_control import BatteredControl, running
from tests.support.controllers import Controller
from tests.support.etcd import needs_system_etcd, running_etcd, system_program
from tests.support.ledger import Writer
from tests.support.states import make_state, same
from tests.support.waiting import wait_for

pytestmark = needs_system_etcd


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredControl]:
    """Three etcds, two controllers, three nodes."""
    folder = tmp_path_factory.mktemp("etcd-faults")
    with running_etcd(folder, 3, system_program()) as etcd:
        with running(etcd, folder) as cluster:
            yield cluster


@pytest.fixture
def cluster(shared: BatteredControl) -> BatteredControl:
    shared.heal()
    return shared


def test_the_standby_takes_over_from_a_killed_controller_which_stands_by_when_it_returns(
    cluster: BatteredControl,
) -> None:
    ledger = cluster.ledger("controller-killed")
    killed, heir = cluster.roles()
    epochs = cluster.epochs()
    with Writer(ledger) as writer:
        writer.wait_for_saves()
        killed.daemon.kill()
        writer.wait_for_saves()
        wait_for(lambda: heir.is_active, "the standby to take over", 30)
        killed.daemon.start()
        writer.wait_for_saves()
        _wait_until_standing_by(killed)
    assert cluster.epochs() == epochs
    ledger.check()


def test_saves_go_on_when_the_leader_of_etcd_is_killed_and_when_it_returns(cluster: BatteredControl) -> None:
    ledger = cluster.ledger("etcd-leader-killed")
    epochs = cluster.epochs()
    with Writer(ledger) as writer:
        writer.wait_for_saves()
        leader = cluster.etcd.leader()
        leader.kill()
        writer.wait_for_saves()
        cluster.etcd.restart(leader)
        writer.wait_for_saves()
    assert cluster.epochs() == epochs
    ledger.check()


def test_saves_go_on_while_the_leader_of_etcd_is_frozen_and_when_it_wakes_up(cluster: BatteredControl) -> None:
    ledger = cluster.ledger("etcd-leader-frozen")
    epochs = cluster.epochs()
    with Writer(ledger) as writer:
        writer.wait_for_saves()
        leader = cluster.etcd.leader()
        leader.freeze()
        writer.wait_for_saves()
        leader.thaw()
        writer.wait_for_saves()
    assert cluster.epochs() == epochs
    ledger.check()


def test_without_a_quorum_of_etcd_reads_go_on_saves_wait_and_nobody_is_demoted(cluster: BatteredControl) -> None:
    ledger = cluster.ledger("no-quorum")
    epochs = cluster.epochs()
    step = ledger.save()
    with (
        cluster.control.connect(timeout_seconds=1) as impatient,
        Writer(ledger) as writer,
    ):
        writer.wait_for_saves()
        leader = cluster.etcd.leader()
        leader.freeze()
        next(member for member in cluster.etcd.members if member is not leader).kill()
        with pytest.raises(errors.UnavailableError, match="etcd"):
            impatient.checkpoints("no-quorum-refused", pool=POOL).save(1, make_state(1)).wait(timeout=60)
        assert [node.state for node in cluster.client.nodes()] == ["up"] * 3
        assert cluster.epochs() == epochs
        # P17: what one replica of the catalog still has is told, and labelled.
        with pytest.warns(sdrs.StaleCatalogWarning):
            assert same(ledger.ckpts.restore(step=step), make_state(step, ledger.acknowledged[step]))
        cluster.etcd.heal()
        writer.wait_for_saves()
    assert cluster.epochs() == epochs
    ledger.check()


def test_a_controller_that_froze_before_a_commit_commits_nothing_in_its_old_term(cluster: BatteredControl) -> None:
    ledger = cluster.ledger("frozen-commit")
    ledger.save()
    frozen, heir = cluster.roles()
    epochs = cluster.epochs()
    cluster.arm(frozen.daemon, "commit.before=stop@1")
    saving = ledger.begin()
    cluster.wait_until_frozen(frozen.daemon)
    cluster.disarm(frozen.daemon)
    wait_for(lambda: heir.is_active, "the standby to take over", 30)
    step = ledger.end(saving)
    frozen.daemon.thaw()
    _wait_until_standing_by(frozen)
    assert step in _committed_by(heir, "frozen-commit")
    assert step not in _committed_by(frozen, "frozen-commit")
    ledger.save()
    assert cluster.epochs() == epochs
    ledger.check()


@pytest.mark.parametrize("point", ["failover.decided", "failover.stored"])
def test_the_standby_finishes_the_failover_of_a_controller_that_was_killed_in_it(
    cluster: BatteredControl, point: str
) -> None:
    ledger = cluster.ledger(point)
    ledger.save()
    killed, heir = cluster.roles()
    before = cluster.group()
    cluster.arm(killed.daemon, f"{point}=kill")
    saving = ledger.begin()
    cluster.node(before.primary).kill()
    killed.daemon.wait_for_death(30)
    ledger.end(saving)
    assert heir.is_active
    assert before.primary not in cluster.wait_until_moved(before).members
    assert len(ledger.holders(ledger.save()) - {before.primary}) == 2
    cluster.heal()
    ledger.check()


@pytest.mark.parametrize("point", ["commit.before", "commit.after"])
def test_a_save_whose_controller_and_primary_died_at_its_commit_is_committed_once(
    cluster: BatteredControl, point: str
) -> None:
    ledger = cluster.ledger(point)
    ledger.save()
    killed, heir = cluster.roles()
    before = cluster.group()
    cluster.arm(killed.daemon, f"{point}=kill")
    saving = ledger.begin()
    killed.daemon.wait_for_death(30)
    cluster.node(before.primary).kill()
    ledger.end(saving)
    assert heir.is_active
    ledger.save()
    cluster.heal()
    ledger.check()


def _wait_until_standing_by(controller: Controller) -> None:
    wait_for(lambda: "the active one is" in str(controller.ask()), f"{controller.daemon.name} to stand by", 30)


def _committed_by(controller: Controller, job: str) -> set[int]:
    """The steps that this controller says it committed."""
    told = [json.loads(line) for line in controller.daemon.log_path.read_text().splitlines() if line.startswith("{")]
    return {fact["step"] for fact in told if fact["event"] == "checkpoint_committed" and fact["job"] == job}
