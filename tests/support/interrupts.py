"""A story about a controller, interrupted at each of its transactions in turn: it fails, or happens and is never
answered. Afterwards a new controller takes over, or whoever was interrupted tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sdrs_core.errors import UnavailableError
from tests.support.control import Harness

Prepare = Callable[[], Awaitable[Harness]]
Story = Callable[[Harness], Awaitable[None]]


def interrupt_everywhere(prepare: Prepare, story: Story, check: Story, *, lost: bool, restart: bool) -> None:
    """``check`` holds after each of them. ``lost``: it is the answer that is lost, and not the transaction."""
    transactions = asyncio.run(_count_transactions(prepare, story))
    assert transactions > 1
    for number in range(1, transactions + 1):
        try:
            asyncio.run(_interrupt(prepare, story, check, number, lost=lost, restart=restart))
        except BaseException as error:
            error.add_note(f"interrupted at transaction {number} of {transactions}")
            raise


async def _count_transactions(prepare: Prepare, story: Story) -> int:
    harness = await prepare()
    before = harness.store.txn_count
    await story(harness)
    return harness.store.txn_count - before


async def _interrupt(prepare: Prepare, story: Story, check: Story, number: int, *, lost: bool, restart: bool) -> None:
    harness = await prepare()
    if lost:
        harness.store.lose_answer_of(number)
    else:
        harness.store.fail(number, UnavailableError("the store is out of reach"))
    with suppress(UnavailableError):
        await story(harness)
    harness.store.heal()
    if restart:
        await harness.start()
    else:
        await story(harness)
    await check(harness)
