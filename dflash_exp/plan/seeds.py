"""Random streams, keyed by name, seed and epoch and never shared.

Two streams with different names are independent even at the same seed, so that drawing more from one moves no
other, and epoch 7 can be built without the six before it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Seeds:
    """One seed for each thing that is drawn, so that each can be varied alone."""

    init: int
    """The drafter's first weights."""
    data: int
    """The composition of the batches, and which batch of a bucket comes i-th."""
    anchors: int
    """The anchors of every sequence."""
    order: int
    """The order of the buckets."""

    def __post_init__(self) -> None:
        for name, seed in asdict(self).items():
            if seed < 0:
                raise ValueError(f"seeds.{name} must be >= 0, got {seed}; give any whole number from 0")


def named_rng(name: str, seed: int, epoch: int) -> np.random.Generator:
    """The stream of that name, seed and epoch: the same numbers on every platform."""
    key = hashlib.sha256(f"{name}/{seed}/{epoch}".encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(key, "little"))))
