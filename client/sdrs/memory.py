"""Large memory: anonymous, page-aligned, in huge pages where the kernel has them; and many small objects at once."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PAGE_BYTES = 4096


def allocate(size_bytes: int) -> memoryview:
    """At least ``size_bytes`` of zeroed memory, up to the end of its last page; it lives as long as a view of it."""
    # Private: Python's default is shared memory, which gets no huge pages and stays shared after a fork.
    memory = mmap.mmap(-1, max(PAGE_BYTES, round_up(size_bytes)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def round_up(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


@contextmanager
def uncollected() -> Iterator[None]:
    """While a state of many arrays is taken apart or put together: nothing of it is garbage, and to look through
    hundreds of thousands of objects again and again takes as long as all the rest.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
