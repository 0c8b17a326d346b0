"""What has very many names is gone through range by range, and nothing is left out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from sdrs_core.backup import layout
from sdrs_storaged.control.backup import ranges
from sdrs_storaged.control.backup.ranges import in_ranges

CLUSTER = "c" * 32


def _ranges(keys: list[str]) -> list[tuple[str, set[str]]]:
    async def listed(prefix: str) -> AsyncGenerator[str, None]:
        for key in keys:
            if key.startswith(layout.objects(CLUSTER, prefix)):
                yield key

    async def run() -> list[tuple[str, set[str]]]:
        async with aclosing(in_ranges(listed)) as found:
            return [one async for one in found]

    return asyncio.run(run())


def test_every_object_is_in_one_range_and_no_range_holds_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MAX_HELD", 20)
    draw = random.Random(5)
    # Many with the same beginning, so that ranges go below the folders, too.
    hashes = [draw.choice(("", "abc", "abcd")) + draw.randbytes(32).hex() for _ in range(2000)]
    keys = [layout.object_key(CLUSTER, one[:64], f"run{number}") for number, one in enumerate(hashes)]

    found = _ranges(keys)

    assert sorted(key for _, held in found for key in held) == sorted(keys)
    assert max(len(held) for _, held in found) <= 20
    assert all(key.startswith(layout.objects(CLUSTER, prefix)) for prefix, held in found for key in held)


def test_few_objects_are_listed_once() -> None:
    keys = [layout.object_key(CLUSTER, f"{number:064x}", "run") for number in range(300)]

    assert _ranges(keys) == [("", set(keys))]
