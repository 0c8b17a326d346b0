"""Where ``dcp.async_save`` copies a state: memory that is kept, because fresh memory costs several times the copy."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

State = dict[str, Any]


class Ticket:
    """Whoever has it has the warm memory, until it is given back or let go."""

    def __init__(self) -> None:
        self.is_over = False


class Staging:
    """One state at a time has the warm memory. If it is still being sent when the next one comes, that gets fresh
    memory, as it would from DCP itself: nobody waits, and nothing that is being sent is overwritten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: weakref.ref[Ticket] | None = None
        self._shape: Any = None
        self._warm: State = {}

    def copy(self, state: State) -> tuple[State, Ticket | None]:
        """A copy of ``state``; its ticket is to be kept for as long as the copy is needed."""
        with self._lock:
            holder = self._holder() if self._holder else None
            ticket = Ticket() if holder is None or holder.is_over else None
            if ticket:
                self._holder = weakref.ref(ticket)
        if ticket is None:
            return _copied(state, _memory_for(state)), None
        shape = _shape_of(state)
        if shape != self._shape:
            self._shape, self._warm = None, {}  # before the new one is made
            self._warm = _memory_for(state)
            self._shape = shape
        return _copied(state, self._warm), ticket


def _memory_for(state: State) -> State:
    made: State = _create_cpu_state_dict(state, pin_memory=torch.cuda.is_available())
    return made


def _copied(state: State, memory: State) -> State:
    copy: State = _copy_state_dict(state, memory, type_check=False)
    return copy


def _shape_of(state: State) -> list[Any]:
    """What must be the same for the memory of one state to take another."""
    flat, _ = flatten_state_dict(state)
    return [(name, _shape_of_value(value)) for name, value in flat.items()]


def _shape_of_value(value: Any) -> Any:
    if hasattr(value, "to_local"):  # a DTensor, whose module has moved with torch's versions
        return (value.shape, value.dtype, value.placements, value.device_mesh, value.to_local().shape)
    if isinstance(value, torch.Tensor):
        return (type(value), value.shape, value.dtype)
    return type(value)


staging = Staging()
