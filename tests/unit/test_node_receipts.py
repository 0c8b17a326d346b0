"""Receipts on their way: batches that fit into a message, and one bad receipt is nobody else's trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sdrs_core.checkpoints import SaveState
from sdrs_proto.limits import MAX_MESSAGE_BYTES
from sdrs_proto.v1 import membership_pb2
from sdrs_storaged.node.receipts import MAX_BATCH, ReceiptQueue


def _sent_sizes(receipts: list[membership_pb2.Receipt]) -> list[list[int]]:
    sent: list[list[int]] = []

    async def send(batch: Sequence[membership_pb2.Receipt]) -> list[SaveState]:
        sent.append([receipt.ByteSize() for receipt in batch])
        return [SaveState.PENDING] * len(batch)

    async def run() -> None:
        queue = ReceiptQueue(send)
        answers = [asyncio.create_task(queue.register(receipt)) for receipt in receipts]
        await asyncio.sleep(0)
        running = asyncio.create_task(queue.run())
        await asyncio.gather(*answers)
        running.cancel()

    asyncio.run(run())
    return sent


def test_receipts_go_in_batches() -> None:
    sent = _sent_sizes([membership_pb2.Receipt(job="small")] * 250)
    assert [len(batch) for batch in sent] == [MAX_BATCH, MAX_BATCH, 50]


def test_a_batch_of_large_receipts_fits_into_a_message() -> None:
    sent = _sent_sizes([membership_pb2.Receipt(job="x" * 250_000)] * 100)
    assert sum(map(len, sent)) == 100
    assert max(map(sum, sent)) < MAX_MESSAGE_BYTES
