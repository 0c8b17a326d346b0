"""Where a gang goes: on all of its nodes at once, or nowhere; and where it leaves the most room for others."""

from __future__ import annotations

from collections.abc import Callable

from sdrs_scheduler.policy.capacity import Capacity, Shape

# What may be used of a node: less than what is free where something is reserved.
Usable = Callable[[int], int]


def place(capacity: Capacity, shape: Shape, usable: Usable | None = None) -> list[int] | None:
    """The nodes for a job of that shape, now; None if it does not fit as a whole.

    Best fit: the fullest nodes that have room. So gaps are filled first, and whole nodes stay whole for those who need
    them. Among equals the first by name, so that the same view gives the same answer.
    """
    free = capacity.free_units
    fitting = capacity.roomy(shape)
    if usable is not None:
        fitting = [i for i in fitting if usable(i) >= capacity.need_units(shape, i)]
    if len(fitting) < shape.nodes:
        return None
    if shape.nodes == 1:
        return [min(fitting, key=free.__getitem__)]
    return sorted(fitting, key=free.__getitem__)[: shape.nodes]
