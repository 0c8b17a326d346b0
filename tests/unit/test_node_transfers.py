"""P21: slots and tickets. None is ever lost, and who waits for one keeps nobody else from finishing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from sdrs_core.errors import PermissionDeniedError, UnavailableError
from sdrs_core.ids import BlobId, random_id
from sdrs_proto.limits import TICKET_SECONDS
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.transfers import HeavySlot, ReadIntent, Slots, Tickets
from sdrs_storaged.rpc.storage_service import StorageService

INTENT = ReadIntent(BlobId("a" * 32), 0, 0, 0)


def test_a_slot_is_handed_over_in_the_order_of_coming() -> None:
    async def run() -> None:
        slots = Slots("write", 1)
        await slots.take(1)
        order: list[int] = []

        async def wait(number: int) -> None:
            await slots.take(5)
            order.append(number)
            # As a transfer on the data channel does it.
            threading.Thread(target=slots.give).start()

        waiting = [asyncio.create_task(wait(number)) for number in range(5)]
        await asyncio.sleep(0)
        slots.give()
        await asyncio.gather(*waiting)
        assert order == [0, 1, 2, 3, 4]
        await slots.take(5)
        assert slots.taken == 1

    asyncio.run(run())


def test_who_gives_up_waiting_takes_no_slot_with_him() -> None:
    async def run() -> None:
        slots = Slots("write", 1)
        await slots.take(1)
        with pytest.raises(UnavailableError, match="all its 1 write slots are busy"):
            await slots.take(0.01)
        hung_up = asyncio.create_task(slots.take(5))
        await asyncio.sleep(0)
        hung_up.cancel()
        await asyncio.gather(hung_up, return_exceptions=True)
        slots.give()
        assert slots.taken == 0

    asyncio.run(run())


def test_a_slot_that_comes_together_with_the_hanging_up_is_given_back() -> None:
    async def run() -> None:
        slots = Slots("write", 1)
        await slots.take(1)
        waiting = asyncio.create_task(slots.take(5))
        await asyncio.sleep(0)
        slots.give()
        asyncio.get_running_loop().call_soon(waiting.cancel)  # right after the hand-over, before the waiter runs
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        await slots.take(1)
        assert slots.taken == 1

    asyncio.run(run())


def test_a_draining_node_sends_those_who_wait_away() -> None:
    async def run() -> None:
        slots = Slots("read", 1)
        await slots.take(1)
        waiting = asyncio.create_task(slots.take(30))
        await asyncio.sleep(0)
        drained = asyncio.create_task(asyncio.to_thread(slots.drain, 5))
        with pytest.raises(UnavailableError, match="shutting down"):
            await waiting
        with pytest.raises(UnavailableError, match="shutting down"):
            await slots.take(30)
        slots.give()
        assert await drained

    asyncio.run(run())


def test_the_slots_of_tickets_that_nobody_used_come_back() -> None:
    """Clients that die between their ticket and their connection must not close the node for all others."""
    now = 0.0

    async def run() -> None:
        nonlocal now
        reads = Slots("read", 2)
        tickets = Tickets(lambda: now)
        unused = cast("Any", None)
        names = ["writing", "sealing", "pulling", "uploading", "verifying", "read_workers", "looks"]
        parts = dict.fromkeys(names, unused)
        service = StorageService(unused, unused, unused, unused, tickets, reads=reads, repair_reads=reads, **parts)
        request = pb.OpenReadRequest(blob_id=random_id())
        for _ in range(2):
            await service.open_read(request)
        now += TICKET_SECONDS + 1
        fresh = (await service.open_read(request)).ticket
        assert reads.taken == 1
        assert tickets.redeem(fresh)[1] is reads
        with pytest.raises(PermissionDeniedError):
            tickets.redeem(fresh)

    asyncio.run(run())


def test_a_heavy_transfer_waits_for_as_many_slots_as_it_needs_and_nobody_overtakes_it() -> None:
    async def run() -> None:
        slots = Slots("write", 4)
        await slots.take(1, weight=3)
        order: list[str] = []

        async def wait(name: str, weight: int) -> None:
            await slots.take(5, weight)
            order.append(name)

        waiting = [asyncio.create_task(wait(name, weight)) for name, weight in (("heavy", 3), ("light", 1))]
        await asyncio.sleep(0.01)
        assert order == []  # one slot is free, and it is the heavy one's turn
        slots.give(3)
        await asyncio.gather(*waiting)
        assert order == ["heavy", "light"]
        assert slots.taken == 4
        HeavySlot(slots, 3).give()
        assert slots.taken == 1

    asyncio.run(run())


def test_who_waits_behind_a_heavy_transfer_goes_on_when_that_gives_up() -> None:
    async def run() -> None:
        slots = Slots("write", 4)
        await slots.take(1, weight=3)
        heavy = asyncio.create_task(slots.take(0.05, weight=3))
        await asyncio.sleep(0)
        light = asyncio.create_task(slots.take(5))
        with pytest.raises(UnavailableError):
            await heavy
        await light
        assert slots.taken == 4

    asyncio.run(run())
