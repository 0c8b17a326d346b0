"""Which arrays share a blob.

Each blob costs a record in the MetaStore, an fsync and a round trip, so they must stay few whatever the state is; and a
large array must be alone, so that it can be restored as a view that keeps nothing else in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

BIG_BYTES = 16 << 20
PACK_BYTES = 64 << 20
# Blob 0 is read before all others, because it has the index: what shares it is kept small.
FIRST_PACK_BYTES = 16 << 20
# With names of at most MAX_TENSOR_NAME_CHARS this keeps a header below safetensors' limit of 100 MB.
PACK_TENSORS = 100_000
SHARES = 256


def plan(sizes_bytes: Sequence[int], first_pack_bytes: int = FIRST_PACK_BYTES) -> tuple[tuple[int, ...], ...]:
    """Positions in ``sizes_bytes`` for each blob; the first blob is the one with the index and may get no array.

    Two packs in a row hold more than a SHARES-th of the total together, and a big array holds as much alone: so there
    are at most 2 * SHARES blobs and a few, plus one for each PACK_TENSORS arrays.
    """
    share_bytes = sum(sizes_bytes) // SHARES
    big_bytes = max(BIG_BYTES, share_bytes)
    pack_bytes = max(PACK_BYTES, share_bytes)
    packs: list[list[int]] = [[]]
    bigs: list[tuple[int, ...]] = []
    room_bytes = first_pack_bytes
    for position, size_bytes in enumerate(sizes_bytes):
        if size_bytes >= big_bytes:
            bigs.append((position,))
            continue
        if size_bytes > room_bytes or len(packs[-1]) == PACK_TENSORS:
            packs.append([])
            room_bytes = pack_bytes
        packs[-1].append(position)
        room_bytes -= size_bytes
    return (*map(tuple, packs), *bigs)
