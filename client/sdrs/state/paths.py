"""Where something is in a state: for the error that names it, and for the tensor that is named after it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from sdrs.state.container import RESERVED_NAMES
from sdrs_core.errors import InvalidArgumentError, UnsupportedObjectError

MAX_TENSOR_NAME_CHARS = 120
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Attribute:
    """A step to an attribute, where other steps are keys and positions."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Path:
    """A linked list of steps, so that a walk pays for rendering only where it needs the text."""

    parent: Path | None = None
    step: object = None

    def steps(self) -> list[object]:
        steps: list[object] = []
        path = self
        while path.parent is not None:
            steps.append(path.step)
            path = path.parent
        return steps[::-1]

    def __str__(self) -> str:
        return "state" + "".join(_render(step) for step in self.steps())

    def tensor_name(self) -> str:
        return ".".join(_shown(step, str) for step in self.steps()) or "state"

    def name_prefix(self) -> str:
        """What the names of all tensors below begin with."""
        return "".join(f"{_shown(step, str)}." for step in self.steps())


def _render(step: object) -> str:
    if isinstance(step, Attribute):
        return f".{step.name}"
    return f"[{json.dumps(step, ensure_ascii=False) if isinstance(step, str) else _shown(step, repr)}]"


class TensorNames:
    """Makes names unique within a shard, and short and plain enough for any reader of safetensors."""

    def __init__(self) -> None:
        self._taken: set[str] = set(RESERVED_NAMES)
        self._uses: dict[str, int] = {}

    def unique_all(self, wishes: Sequence[str]) -> list[str]:
        """The same for many, which most of the time may stay as they are."""
        distinct = set(wishes)
        if (
            len(distinct) == len(wishes)
            and self._taken.isdisjoint(distinct)
            and all(map(str.isascii, distinct))
            and max(map(len, distinct), default=0) <= MAX_TENSOR_NAME_CHARS
        ):
            self._taken |= distinct
            return list(wishes)
        return [self.unique(wish) for wish in wishes]

    def unique(self, wish: str) -> str:
        if not wish.isascii():
            wish = wish.encode("utf-8", "replace").decode()  # a lone surrogate is not JSON for other readers
        wish = wish[-MAX_TENSOR_NAME_CHARS:]
        name = wish
        while name in self._taken:
            self._uses[wish] = self._uses.get(wish, 1) + 1
            name = f"{wish}#{self._uses[wish]}"
        self._taken.add(name)
        return name


def refuse(path: Path | str, value: object, advice: str | None = None) -> NoReturn:
    """Raise the error for an object that cannot be stored."""
    refuse_as(
        path, f"{_short(_shown(value, reprlib.repr))} of type {type(value).__qualname__}", advice or _advice(value)
    )


def refuse_as(path: Path | str, what: str, advice: str) -> NoReturn:
    """The same, for things whose own text would be long or slow to make (tensors), or is not the point."""
    raise UnsupportedObjectError(f"{path}: {what} cannot be stored; {advice}", path=path)


def refuse_target(path: Path | str, given: str, expected: str) -> NoReturn:
    """Raise the error for an array that cannot take what was saved at its place."""
    raise InvalidArgumentError(f"{path}: {given} was given to restore into, the checkpoint needs {expected}", path=path)


def _shown(value: object, render: Callable[[object], str]) -> str:
    try:
        return render(value)
    except ValueError:  # Python refuses to print whole numbers of more than 4300 digits
        return f"<{type(value).__name__}>"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _advice(value: object) -> str:
    if isinstance(value, Enum):
        return "store its .value or .name"
    if isinstance(value, tuple):
        return "store tuple(...) or, for a namedtuple, ._asdict()"
    if hasattr(value, "__dataclass_fields__"):
        return "store dataclasses.asdict(...) of it"
    if isinstance(value, set | frozenset):
        return "store it as a sorted list"
    if isinstance(value, dict | list | str | bytes | int | float):
        return f"store it as a plain {type(value).__mro__[-2].__name__}"
    if isinstance(value, bytearray | memoryview):
        return "store bytes(...) of it"
    if callable(getattr(value, "state_dict", None)):
        return "store its state_dict()"
    return "store arrays, dicts, lists, tuples and plain values, and make the object again from those"
