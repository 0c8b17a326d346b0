"""When nodes fail and come back: the same for every policy, from the seed alone."""

from __future__ import annotations

import math
from random import Random


class NodeFailures:
    """Each node fails by a clock of its own, with exponential times between repair and failure."""

    def __init__(self, seed: int, node_count: int, mtbf_seconds: float, repair_seconds: float) -> None:
        self._rate = 0.0 if math.isinf(mtbf_seconds) else 1.0 / mtbf_seconds
        self._randoms = [Random(f"{seed}/node/{index}") for index in range(node_count)] if self._rate else []
        self.repair_seconds = repair_seconds

    def next_failure(self, node: int, up_since: float) -> float:
        if not self._rate:
            return math.inf
        return up_since + self._randoms[node].expovariate(self._rate)
