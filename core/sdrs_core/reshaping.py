"""A blob once more, whole, in another form: in the place of the old one (P2), or beside it as its mirror in another
pool. Which node gets which fragment of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import MIRROR
from sdrs_core.ids import DiskId, NodeId
from sdrs_core.redundancy import Form, Standing, standing
from sdrs_core.stocks import Stock, Targets, fragment_bytes


@dataclass(frozen=True, slots=True)
class Make:
    """``blob``: whose content it gets. ``source``: what it is made of: that blob, or its twin. ``targets``: fragment
    index and node; copies all have index 0.
    """

    blob: Blob
    form: Form
    source: Blob
    sources: tuple[Holder, ...]
    targets: tuple[tuple[int, NodeId], ...]
    is_mirror: bool = False

    @property
    def size_bytes(self) -> int:
        shaped = replace(self.blob, code=self.form.code)
        return sum(fragment_bytes(shaped, index) for index, _ in self.targets)


def plan_make(
    blob: Blob,
    form: Form,
    source: Blob,
    sources: tuple[Holder, ...],
    stocks: Mapping[NodeId, Stock],
    eligible: Set[NodeId],
    *,
    made: Iterable[Holder] = (),
    is_mirror: bool = False,
) -> Make | None:
    """None while there are not enough nodes for it. ``made``: what is there of it already, and stays."""
    made = tuple(made)
    shaped = replace(blob, code=form.code, holders=())
    taken = {(holder.node_id, holder.fragment_index) for holder in made}
    targets = Targets(shaped, form, stocks, eligible, made, taken)
    if form.code == MIRROR:
        indexes = [0] * (form.total - len(made))
    else:
        there = {holder.fragment_index for holder in made}
        indexes = [index for index in range(form.total) if index not in there]
    chosen = [(index, node_id) for index in indexes if (node_id := targets.choose(index)) is not None]
    planned = (*made, *(Holder(node_id, DiskId(""), index, "") for index, node_id in chosen))
    if not is_good_enough(form, planned, stocks, is_mirror=is_mirror):
        return None
    return Make(blob, form, source, sources, tuple(chosen), is_mirror)


def is_good_enough(form: Form, holders: Iterable[Holder], stocks: Mapping[NodeId, Stock], *, is_mirror: bool) -> bool:
    """What takes another blob's place has all its fragments, and survives the loss of any one domain. A mirror comes on
    top of the checkpoint itself: whatever can be read is better than none, and is repaired later.
    """
    holders = tuple(holders)
    domains = {h.node_id: stocks[h.node_id].domain for h in holders if h.node_id in stocks}
    found = standing(form, holders, domains)
    if is_mirror:
        return found >= Standing.READABLE
    return len(holders) >= form.total and found >= (Standing.SAFE if form.spread else Standing.FULL)
