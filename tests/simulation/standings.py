"""How well a blob is kept by some of its holders: worked out here anew, by the words of the levels, not by production's
own arithmetic. And what each of its fragments must be, to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from sdrs_core import checksums
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.cluster import Pool
from sdrs_core.codes import MIRROR, Code, parse_code
from sdrs_core.erasure import codec
from sdrs_core.ids import NodeId
from sdrs_core.levels import Level


def share(blob: Blob, holder: Holder) -> Hashable:
    """What counts once: a whole copy on a node, or a fragment of the code, whoever has it."""
    return holder.node_id if blob.code == MIRROR else holder.fragment_index


def needed(blob: Blob) -> int:
    code = parse_code(blob.code)
    return code.data if code else 1


def is_readable(blob: Blob, holders: Iterable[Holder]) -> bool:
    return len({share(blob, holder) for holder in holders}) >= needed(blob)


def survives_any(blob: Blob, holders: Iterable[Holder], places: Mapping[NodeId, str]) -> bool:
    """Whether it is readable without any one of the places (nodes, or failure domains) that its holders are in."""
    holders = list(holders)
    return all(
        is_readable(blob, (holder for holder in holders if places.get(holder.node_id) != place))
        for place in {places.get(holder.node_id) for holder in holders}
    )


def wanted_code(pool: Pool, blob: Blob) -> str:
    code = pool.code
    return str(code) if code and blob.size_bytes >= code.data * checksums.BLOCK_BYTES else MIRROR


def wanted_shares(pool: Pool) -> int:
    """Of a small blob."""
    return pool.parity_fragments + 1 if pool.level is Level.L3 else pool.member_count


def why_not_full(
    blob: Blob, pool: Pool, holders: Iterable[Holder], domains: Mapping[NodeId, str], domain_count: int
) -> str:
    """What it lacks of what its pool asks for; "": nothing. ``domain_count``: in how many domains it could be."""
    holders, code = list(holders), wanted_code(pool, blob)
    if blob.code != code:
        return f"it is stored as {blob.code}, its pool stores {code}"
    total = pool.member_count if code != MIRROR else wanted_shares(pool)
    count = len({share(blob, holder) for holder in holders})
    if count < total:
        return f"it has {count} of {total} fragments"
    if pool.level is not Level.L3:
        return ""
    crowd = max(Counter(domains[holder.node_id] for holder in holders).values())
    if domain_count >= total and crowd > 1 and len(holders) == total:
        return f"{crowd} of its fragments are in one domain, and there are {domain_count} domains"
    return "" if survives_any(blob, holders, domains) else "it does not survive the loss of a domain"


def why_not_worth(
    level: Level, blob: Blob, pool: Pool, holders: Iterable[Holder], domains: Mapping[NodeId, str], *, degraded: bool
) -> str:
    """I6: why it may not be said to have this level; empty if it may."""
    holders = list(holders)
    if not is_readable(blob, holders):
        return "it cannot be read"
    if level >= Level.L2 and not survives_any(blob, holders, {holder.node_id: holder.node_id for holder in holders}):
        return "it does not survive the loss of a node"
    if level >= Level.L3 and not survives_any(blob, holders, domains):
        return "it does not survive the loss of a domain"
    code = parse_code(blob.code)
    total = code.total if code else wanted_shares(pool) if wanted_code(pool, blob) == MIRROR else 2
    count = len({share(blob, holder) for holder in holders})
    return "" if level < pool.level or degraded or count >= total else f"it has {count} of {total} fragments"


def fragments_of(data: bytes, code: Code) -> list[bytes]:
    """All fragments of a blob, cut in the simplest way that there is."""
    blocks = checksums.BLOCK_BYTES
    fragments = [b""] * code.total
    for start in range(0, len(data), code.data * blocks):
        stripe = data[start : start + code.data * blocks]
        cut = [stripe[index * blocks : (index + 1) * blocks] for index in range(code.data)]
        length = len(cut[0])
        parity = [bytearray(length) for _ in range(code.parity)]
        codec(code.data, code.parity).encode([block.ljust(length, b"\0") for block in cut], [*map(memoryview, parity)])
        for index, block in enumerate([*cut, *parity]):
            fragments[index] += bytes(block)
    return fragments
