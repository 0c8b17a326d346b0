"""Which jobs wait for each other in a circle, and so for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdrs_core.errors import InvalidArgumentError


def find_cycle(depends_on: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """The names along a circle, the first again at its end: ``("a", "b", "a")``; None if there is none.

    Names that are waited for but not in the mapping wait for nobody.
    """
    done: set[str] = set()
    for first in depends_on:
        # The way from ``first`` to here, each with what it has yet to be followed to. No recursion: chains get long.
        way: dict[str, list[str]] = {}
        if first not in done:
            way[first] = list(reversed(depends_on[first]))
        while way:
            name = next(reversed(way))
            if not way[name]:
                done.add(name)
                del way[name]
                continue
            following = way[name].pop()
            if following in way:
                names = list(way)
                return (*names[names.index(following) :], following)
            if following not in done:
                way[following] = list(reversed(depends_on.get(following, ())))
    return None


def check_acyclic(depends_on: Mapping[str, Sequence[str]]) -> None:
    """Raises with the path of the circle, if there is one."""
    cycle = find_cycle(depends_on)
    if cycle is None:
        return
    if len(cycle) == 2:
        raise InvalidArgumentError(f"job {cycle[0]} depends on itself: remove it from its depends_on", cycle=cycle[0])
    path = " → ".join(cycle)
    raise InvalidArgumentError(
        f"jobs depend on each other in a circle, none of them could ever start: {path}; remove one of these depends_on",
        cycle=path,
    )
