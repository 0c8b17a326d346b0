"""Which of the copies or fragments that nodes say they hold are counted, and which are kept where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import Pool
from sdrs_core.codes import MIRROR
from sdrs_core.ids import NodeId
from sdrs_core.levels import Level
from sdrs_core.redundancy import Form, Standing, share_of


def least_standing(pool: Pool) -> Standing:
    """What is acknowledged survives the loss of any one domain, unless the pool says that less will do."""
    return Standing.SAFE if pool.level is Level.L3 and not pool.allow_degraded else Standing.READABLE


def choose(
    form: Form, found: Iterable[Holder], domains: Mapping[NodeId, str], *, most_per_domain: int | None = None
) -> tuple[Holder, ...]:
    """One holder for each share that was found, no more shares than there should be, as widely spread as they allow.

    A share with few holders chooses first. Of what one domain has beyond ``most_per_domain`` nothing is chosen.
    """
    candidates: dict[Hashable, list[Holder]] = {}
    for holder in found:
        candidates.setdefault(share_of(holder, form.code), []).append(holder)
    per_domain: Counter[str] = Counter()
    chosen: list[Holder] = []

    def crowd(holder: Holder) -> int:
        return per_domain[domains.get(holder.node_id, holder.node_id)]

    while candidates and len(chosen) < form.total:
        share = min(candidates, key=lambda name: (len(candidates[name]), min(map(crowd, candidates[name]))))
        best = min(candidates.pop(share), key=crowd)
        if most_per_domain is None or crowd(best) < most_per_domain:
            per_domain[domains.get(best.node_id, best.node_id)] += 1
            chosen.append(best)
    return tuple(sorted(chosen, key=lambda holder: holder.fragment_index))


def held_places(
    form: Form, found: Iterable[Holder], domains: Mapping[NodeId, str], *, crowded: bool
) -> dict[int, NodeId]:
    """What need not be placed again, as ``redundancy.place`` takes it: share number → node.

    What one domain has beyond what the blob can do without is not kept, so that it finds a place elsewhere.
    """
    most = None if crowded else max(1, form.spare)
    chosen = choose(form, found, domains, most_per_domain=most)
    if form.code == MIRROR:
        return {number: holder.node_id for number, holder in enumerate(chosen)}
    return {holder.fragment_index: holder.node_id for holder in chosen}
