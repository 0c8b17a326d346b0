"""P21: how many writes a primary coordinates at once, by how many others each of them needs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.errors import UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.transfers import Slots, Tickets, WriteIntent
from sdrs_storaged.rpc import writing
from sdrs_storaged.rpc.writing import Writing


@dataclass
class Surroundings:
    """Groups, replication and recall of a primary that admits everything."""

    relays: int

    async def admit(self, *_: object, as_primary: bool) -> None:
        return None

    def relay_count(self, intent: WriteIntent) -> int:
        return self.relays

    def is_spread(self, intent: WriteIntent) -> bool:
        return True


def _writing(slots: Slots, member_count: int, relays: int) -> Writing:
    around, unused = cast(Any, Surroundings(relays)), cast(Any, None)
    return Writing(
        unused,
        around,
        around,
        unused,
        around,
        Tickets(),
        slots=slots,
        member_slots=Slots("member", member_count),
        workers=unused,
        member_workers=unused,
    )


def _request() -> pb.OpenWriteRequest:
    return pb.OpenWriteRequest(
        intent=pb.WriteIntent(save_id=random_id(), blob_id=random_id(), size_bytes=1, job="j", group_id="g", epoch=1)
    )


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(1, 64), st.integers(0, 20))
def test_a_primary_never_asks_for_more_slots_of_members_than_it_has_for_others(
    write_count: int, member_count: int, relays: int
) -> None:
    service = _writing(Slots("write", write_count), member_count, relays)

    async def run() -> int:
        opened = 0
        with suppress(UnavailableError):
            while opened <= write_count:
                await service.open(_request())
                opened += 1
        return opened

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_SLOT_SECONDS", 0.001)
        opened = asyncio.run(run())
    assert 1 <= opened <= write_count  # one goes on, whatever it needs
    assert opened == 1 or opened * relays <= member_count
    if not relays:
        assert opened == write_count


def test_the_next_write_waits_for_those_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_SLOT_SECONDS", 0.05)
    service = _writing(Slots("write", 8), 16, 5)

    async def run() -> None:
        for _ in range(2):  # ten fragments to others
            await service.open(_request())
        with pytest.raises(UnavailableError, match="write slots are busy"):
            await service.open(_request())

    asyncio.run(run())
