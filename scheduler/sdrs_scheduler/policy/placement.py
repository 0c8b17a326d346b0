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
    fitting = fitting_nodes(capacity, shape, usable)
    if len(fitting) < shape.nodes:
        return None
    if shape.nodes == 1:
        return [min(fitting)[1]]
    fitting.sort()
    return [i for _, i in fitting[: shape.nodes]]


def fitting_nodes(capacity: Capacity, shape: Shape, usable: Usable | None = None) -> list[tuple[int, int]]:
    """The nodes that have room for a worker of that shape now, each with what is free on it."""
    free = usable or capacity.free_units.__getitem__
    suitable = capacity.suitable(shape)
    if not suitable:
        return []
    if shape.exclusive:
        return [(units, i) for i in suitable if (units := free(i)) >= capacity.need_units(shape, i)]
    need = capacity.need_units(shape, suitable[0])
    return [(units, i) for i in suitable if (units := free(i)) >= need]
