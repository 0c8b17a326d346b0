"""What a transaction does, as pure functions: conditions and operations in, events out.

A store looks up the state, asks here, and then only has to carry out the events. So all stores decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sdrs_storaged.control.meta.store import Compare, Delete, DeletePrefix, Entry, Event, EventKind, Op, Put, Target

Lookup = Callable[[str], Entry | None]
KeysUnder = Callable[[str], Iterable[str]]


def holds(compare: Compare, entry: Entry | None) -> bool:
    match compare.target:
        case Target.PRESENCE:
            return (entry is not None) == compare.expected
        case Target.VALUE:
            return entry is not None and entry.value == compare.expected
        case Target.VERSION:
            return (entry.version if entry else 0) == compare.expected
        case Target.REVISION:
            return (entry.mod_revision if entry else 0) == compare.expected


def events_of(then: Sequence[Op], revision: int, lookup: Lookup, keys_under: KeysUnder) -> tuple[Event, ...]:
    """What ``then`` changes if it is carried out as ``revision``; empty if it changes nothing.

    No put overlaps another operation (``limits``), so looking at the state before the transaction is enough.
    """
    events: list[Event] = []
    deleted: set[str] = set()

    def delete(key: str) -> None:
        if key not in deleted:
            deleted.add(key)
            events.append(Event(EventKind.DELETE, Entry(key, b"", 0, revision, 0)))

    for op in then:
        match op:
            case Put(key, value):
                old = lookup(key)
                created, version = (old.create_revision, old.version + 1) if old else (revision, 1)
                events.append(Event(EventKind.PUT, Entry(key, value, created, revision, version)))
            case Delete(key):
                if lookup(key):
                    delete(key)
            case DeletePrefix(prefix):
                for key in keys_under(prefix):
                    delete(key)
    return tuple(events)
