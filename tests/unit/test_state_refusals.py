"""What cannot be stored is refused with its path, before anything is written."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from sdrs.state import encode
from sdrs.state.flatten import MAX_DEPTH
from sdrs_core.errors import UnsupportedObjectError

Point = namedtuple("Point", "x y")


class Color(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Settings:
    rate: float


class Subclass(torch.Tensor):
    pass


REFUSED = [
    (print, "make the object again"),
    (object(), "make the object again"),
    ({1, 2}, "sorted list"),
    (Point(1, 2), "_asdict"),
    (Color.RED, ".value"),
    (Settings(0.1), "asdict"),
    (defaultdict(int), "plain dict"),
    (Counter("ab"), "plain dict"),
    (bytearray(b"x"), "bytes(...)"),
    (torch.nn.Linear(1, 1), "state_dict()"),
    (np.array([object()]), "Python objects"),
    (np.array([(1, None)], "i4,O"), "Python objects"),
    (np.ma.array([1, 2], mask=[0, 1]), "MaskedArray"),
    (np.array(["a"], np.dtypes.StringDType()), "Python objects"),
    (np.rec.array([(1, 2.0)]), "recarray"),
    (torch.ones(2, 2).to_sparse(), "to_dense"),
    (torch.ones(2, device="meta"), "to_empty"),
    (torch.ones(2).as_subclass(Subclass), "to_local"),
    (torch.empty(2, dtype=torch.int4), "view(torch.uint8)"),
]


@pytest.mark.parametrize(("value", "advice"), REFUSED, ids=lambda value: type(value).__name__)
def test_an_object_that_cannot_be_stored_is_named_by_its_path(value: Any, advice: str) -> None:
    with pytest.raises(TypeError) as caught:
        encode({"fine": 1, "optimizer": [0, {"fn": value}]})
    assert isinstance(caught.value, UnsupportedObjectError)
    assert str(caught.value).startswith('state["optimizer"][1]["fn"]: ')
    assert "cannot be stored; " in str(caught.value)
    assert advice in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.filterwarnings("ignore")  # torch announces the end of its quantized tensors
def test_a_quantized_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedObjectError, match="int_repr"):
        encode(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


@pytest.mark.parametrize("key", [b"x", np.int64(1), Color.RED, (1, b"x"), frozenset(), 1j, Point(1, 2)], ids=repr)
def test_keys_of_other_types_are_refused(key: Any) -> None:
    with pytest.raises(UnsupportedObjectError, match=r'^state\["a"\].*, a key: .*keys are'):
        encode({"a": {key: 1}})


def test_paths_show_keys_as_they_are_written() -> None:
    for state, path in [
        ({0: print}, "state[0]"),
        ({"a b": {None: print}}, 'state["a b"][None]'),
        ({7**9000: print}, "state[<int>]"),
        ({(1, "x"): (print,)}, "state[(1, 'x')][0]"),
        (print, "state"),
    ]:
        with pytest.raises(UnsupportedObjectError) as caught:
            encode(state)
        assert str(caught.value).startswith(f"{path}: ")
        assert caught.value.facts["path"] == path


def test_a_state_that_contains_itself_is_refused() -> None:
    ring: dict[str, Any] = {"list": [1]}
    ring["list"].append((ring,))
    with pytest.raises(UnsupportedObjectError, match=r'^state\["list"\]\[1\]\[0\]: .*contains itself'):
        encode(ring)
    metadata: Any = OrderedDict()
    metadata._metadata = [metadata]
    with pytest.raises(UnsupportedObjectError, match=r"^state\._metadata\[0\]: .*contains itself"):
        encode(metadata)


def test_one_container_in_two_places_is_no_cycle() -> None:
    shared = [1]
    encode([shared, shared, {"again": shared}])


def nested(depth: int) -> list[Any]:
    state: list[Any] = []
    for _ in range(depth - 1):
        state = [state]
    return state


def test_depth_is_limited_without_recursion() -> None:
    encode(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(UnsupportedObjectError, match=f"inside {MAX_DEPTH} others"):
            encode(nested(depth))
