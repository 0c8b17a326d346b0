"""Nodes and blobs for the pure decisions of repair, and what carries them out on paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import MIRROR, Code
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.redundancy import Form
from sdrs_core.remedies import Copy, Decision, Forget, Trim
from sdrs_core.repair import Patience, decide_repair
from sdrs_core.reshaping import Make
from sdrs_core.stocks import Stock

MIB = 1 << 20
DISK = DiskId("d" * 32)
OTHER_DISK = DiskId("e" * 32)
PATIENCE = Patience(seconds=60, last_copy_seconds=30)
FOUR_TWO = Form("4+2", 4, 6, spread=True)
SIX = [f"n{number}" for number in range(6)]


def stock(name: str, **given: object) -> Stock:
    known = Stock(
        NodeId(name),
        f"domain of {name}",
        Liveness.UP,
        frozenset({DISK}),
        room_bytes=1000 * MIB,
        capacity_bytes=1000 * MIB,
    )
    return replace(known, **given)  # type: ignore[arg-type]


def gone(name: str, **given: object) -> Stock:
    return stock(name, liveness=Liveness.DOWN, down_for_seconds=1e6, **given)


def code_form(code: Code) -> Form:
    return Form(str(code), code.data, code.total, spread=True)


def hold(name: str, index: int = 0, *, dropping: bool = False, disk: DiskId = DISK) -> Holder:
    return Holder(NodeId(name), disk, index, f"hash {index}", dropping)


def coded(places: Mapping[int, str] | Iterable[str], *, code: str = "4+2", size_bytes: int = 8 * MIB) -> Blob:
    """``places``: who has which fragment."""
    of_index = places.items() if isinstance(places, Mapping) else enumerate(places)
    holders = tuple(hold(name, index) for index, name in of_index)
    return Blob(BlobId("b" * 32), 0, size_bytes, "hash", code, holders)


def copies(*names: str, size_bytes: int = MIB) -> Blob:
    return Blob(BlobId("b" * 32), 0, size_bytes, "hash", MIRROR, tuple(hold(name) for name in names))


def decide(blob: Blob, *stocks: Stock, form: Form = FOUR_TWO, **given: object) -> Decision:
    nodes = {one.id: one for one in stocks}
    settings = {"eligible": nodes.keys(), "patience": PATIENCE} | given
    return decide_repair(blob, nodes, form=form, **settings)  # type: ignore[arg-type]


def targets(decision: Decision) -> dict[int, str]:
    return {copy.fragment_index: copy.target for copy in decision.copies}


def writable_disks(one: Stock) -> list[DiskId]:
    return sorted(one.disks - one.failed_disks - one.draining_disks - one.retired_disks)


def applied(
    blob: Blob, action: Copy | Trim | Forget | Make | None, nodes: Mapping[NodeId, Stock] | None = None
) -> Blob:
    """The blob's record once it is done."""
    disk_of = {name: writable_disks(one)[0] for name, one in (nodes or {}).items() if writable_disks(one)}
    if isinstance(action, Copy):
        made = hold(action.target, action.fragment_index, disk=disk_of.get(action.target, DISK))
        if replace(made, disk_id=DISK, dropping=True) in blob.holders:
            return blob  # P14: nothing goes on record there before the drop is through
        others = tuple(h for h in blob.holders if (h.node_id, h.fragment_index) != (made.node_id, made.fragment_index))
        return replace(blob, holders=(*others, made))
    if isinstance(action, Trim | Forget):
        return replace(blob, holders=tuple(h for h in blob.holders if h != action.holder))
    assert isinstance(action, Make)
    holders = tuple(hold(node_id, index, disk=disk_of.get(node_id, DISK)) for index, node_id in action.targets)
    return replace(blob, id=BlobId("c" * 32), code=action.form.code, holders=holders)
