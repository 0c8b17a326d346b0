"""Several controllers on one etcd, as processes: one is active, and when it goes another one takes over."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import sdrs
from sdrs import errors
from tests.support.controllers import ReplicatedControl, running_controllers
from tests.support.etcd import EtcdCluster, needs_etcd, needs_system_etcd, running_etcd, system_program
from tests.support.states import make_state, same
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(scope="module")
def pair(etcd: EtcdCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedControl]:
    """Two controllers with a short lease, and a node. Tests may kill and freeze, and leave all up."""
    folder = tmp_path_factory.mktemp("pair")
    prefix = f"{secrets.token_hex(4)}/"
    with running_controllers(folder, etcd.endpoints, prefix=prefix, lease_seconds=5) as cluster:
        yield cluster


@needs_etcd
def test_a_standby_names_the_active_one_and_clients_find_it(pair: ReplicatedControl) -> None:
    active, standby = pair.roles()
    refusal = standby.ask()
    assert isinstance(refusal, errors.UnavailableError)
    assert f"the active one is {active.address}" in refusal.message
    for step, addresses in enumerate([(active.address, standby.address), (standby.address, active.address)]):
        with sdrs.connect("sdrs://" + ",".join(addresses)) as cluster:
            cluster.checkpoints(f"found-{step}").save(step=1, state=make_state(1)).wait(timeout=30)


@needs_etcd
def test_another_controller_takes_over_from_one_that_was_killed(pair: ReplicatedControl) -> None:
    killed, heir = pair.roles()
    with pair.connect(timeout_seconds=60) as cluster:
        checkpoints = cluster.checkpoints("killed")
        term = cluster.info().term
        checkpoints.save(step=1, state=make_state(1)).wait(timeout=30)
        killed.daemon.kill()
        checkpoints.save(step=2, state=make_state(2)).wait(timeout=60)
        assert same(checkpoints.restore(), make_state(2))
        assert same(checkpoints.restore(step=1), make_state(1))
        assert cluster.info().term > term
        assert heir.is_active
        killed.daemon.start()
        assert not killed.is_active


@needs_etcd
def test_a_controller_that_froze_stands_by_when_it_wakes_up(pair: ReplicatedControl) -> None:
    frozen, heir = pair.roles()
    try:
        with pair.connect(timeout_seconds=60) as cluster:
            frozen.daemon.freeze()
            wait_for(lambda: heir.is_active, "the other controller to take over", 30)
            checkpoints = cluster.checkpoints("frozen")
            checkpoints.save(step=1, state=make_state(1)).wait(timeout=60)
            frozen.daemon.thaw()
            wait_for(lambda: f"the active one is {heir.address}" in str(frozen.ask()), "it to stand by", 30)
            assert same(checkpoints.restore(), make_state(1))
            checkpoints.save(step=2, state=make_state(2)).wait(timeout=60)
    finally:
        frozen.daemon.thaw()
    assert heir.is_active


@needs_etcd
def test_a_graceful_stop_hands_over_without_waiting_for_the_lease(etcd: EtcdCluster, tmp_path: Path) -> None:
    # A lease that outlasts every deadline here: only giving it back lets the other one lead.
    prefix = f"{secrets.token_hex(4)}/"
    with running_controllers(tmp_path, etcd.endpoints, prefix=prefix, lease_seconds=600) as cluster:
        stopped, heir = cluster.roles()
        with cluster.connect(timeout_seconds=60) as client:
            checkpoints = client.checkpoints("handed-over")
            checkpoints.save(step=1, state=make_state(1)).wait(timeout=30)
            assert stopped.daemon.stop() == 0
            wait_for(lambda: heir.is_active, "the other controller to take over", 30)
            checkpoints.save(step=2, state=make_state(2)).wait(timeout=60)
            assert same(checkpoints.restore(step=1), make_state(1))


@needs_system_etcd
def test_controllers_outlive_an_outage_of_etcd(tmp_path: Path) -> None:
    with running_etcd(tmp_path, 1, system_program()) as etcd:
        with running_controllers(tmp_path, etcd.endpoints, call_seconds=1) as cluster:
            with cluster.connect(timeout_seconds=90) as client:
                checkpoints = client.checkpoints("outage")
                checkpoints.save(step=1, state=make_state(1)).wait(timeout=30)
                etcd.members[0].kill()
                wait_for(lambda: not any(c.is_active for c in cluster.controllers), "the outage to be seen", 30)
                etcd.restart(etcd.members[0])
                checkpoints.save(step=2, state=make_state(2)).wait(timeout=90)
                assert same(checkpoints.restore(), make_state(2))
        for daemon in cluster.daemons():
            assert "Traceback" not in daemon.log_path.read_text()
