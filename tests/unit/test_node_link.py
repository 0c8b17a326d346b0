"""The link of a node to its controller: what it adopts of what it is told, and when."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sdrs_core.cluster import Authority, Endpoints, Node
from sdrs_core.ids import ClusterId, GroupId, NodeId
from sdrs_storaged.folders import write_durably
from sdrs_storaged.node import identity as identity_module
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.reports import MemberTrouble
from sdrs_storaged.rpc.channels import Channels
from sdrs_storaged.rpc.controller_client import ControllerClient
from tests.support.map_teller import MapTeller, group_of
from tests.support.waiting import wait_for

NODE = Node(NodeId("n1"), Endpoints("127.0.0.1:1", "", "", "", "here"), "n1", 1, "1")
GROUP = GroupId("told:n1")


def _identity(tmp_path: Path, teller: MapTeller) -> Identity:
    identity = Identity.open(tmp_path / "node.json", "n1")
    identity.join(ClusterId(teller.cluster_id))
    return identity


@asynccontextmanager
async def _linking(teller: MapTeller, identity: Identity) -> AsyncIterator[tuple[ControllerClient, Groups]]:
    channels, groups = Channels(), Groups(identity)
    client = ControllerClient(channels, [teller.address], identity, groups)
    running = asyncio.create_task(client.run(NODE, list, asyncio.Event()))
    try:
        yield client, groups
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channels.close()


async def _wait(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_for, condition, what, 30)


def test_a_push_is_adopted_and_told_back(tmp_path: Path) -> None:
    async def run(teller: MapTeller) -> None:
        async with _linking(teller, _identity(tmp_path, teller)) as (client, groups):
            await _wait(lambda: teller.nodes, "the node to register")
            await asyncio.to_thread(teller.tell, group_of(GROUP, 3, "n1", "n2"))
            assert groups.check(GROUP, 3, as_primary=True).members == ("n1", "n2")
            assert teller.epoch_at("n1", GROUP) == 3
            await client.report_member(MemberTrouble(GROUP, 3, NodeId("n2"), True, "it sleeps"))
            assert [(report.node_id, report.member_id) for report in teller.reports] == [("n1", "n2")]

    with MapTeller().serving() as teller:
        asyncio.run(run(teller))


def test_what_could_not_be_persisted_is_adopted_once_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    is_full = False

    def write(path: Path, text: str) -> None:
        nonlocal refused
        if is_full:
            refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        write_durably(path, text)

    async def run(teller: MapTeller) -> None:
        nonlocal is_full
        async with _linking(teller, _identity(tmp_path, teller)) as (_, groups):
            await _wait(lambda: teller.nodes, "the node to register")
            await asyncio.to_thread(teller.tell, group_of(GROUP, 1, "n1", "n2"))
            is_full = True
            await asyncio.to_thread(teller.tell, group_of(GROUP, 2, "n2", "n1"), without=["n1"])
            await _wait(lambda: refused >= 3, "it to be tried with several beats")
            assert groups.check(GROUP, 1, as_primary=True)
            is_full = False
            await _wait(lambda: groups.epoch(GROUP) == 2, "it to be adopted")

    monkeypatch.setattr(identity_module, "write_durably", write)
    with MapTeller().serving() as teller:
        asyncio.run(run(teller))


def test_a_controller_of_an_older_term_tells_this_node_nothing(tmp_path: Path) -> None:
    async def run(teller: MapTeller) -> None:
        identity = _identity(tmp_path, teller)
        identity.obey(Authority(1, 9, 0))
        async with _linking(teller, identity) as (_, groups):
            await _wait(lambda: teller.registration_count >= 2, "the node to turn away and look again")
            assert not groups.all()

    with MapTeller().serving() as teller:
        asyncio.run(run(teller))
