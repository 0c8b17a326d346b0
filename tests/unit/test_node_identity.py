"""What a node remembers: whose orders it takes, and which epochs it has seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdrs_core.cluster import Authority
from sdrs_core.errors import CorruptDataError, RefusedError, StaleTermError
from sdrs_core.ids import ClusterId, GroupId
from sdrs_storaged.node.identity import Identity

GROUP = GroupId("default:node-1")
OTHER = GroupId("default:node-2")


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


def test_epochs_are_kept_after_a_restart_and_never_lowered(path: Path) -> None:
    identity = Identity.open(path, "n1")
    identity.raise_epochs({GROUP: 7, OTHER: 2})
    identity.raise_epochs({GROUP: 6, OTHER: 3})
    assert Identity.open(path, "n1").epochs == {GROUP: 7, OTHER: 3}


def test_all_epochs_of_a_map_are_one_write(path: Path) -> None:
    identity = Identity.open(path, "n1")
    identity.raise_epochs({GROUP: 7, OTHER: 2})
    inode = path.stat().st_ino
    identity.raise_epochs({GROUP: 7, OTHER: 1})
    assert path.stat().st_ino == inode
