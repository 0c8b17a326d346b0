"""Who stores which share of a blob that comes in, and whether what is durable of it is enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import Group, Pool
from sdrs_core.codes import MIRROR, Code, parse_code
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.placement import stable_hash
from sdrs_core.redundancy import Form, form_of, place, standing
from sdrs_core.shares import least_standing


@dataclass(frozen=True, slots=True)
class Assignment:
    """``places``: share → member, with what some hold already (P11), which ``held`` names."""

    group: Group
    pool: Pool
    form: Form
    domains: Mapping[NodeId, str]
    places: Mapping[int, NodeId]
    held: Mapping[int, NodeId]

    @property
    def code(self) -> Code | None:
        return parse_code(self.form.code)

    @property
    def new(self) -> dict[int, NodeId]:
        """What is to be written now."""
        return {share: node for share, node in self.places.items() if share not in self.held}

    @property
    def others(self) -> dict[int, NodeId]:
        """What is to be sent on."""
        return {share: node for share, node in self.new.items() if node != self.group.primary}

    def suffices(self, shares: Iterable[int]) -> bool:
        """Whether the blob may be acknowledged with these shares, each where it is placed (I1)."""
        is_mirror = self.form.code == MIRROR
        holders = [Holder(self.places[share], DiskId(""), 0 if is_mirror else share, "") for share in shares]
        return standing(self.form, holders, self.domains) >= least_standing(self.pool)


def assign(
    group: Group,
    pool: Pool,
    domains: Mapping[NodeId, str],
    blob_id: BlobId,
    size_bytes: int,
    *,
    held: Mapping[int, NodeId],
    failing: Collection[NodeId],
) -> Assignment:
    """``failing``: members that would only cost time, and that are left out where the others are enough."""
    form = form_of(pool, size_bytes)
    members = (group.primary, *(member for member in group.members if member != group.primary))
    if not form.spread:
        present = [member for member in members if member not in failing]
        return Assignment(group, pool, form, domains, dict(enumerate(present)), {})
    # The turn is by chance and the same for every try: where not all are needed, all get their part.
    turn, crowded = stable_hash(blob_id), pool.allow_degraded

    def placed(avoid: frozenset[NodeId]) -> Assignment:
        places = place(form, members, domains, held=held, avoid=avoid, turn=turn, crowded=crowded)
        return Assignment(group, pool, form, domains, places, held)

    without = placed(frozenset(failing))
    return without if without.suffices(without.places) else placed(frozenset())
