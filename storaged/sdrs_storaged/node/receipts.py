"""Receipts on their way to the controller, in batches (P3): while one call is under way, the next ones gather."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sdrs_core.checkpoints import SaveState
from sdrs_core.errors import SdrsError, UnavailableError
from sdrs_proto.limits import MAX_MESSAGE_BYTES
from sdrs_proto.v1 import membership_pb2

MAX_BATCH = 100
# A shard of many blobs has a large receipt, and a batch is one message.
MAX_BATCH_BYTES = MAX_MESSAGE_BYTES // 2
_MAX_WAITING = 10_000

# The generated message is passed through unopened: this queue only counts and orders.
ReceiptMessage = membership_pb2.Receipt
Send = Callable[[Sequence[ReceiptMessage]], Awaitable[Sequence[SaveState | SdrsError]]]


class ReceiptQueue:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: asyncio.Queue[tuple[ReceiptMessage, asyncio.Future[SaveState]]] = asyncio.Queue(_MAX_WAITING)

    async def register(self, receipt: ReceiptMessage) -> SaveState:
        """The save's state once the receipt is in; raises why it was refused."""
        answer: asyncio.Future[SaveState] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((receipt, answer))
        except asyncio.QueueFull:
            raise UnavailableError("too many receipts wait for the controller: try again") from None
        return await answer

    async def run(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            batch_bytes = batch[0][0].ByteSize()
            while len(batch) < MAX_BATCH and batch_bytes < MAX_BATCH_BYTES and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
                batch_bytes += batch[-1][0].ByteSize()
            try:
                outcomes: Sequence[Any] = await self._send([receipt for receipt, _ in batch])
            except SdrsError as error:
                outcomes = [error] * len(batch)
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                if answer.done():
                    continue
                if isinstance(outcome, SdrsError):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
