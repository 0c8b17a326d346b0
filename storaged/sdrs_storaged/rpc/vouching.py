"""What a blob is worth by what members say they hold of it: the pure part of sealing what is spread (I1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.cluster import Group, Pool
from sdrs_core.codes import MIRROR, parse_code
from sdrs_core.ids import NodeId, SaveId
from sdrs_core.placement import stable_hash
from sdrs_core.redundancy import Form, Standing, form_of, place, present_form, standing
from sdrs_core.shares import choose, held_places
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.rpc.census import holder_of
from sdrs_storaged.store.fragment import FragmentKey


@dataclass(frozen=True, slots=True)
class Vouched:
    """A blob with the holders that are counted, and what that is worth."""

    blob: Blob
    form: Form
    standing: Standing


def vouch(blob: Blob, pool: Pool, held: Mapping[str, Iterable[Holder]], domains: Mapping[NodeId, str]) -> Vouched:
    """``held``: by code. What is stored as the pool wanted it a moment ago counts as that."""
    wanted = form_of(pool, blob.size_bytes)
    found = []
    for code in {wanted.code: None} | dict.fromkeys(held):
        form = present_form(replace(blob, code=code), pool)
        chosen = choose(form, held.get(code, ()), domains)
        found.append(Vouched(replace(blob, code=code, holders=chosen), form, standing(form, chosen, domains)))
    return max(found, key=lambda vouched: vouched.standing)


def held_of(blob: Blob, save_id: SaveId, told: Iterable[tuple[NodeId, pb.HeldFragment]]) -> dict[str, list[Holder]]:
    """By code, who told that it holds something of this very blob. What differs in anything is not it."""
    wanted = (blob.id, save_id, blob.size_bytes, blob.hash)
    found: dict[str, list[Holder]] = {}
    for member, held in told:
        if (held.blob_id, held.save_id, held.source_size_bytes, held.source_hash) == wanted:
            found.setdefault(held.code, []).append(holder_of(member, held))
    return found


def keys_of(blob: Blob, pool: Pool) -> list[FragmentKey]:
    """Under which names members may have something of it."""
    code = parse_code(form_of(pool, blob.size_bytes).code)
    return [FragmentKey(blob.id, index) for index in range(code.total if code else 1)]


def lacking(
    vouched: Vouched, group: Group, pool: Pool, domains: Mapping[NodeId, str], failing: Collection[NodeId]
) -> list[tuple[int, NodeId]]:
    """What would make it safe: which fragment to give to which member that does not fail."""
    form, blob = vouched.form, vouched.blob
    held = held_places(form, blob.holders, domains, crowded=pool.allow_degraded)
    members = (group.primary, *(member for member in group.members if member != group.primary))
    places = place(
        form,
        members,
        domains,
        held=held,
        avoid=frozenset(failing),
        turn=stable_hash(blob.id),
        crowded=pool.allow_degraded,
    )
    new = [(share, node) for share, node in places.items() if share not in held]
    return [(0 if form.code == MIRROR else share, node) for share, node in new]
