"""What kind of world a seed is: how many of what, and what is stored how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from sdrs_core.codes import Code


@dataclass(frozen=True, slots=True)
class Shape:
    node_count: int = 4
    controller_count: int = 2
    # Nodes share them where there are fewer.
    domain_count: int = 4
    disk_count: int = 1
    # Whole copies, unless there is a code.
    mirrors: int = 2
    code: Code | None = None
    allow_degraded: bool = False
    # Of the newest checkpoints, in a pool of their own.
    mirror_ratio: float = 0.0
    # Operators also drain, remove and add nodes and disks, change how the pool stores, and scrub.
    has_upkeep: bool = False
    # Part of what jobs save stays the same for some steps, and they refer to it.
    refers: bool = False

    @property
    def member_count(self) -> int:
        return self.code.total if self.code else self.mirrors


def shape_of(seed: int) -> Shape:
    """Every other seed stores fragments of a code, and its cluster is rebuilt while it is used."""
    chance = Random(f"{seed} shape")
    shape = _coded(chance) if seed % 2 else _mirrored(chance)
    return replace(shape, refers=Random(f"{seed} refers").random() < 0.4)


def _mirrored(chance: Random) -> Shape:
    node_count = chance.choice((3, 4, 4, 5, 6))
    return Shape(
        node_count,
        chance.choice((1, 2, 2, 3)),
        domain_count=min(4, node_count),
        mirrors=chance.choice((2, 2, 2, 3)),
        allow_degraded=chance.random() < 0.3,
    )


def _coded(chance: Random) -> Shape:
    code = chance.choice((Code(2, 1), Code(2, 1), Code(2, 2), Code(3, 2), Code(4, 2)))
    spare_domains = chance.choice((0, 1, 2, 2))
    domain_count = code.total + spare_domains
    has_upkeep = chance.random() < 0.8
    return Shape(
        min(8, domain_count + chance.choice((0, 0, 1))),
        chance.choice((1, 2, 2)),
        domain_count=min(8, domain_count),
        disk_count=chance.choice((1, 1, 2)),
        # Some begin with whole copies, and are changed to the code while they are used.
        mirrors=chance.choice((1, 1, 2)) if has_upkeep else 1,
        code=code,
        allow_degraded=chance.random() < 0.2,
        mirror_ratio=chance.choice((0.0, 0.0, 0.0, 0.4)),
        has_upkeep=has_upkeep,
    )
