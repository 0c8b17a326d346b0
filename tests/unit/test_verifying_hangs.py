"""P21: a fragment whose reading hangs keeps no slot from others, and is told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from sdrs_core.checkpoints import Verdict
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto import convert
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.pacing import Background
from sdrs_storaged.node.transfers import Slots
from sdrs_storaged.rpc import verifying
from sdrs_storaged.rpc.verifying import Verifying
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.engine import Verification

HANGING, GOOD = random_id(), random_id()


class Store:
    """One of its fragments lies where the disk does not answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.begun = 0

    def verify(self, blob_id: str, *_: Any) -> Verification:
        self.begun += blob_id == HANGING
        if blob_id == HANGING:
            assert self.answers.wait(60)
        return Verification(Verdict.OK)


async def verdict(looks: Verifying, blob_id: str) -> Verdict | None:
    found = [response async for response in looks.verify(pb.VerifyFragmentRequest(blob_id=blob_id))]
    return convert.verdict_from(found[-1].verdict)


def test_a_reading_that_hangs_is_told_and_its_slot_is_free_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_STALL_SECONDS", 0.3)
    monkeypatch.setattr(verifying, "_PROGRESS_SECONDS", 0.05)

    async def run() -> None:
        store, slots, workers = Store(), Slots("verify", 1), Workers("read", 2)
        looks = Verifying(cast(Any, store), cast(Any, None), Background(lambda: False), slots=slots, workers=workers)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="its disk does not answer"):
                await verdict(looks, HANGING)
        assert store.begun == 1, "one thread at most hangs at each fragment"
        assert await verdict(looks, GOOD) is Verdict.OK
        store.answers.set()
        for _ in range(1000):
            if not looks._hung:
                break
            await asyncio.sleep(0.01)
        assert slots.taken == 0
        assert await verdict(looks, HANGING) is Verdict.OK
        workers.shutdown()

    asyncio.run(run())
