"""etcd is put back to an old snapshot under live controllers and nodes (P18): everything stands still until an operator
decides, and nothing is deleted that the rolled back catalog knows nothing of.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs import errors
from tests.support.battered_control import BatteredControl, running
from tests.support.etcd import needs_system_etcd, running_etcd, system_program
from tests.support.waiting import wait_for

pytestmark = needs_system_etcd

# What is named by no record goes at once, if anybody may collect at all.
EAGER = {"grace_seconds": 0, "collect_interval_seconds": 0.1, "scan_interval_seconds": 0}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BatteredControl]:
    with running_etcd(tmp_path, 1, system_program()) as etcd:
        with running(etcd, tmp_path, controller=EAGER, node_count=2) as cluster:
            yield cluster


def test_nothing_is_changed_or_deleted_after_etcd_was_rolled_back(cluster: BatteredControl, tmp_path: Path) -> None:
    ledger = cluster.ledger("rolled-back")
    ledger.save()
    cluster.etcd.save_snapshot(tmp_path / "snapshot")
    for _ in range(3):
        ledger.save()
    revision = cluster.client.info().revision
    wait_for(lambda: min(cluster.seen_revisions()) >= revision, "all nodes to hear of the saves", 30)
    fragments = cluster.fragments()
    cluster.etcd.roll_back(tmp_path / "snapshot")

    # The active controller remembers more than the store does, and its term goes on.
    active, heir = cluster.roles()
    assert "went back from revision" in wait_for(cluster.frozen_because, "the active controller to notice", 30)
    _check_nothing_can_be_changed(cluster)
    assert cluster.fragments() == fragments

    # The next one knows the restored history only, and learns of the later one from the nodes.
    active.daemon.kill()
    wait_for(lambda: heir.is_active, "the other controller to take over", 30)
    assert "not in the controller's past" in wait_for(cluster.frozen_because, "the nodes to tell", 30)
    _check_nothing_can_be_changed(cluster)
    assert cluster.fragments() == fragments


def _check_nothing_can_be_changed(cluster: BatteredControl) -> None:
    with pytest.raises(errors.RefusedError, match="rolled back"):
        cluster.client.create_pool("afterwards", "L1")
