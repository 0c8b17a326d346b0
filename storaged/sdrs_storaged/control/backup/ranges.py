"""All of something that has hexadecimal names, a range of names at a time: no more is held at once than fits (I10)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

MAX_HELD = 200_000
_DIGITS = "0123456789abcdef"


async def in_ranges(
    names: Callable[[str], AsyncGenerator[str, None]], prefix: str = ""
) -> AsyncGenerator[tuple[str, set[str]], None]:
    """Each range, by what its names begin with, and what ``names`` gives for that.

    As long as that is few, there is one range; each that has too many is cut in sixteen, and asked for again.
    """
    found: set[str] = set()
    async with aclosing(names(prefix)) as coming:
        async for name in coming:
            found.add(name)
            if len(found) > MAX_HELD:
                break
    if len(found) <= MAX_HELD:
        yield prefix, found
        return
    del found
    for digit in _DIGITS:
        async with aclosing(in_ranges(names, prefix + digit)) as ranges:
            async for one in ranges:
                yield one
