"""Batches per bucket, checked: all that a strategy is told of an epoch."""

# N batches, K buckets

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def checked(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """The counts as int64 [K], a new array. Raises ValueError where one is negative, or there are too many to compare.

    The strategies compare fractions of batches and buckets by products: 2 K N^2 is more than any of them.
    """
    counted = np.array(counts, dtype=np.int64)
    if counted.ndim != 1 or len(counted) == 0 or (counted < 0).any():
        raise ValueError(
            f"plan.counts must be a list of numbers of batches, each >= 0, got {counted.tolist()}; 0 is an empty bucket"
        )
    n_batches = sum(counted.tolist())
    if len(counted) * n_batches**2 >= 2**62:
        raise ValueError(
            f"plan.counts must keep buckets x batches^2 below 2^62, got {len(counted)} buckets of {n_batches} in all; "
            "orders are compared by products of 64 bits, so plan fewer of either"
        )
    return counted


def in_turn(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Bucket by bucket, int32 [N]: what an order is a permutation of."""
    return np.repeat(np.arange(len(counts), dtype=np.int32), checked(counts))
