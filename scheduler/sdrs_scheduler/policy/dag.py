"""Which jobs wait for each other in a circle, and so for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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
