"""How a blob should be stored in a pool, how well it is stored, and where its fragments go.

A *share* is what counts once towards bringing a blob back: a whole copy on a node of its own, or one fragment index of
a code, however many nodes have it. What is safe survives the loss of any one failure domain (P10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.cluster import Pool
from sdrs_core.codes import MIRROR, Code, parse_code
from sdrs_core.ids import NodeId
from sdrs_core.levels import Level


@dataclass(frozen=True, slots=True)
class Form:
    """``needed`` shares of ``total`` bring the blob back."""

    code: str
    needed: int
    total: int
    # Each in a domain of its own, or it is not stored as it should be.
    spread: bool = False

    @property
    def spare(self) -> int:
        """How many may be lost; also the most that one domain may hold."""
        return self.total - self.needed

    @property
    def least_domains(self) -> int:
        """With fewer, losing one domain may lose the blob."""
        return -(-self.total // self.spare) if self.spare else 1


def form_of(pool: Pool, size_bytes: int) -> Form:
    """How a blob of this size should be stored. What is smaller than a stripe is mirrored: its fragments would be tiny
    files.
    """
    code = pool.code
    if code is None:
        return Form(MIRROR, 1, pool.member_count)
    if size_bytes < code.stripe_bytes:
        return Form(MIRROR, 1, code.parity + 1, spread=True)
    return Form(str(code), code.data, code.total, spread=True)


def present_form(blob: Blob, pool: Pool) -> Form:
    """How a blob is stored now: as its pool wants it, or as the pool wanted it before it was changed."""
    wanted = form_of(pool, blob.size_bytes)
    if blob.code == wanted.code:
        return wanted
    code = parse_code(blob.code)
    if code is None:
        # At least what L2 promises: enough until it is coded.
        return Form(MIRROR, 1, 2)
    return Form(blob.code, code.data, code.total, spread=True)


def is_weaker(form: Form, wanted: Form) -> bool:
    """Whether what is stored like this, and has all of it, survives less than what is stored as its pool wants it."""
    return form.spare < wanted.spare or (wanted.spread and not form.spread)


def share_of(holder: Holder, code: str) -> Hashable:
    return holder.node_id if code == MIRROR else holder.fragment_index


class Standing(IntEnum):
    LOST = 0
    READABLE = 1  # but the loss of one domain may lose it
    SAFE = 2  # any one domain may be lost
    FULL = 3


def standing(form: Form, holders: Iterable[Holder], domains: Mapping[NodeId, str]) -> Standing:
    """``holders``: those that count. A node of unknown domain is one of its own."""
    places: dict[Hashable, set[str]] = {}
    for holder in holders:
        domain = domains.get(holder.node_id, f"?{holder.node_id}")
        places.setdefault(share_of(holder, form.code), set()).add(domain)
    if len(places) < form.needed:
        return Standing.LOST
    # A share that two domains have does not depend on either.
    alone = Counter(next(iter(names)) for names in places.values() if len(names) == 1)
    crowd = max(alone.values(), default=0)
    if len(places) >= form.total and (not form.spread or crowd <= 1):
        return Standing.FULL
    return Standing.SAFE if len(places) - crowd >= form.needed else Standing.READABLE


def level_of(pool: Pool, form: Form, found: Standing) -> Level:
    """The level that a blob in this form and standing is worth in its pool (I6)."""
    if found is Standing.LOST:
        return Level.NONE
    if pool.level is Level.L1 or found is Standing.READABLE:
        return Level.L1
    if pool.level is Level.L2:
        return Level.L2 if found is Standing.FULL else Level.L1
    # L3 is acknowledged while any one domain may be lost; that it is degraded is told beside the level.
    return Level.L3 if form.spread else Level.L2


def level_once_lowered(pool: Pool, reached: Level, codes: Iterable[str]) -> Level:
    """What is left of a level that was reached before an operator lowered that of the pool: L3 as long as all is coded;
    two copies are never thinned out. Failures lower nothing (I6).
    """
    if reached <= max(pool.level, Level.L2) or all(code != MIRROR for code in codes):
        return reached
    return max(pool.level, Level.L2)


def worth(pool: Pool, blobs: Iterable[Blob], domains: Mapping[NodeId, str]) -> tuple[Level, bool]:
    """The lowest level that any of ``blobs`` has with its holders on record, and whether any has less redundancy than
    its pool asks for.
    """
    level, degraded = pool.level, False
    for blob in blobs:
        form = present_form(blob, pool)
        found = standing(form, (holder for holder in blob.holders if not holder.dropping), domains)
        level = min(level, level_of(pool, form, found))
        degraded |= found < Standing.FULL or form != form_of(pool, blob.size_bytes)
    return level, degraded


def place(
    form: Form,
    members: Sequence[NodeId],
    domains: Mapping[NodeId, str],
    *,
    held: Mapping[int, NodeId] | None = None,
    avoid: Set[NodeId] = frozenset(),
    turn: int = 0,
    crowded: bool = False,
) -> dict[int, NodeId]:
    """Which member stores which share of a new blob: share number → node, as many as find a place.

    ``members``: the primary first; it takes part in every blob. ``turn`` rotates the others, so that where not all are
    needed all get their part. ``held`` is what is there already (P11). One domain gets several only when there are
    fewer domains than shares, and never more than the blob can do without (P10), unless the pool allows it to be
    ``crowded``; copies never share a node.
    """
    placed = dict(held or {})
    first, others = members[:1], list(members[1:])
    if others:
        others = [*others[turn % len(others) :], *others[: turn % len(others)]]
    order = [node for node in (*first, *others) if node not in avoid]
    per_node = Counter(placed.values())
    per_domain = Counter(domains.get(node, node) for node in placed.values())
    limit = form.total if crowded else max(1, form.spare)
    for share in range(form.total):
        if share in placed:
            continue
        fit = [
            node
            for node in order
            if per_domain[domains.get(node, node)] < limit and not (form.code == MIRROR and per_node[node])
        ]
        if not fit:
            break
        best = min(fit, key=lambda node: (per_domain[domains.get(node, node)], per_node[node], order.index(node)))
        placed[share] = best
        per_node[best] += 1
        per_domain[domains.get(best, best)] += 1
    return placed


def code_of(form: Form) -> Code | None:
    return parse_code(form.code)
