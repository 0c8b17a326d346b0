"""States to save, and whether two are the same to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np

MIB = 1 << 20


def make_state(seed: int, size_bytes: int = 3 * MIB) -> dict[str, Any]:
    """Large enough for the data channel by default; other bytes for each seed."""
    random = np.random.default_rng(seed)
    return {
        "weights": random.integers(0, 256, size_bytes, dtype=np.uint8),
        "layers": [random.standard_normal(7), random.standard_normal((3, 5)).astype(np.float32)],
        "seed": seed,
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)
