"""Whether gradients agree more within a length bucket than across: cosines of consecutive steps, and at one point.

In: each step's cosine with the one before, and the buckets of both. Out: a contrast with an interval. Descriptive only:
a cosine of two gradients of single batches is mostly noise, and so is the share of negative ones. A contrast above 0
says that a step undoes more of the step before where the bucket changed.

Only steps whose batches are all of one bucket count. Noise falls with a batch's tokens, so buckets differ in their
cosines without any conflict. Hence strata: a pair of buckets (b, c) is held against the mean of its own two within:
  whiplash = sum over b < c of n_bc ((within_b + within_c) / 2 - across_bc) / sum of n_bc
over the pairs of which all three means are known. The interval is of 500 bootstraps of blocks of 20 steps.
"""

# T steps, K buckets, L blocks

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BLOCK_STEPS, N_BOOTSTRAPS = 20, 500
MIXED = -1
"""Stands for the bucket of a step that holds several."""


class Whiplash:
    """Of one run, step by step."""

    def __init__(self, n_buckets: int, seed: int) -> None:
        self._n_buckets, self._seed = n_buckets, seed
        self._cosines: list[float] = []
        self._pairs: list[int] = []
        """Bucket before times K plus bucket now, of every step that counts."""
        self._last = MIXED

    def add(self, bucket: int, cosine: float | None) -> None:
        """Take a step in, by its one bucket or MIXED."""
        if cosine is not None and bucket != MIXED and self._last != MIXED:
            self._cosines.append(cosine)
            self._pairs.append(self._last * self._n_buckets + bucket)
        self._last = bucket

    def figures(self) -> dict[str, Any] | None:
        """Contrast, 95 % interval, mean cosines within and across, share of negatives; None where there is no pair of
        each kind."""
        cosine_T, pair_T = np.array(self._cosines), np.array(self._pairs, dtype=int)
        sums, counts = in_blocks(cosine_T, pair_T, self._n_buckets)
        contrast = contrast_of(sums.sum(0), counts.sum(0))
        if contrast is None:
            return None
        rng = np.random.Generator(np.random.PCG64(self._seed))
        drawn = rng.integers(len(sums), size=(N_BOOTSTRAPS, len(sums)))
        again = [contrast_of(sums[blocks].sum(0), counts[blocks].sum(0)) for blocks in drawn]
        known = [value for value in again if value is not None]
        within_T = pair_T // self._n_buckets == pair_T % self._n_buckets
        return {
            "contrast": contrast,
            "interval": [float(q) for q in np.quantile(known, [0.025, 0.975])] if known else None,
            "within": float(cosine_T[within_T].mean()),
            "across": float(cosine_T[~within_T].mean()),
            "negative_share": float((cosine_T < 0).mean()),
            "n_steps": len(cosine_T),
        }

    def state(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"cosines": list(self._cosines), "pairs": list(self._pairs), "last": self._last}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._cosines, self._pairs, self._last = list(state["cosines"]), list(state["pairs"]), state["last"]


def in_blocks(cosine_T: np.ndarray, pair_T: np.ndarray, n_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts of each block of steps by ordered pair of buckets: [L, K, K] each."""
    n_blocks = -(-len(cosine_T) // BLOCK_STEPS)
    place_T = np.arange(len(cosine_T)) // BLOCK_STEPS * n_buckets**2 + pair_T
    size, shape = n_blocks * n_buckets**2, (n_blocks, n_buckets, n_buckets)
    return np.bincount(place_T, cosine_T, size).reshape(shape), np.bincount(place_T, minlength=size).reshape(shape)


def contrast_of(sum_KK: np.ndarray, count_KK: np.ndarray) -> float | None:
    """The stratified contrast of sums and counts by ordered pair; None where no pair has all its means."""
    both, n_KK = sum_KK + sum_KK.T, count_KK + count_KK.T
    within, n_within = np.diag(sum_KK), np.diag(count_KK)
    row, column = np.nonzero(np.triu(n_KK, 1) * np.outer(n_within, n_within))
    if not len(row):
        return None
    mean_K = within / np.maximum(n_within, 1)
    n = n_KK[row, column]
    difference = (mean_K[row] + mean_K[column]) / 2 - both[row, column] / n
    return float((difference * n).sum() / n.sum())


def conflict(sketches: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """Cosines of the buckets' gradients at one parameter vector, by sketches of each: bucket by bucket."""
    buckets = sorted(sketches)
    directions = [np.array(sketches[bucket]) for bucket in buckets]
    units = np.array([sketch / max(float(np.linalg.norm(sketch)), np.finfo(float).tiny) for sketch in directions])
    return {"buckets": buckets, "cosines": (units @ units.T).tolist()}
