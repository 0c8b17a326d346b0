"""Which troubles with members reach the controller, and how often."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.cluster import Group
from sdrs_core.errors import AlreadyExistsError, DeadlineExceededError, SdrsError, StaleEpochError, UnavailableError
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_storaged.node.reports import MemberReports, MemberTrouble

MEMBER = NodeId("n2")


def _group(epoch: int = 1) -> Group:
    return Group(GroupId("g"), PoolName("p"), epoch, (NodeId("n1"), MEMBER), NodeId("n1"))


def _sent(*noted: tuple[Group, SdrsError]) -> list[MemberTrouble]:
    sent: list[MemberTrouble] = []

    async def run() -> None:
        async def send(trouble: MemberTrouble) -> None:
            sent.append(trouble)

        reports = MemberReports(send)
        for group, error in noted:
            await asyncio.to_thread(reports.note, group, MEMBER, error)
        running = asyncio.create_task(reports.run())
        for _ in range(10):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(run())
    return sent


def test_a_member_is_reported_once_at_a_time_for_each_epoch() -> None:
    gone, late = UnavailableError("gone"), DeadlineExceededError("late")
    sent = _sent((_group(1), gone), (_group(1), late), (_group(2), late))
    assert [(trouble.epoch, trouble.is_slow, trouble.detail) for trouble in sent] == [
        (1, False, "gone"),
        (2, True, "late"),
    ]


@pytest.mark.parametrize(
    "error",
    [
        StaleEpochError("the member knows a later epoch"),
        AlreadyExistsError("it has another blob of this name"),
        UnavailableError("all its 16 member slots are busy", slots="member"),
    ],
)
def test_a_member_that_is_not_to_blame_is_not_reported(error: SdrsError) -> None:
    assert not _sent((_group(), error))


def test_who_was_reported_is_spared_for_a_while_at_this_epoch() -> None:
    now = 0.0

    async def run() -> None:
        nonlocal now

        async def send(trouble: MemberTrouble) -> None:
            raise UnavailableError("the controller is away")

        reports = MemberReports(send, lambda: now)
        running = asyncio.create_task(reports.run())
        reports.note(_group(1), MEMBER, UnavailableError("gone"))
        assert reports.is_spared(_group(1), MEMBER)
        assert not reports.is_spared(_group(2), MEMBER)
        now += 60
        assert not reports.is_spared(_group(1), MEMBER)
        await asyncio.sleep(0)
        assert not running.done()
        running.cancel()

    asyncio.run(run())


def test_a_member_without_room_is_left_out_for_a_while_whatever_the_epoch_and_is_not_reported() -> None:
    now = 0.0

    async def run() -> None:
        nonlocal now
        reports = MemberReports(_refuse_to_send, lambda: now)
        reports.note_full(MEMBER)
        assert reports.is_full(MEMBER)
        assert not reports.is_spared(_group(), MEMBER)
        now += 60
        assert not reports.is_full(MEMBER)

    asyncio.run(run())


async def _refuse_to_send(trouble: MemberTrouble) -> None:
    raise AssertionError(trouble)
