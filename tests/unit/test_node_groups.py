"""What a node knows of its groups, whom it believes, and what it refuses (I3)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from sdrs_core.cluster import Endpoints, Group, Node
from sdrs_core.errors import FullError, StaleEpochError, UnavailableError
from sdrs_core.ids import ClusterId, GroupId, NodeId, PoolName
from sdrs_storaged.node import identity as identity_module
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.identity import Identity

ID = GroupId("fast:n1")
NODES = [Node(NodeId(name), Endpoints("", "", "", "", ""), name, 1, "1") for name in ("n1", "n2")]


def _group(epoch: int, *members: str) -> Group:
    ids = tuple(NodeId(member) for member in members)
    return Group(ID, PoolName("fast"), epoch, ids, ids[0])


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    opened = Identity.open(tmp_path / "node.json", "n1")
    opened.join(ClusterId("c1"))
    return opened


def _again(tmp_path: Path) -> Identity:
    return Identity.open(tmp_path / "node.json", "n1")


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_only_the_very_epoch_and_only_a_member_passes(identity: Identity) -> None:
    async def run() -> None:
        groups = Groups(identity)
        await groups.adopt([_group(5, "n2", "n1")], NODES)
        assert groups.check(ID, 5, as_primary=False).primary == "n2"
        with pytest.raises(StaleEpochError) as stale:
            groups.check(ID, 4, as_primary=False)
        assert stale.value.facts == {"group": ID, "epoch": "5", "primary": "n2"}
        with pytest.raises(StaleEpochError, match="not the primary"):
            groups.check(ID, 5, as_primary=True)
        with pytest.raises(UnavailableError, match="epoch 6"):
            groups.check(ID, 6, as_primary=False)
        await groups.adopt([], NODES)
        with pytest.raises(StaleEpochError, match="no member"):
            groups.check(ID, 5, as_primary=False)

    _run(run())


def test_before_it_is_told_anything_a_node_takes_part_in_nothing(identity: Identity) -> None:
    async def run() -> None:
        with pytest.raises(UnavailableError, match="not linked yet"):
            await Groups(identity, push_seconds=0.01).admit(ID, 1, as_primary=True)

    _run(run())


def test_a_higher_epoch_is_waited_for(identity: Identity) -> None:
    async def run() -> None:
        groups = Groups(identity, push_seconds=30)
        waiting = [asyncio.create_task(groups.admit(ID, epoch, as_primary=True)) for epoch in (1, 2)]
        await asyncio.sleep(0)
        await groups.adopt([_group(1, "n1")], NODES)
        assert (await waiting[0]).epoch == 1
        assert not waiting[1].done()
        await groups.adopt([_group(2, "n1")], NODES)
        assert (await waiting[1]).epoch == 2

    _run(run())


def test_an_epoch_that_somebody_made_up_binds_nobody(identity: Identity) -> None:
    async def run() -> None:
        groups = Groups(identity, push_seconds=0.01)
        await groups.adopt([_group(1, "n1")], NODES)
        with pytest.raises(UnavailableError):
            await groups.admit(ID, 2**60, as_primary=True)
        groups.check(ID, 1, as_primary=True)

    _run(run())


def test_a_restart_forgets_no_epoch_also_of_a_group_that_was_left(identity: Identity, tmp_path: Path) -> None:
    async def run() -> None:
        groups = Groups(identity)
        await groups.adopt([_group(7, "n1")], NODES)
        await groups.adopt([], NODES)
        again = Groups(_again(tmp_path), push_seconds=0.01)
        with pytest.raises(StaleEpochError):
            await again.admit(ID, 6, as_primary=True)
        assert again.epochs() == {ID: 7}

    _run(run())


def test_epochs_never_go_down(identity: Identity) -> None:
    async def run() -> None:
        groups = Groups(identity)
        await groups.adopt([_group(7, "n2", "n1")], NODES)
        await groups.adopt([_group(6, "n1", "n2")], NODES)
        assert groups.check(ID, 7, as_primary=False).primary == "n2"
        with pytest.raises(StaleEpochError):
            groups.check(ID, 6, as_primary=True)

    _run(run())


def test_an_epoch_is_persisted_before_it_is_acted_on(identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    async def run() -> None:
        groups = Groups(identity)
        await groups.adopt([_group(1, "n1", "n2")], NODES)
        with monkeypatch.context() as patched:
            patched.setattr(identity_module, "write_durably", full)
            with pytest.raises(FullError):
                await groups.adopt([_group(2, "n2", "n1")], NODES)
        groups.check(ID, 1, as_primary=True)
        assert groups.epochs() == {ID: 1}
        await groups.adopt([_group(2, "n2", "n1")], NODES)
        with pytest.raises(StaleEpochError):
            groups.check(ID, 1, as_primary=True)

    _run(run())


def test_work_ends_as_soon_as_a_change_takes_its_ground_away(identity: Identity) -> None:
    async def run() -> None:
        groups = Groups(identity)
        await groups.adopt([_group(1, "n1", "n2")], NODES)
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        running = asyncio.create_task(groups.run_while(work(), lambda: groups.is_member(ID, NodeId("n2")), ID))
        await asyncio.sleep(0)
        await groups.adopt([_group(2, "n1", "n2")], NODES)
        assert not running.done()
        await groups.adopt([_group(3, "n1")], NODES)
        with pytest.raises(StaleEpochError):
            await running
        assert ended.is_set()

    _run(run())


def test_who_watches_is_told_of_each_change_until_he_leaves(identity: Identity) -> None:
    async def run() -> None:
        groups = Groups(identity)
        seen: list[int] = []
        with groups.watching(lambda: seen.append(groups.epoch(ID))):
            await groups.adopt([_group(1, "n1")], NODES)
            await groups.adopt([_group(2, "n1")], NODES)
        await groups.adopt([_group(3, "n1")], NODES)
        assert seen == [0, 1, 2]

    _run(run())
