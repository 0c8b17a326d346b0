"""What a node remembers: whose orders it takes, and which epochs it has seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdrs_core.cluster import Authority
from sdrs_core.errors import CorruptDataError, RefusedError, StaleEpochError, StaleTermError
from sdrs_core.ids import ClusterId, GroupId
from sdrs_storaged.node.identity import Identity

GROUP = GroupId("default:node-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.json"


def test_an_identity_is_the_same_after_a_restart(path: Path) -> None:
    first = Identity.open(path, "")
    first.join(ClusterId("c1"))
    again = Identity.open(path, "")
    assert (again.node_id, again.key, again.cluster_id) == (first.node_id, first.key, "c1")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_node_of_another_cluster_or_name_is_refused(path: Path) -> None:
    Identity.open(path, "n1").join(ClusterId("c1"))
    with pytest.raises(RefusedError, match="n1"):
        Identity.open(path, "n2")
    with pytest.raises(RefusedError, match="c1"):
        Identity.open(path, "n1").join(ClusterId("c2"))


def test_a_damaged_identity_is_not_replaced_by_a_new_one(path: Path) -> None:
    Identity.open(path, "n1")
    path.write_text(path.read_text()[:-5])
    with pytest.raises(CorruptDataError):
        Identity.open(path, "n1")


def test_an_older_term_is_refused_also_after_a_restart(path: Path) -> None:
    Identity.open(path, "n1").obey(Authority(1, 5, 100))
    with pytest.raises(StaleTermError):
        Identity.open(path, "n1").obey(Authority(1, 4, 200))


def test_a_new_term_that_knows_less_history_is_refused(path: Path) -> None:
    identity = Identity.open(path, "n1")
    identity.obey(Authority(1, 5, 100))
    with pytest.raises(StaleTermError):
        identity.obey(Authority(1, 6, 99))
    identity.obey(Authority(2, 1, 3))  # a new incarnation begins its own history


def test_orders_of_one_term_may_overtake_each_other(path: Path) -> None:
    identity = Identity.open(path, "n1")
    identity.obey(Authority(1, 5, 100))
    identity.obey(Authority(1, 5, 98))
    assert identity.authority.revision == 100


def test_a_lower_epoch_is_refused_also_after_a_restart(path: Path) -> None:
    Identity.open(path, "n1").learn_epoch(GROUP, 7)
    again = Identity.open(path, "n1")
    again.check_epoch(GROUP, 7)
    with pytest.raises(StaleEpochError):
        again.check_epoch(GROUP, 6)


def test_an_epoch_that_a_client_made_up_binds_nobody(path: Path) -> None:
    identity = Identity.open(path, "n1")
    identity.learn_epoch(GROUP, 7)
    identity.check_epoch(GROUP, 2**60)
    identity.check_epoch(GROUP, 7)
    Identity.open(path, "n1").check_epoch(GROUP, 7)
