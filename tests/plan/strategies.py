"""What the tests of the strategies share: every strategy, counts to try them on, and a deviation counted plainly."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from dflash_exp.plan.interleave import (
    BlockShuffle,
    DiversityFirst,
    EarliestDeadline,
    Interleave,
    Proportional,
    QuotaRandom,
    RoundRobin,
    Sequential,
    Shuffle,
    StrideJitter,
    Tijdeman,
    WeightedRandom,
    Weights,
)

STORY = np.array([2120, 4200, 5723, 7100, 8009, 19581])
REMAINING, FIXED = DiversityFirst(Weights.remaining), DiversityFirst(Weights.fixed)
FREE_REMAINING, FREE_FIXED = WeightedRandom(Weights.remaining), WeightedRandom(Weights.fixed)
QUOTA = QuotaRandom(bound_batches=1.0, no_repeat=True, rotate=False)
ROTATED = QuotaRandom(bound_batches=1.0, no_repeat=True, rotate=True)
WITHOUT_CHANCE: list[Interleave] = [Sequential(), RoundRobin(), Proportional(), Tijdeman(), EarliestDeadline()]
BY_CHANCE: list[Interleave] = [
    Shuffle(), REMAINING, FIXED, FREE_REMAINING, FREE_FIXED, StrideJitter(0.0), StrideJitter(1.0), StrideJitter(9.0),
    BlockShuffle(7), QUOTA, ROTATED, QuotaRandom(bound_batches=2.5, no_repeat=False, rotate=False),
]  # fmt: skip
STRATEGIES = [*WITHOUT_CHANCE, *BY_CHANCE]

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=32)
UNEVEN = st.lists(st.integers(0, 3) | st.integers(0, 40) | st.integers(300, 400), min_size=1, max_size=32).filter(any)
FEW = st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any)
compiled = settings(deadline=None, max_examples=40)
"""For properties that call a kernel: its first call may compile it."""


def ordered(strategy: Interleave, counts: Sequence[int] | np.ndarray, seed: int = 0) -> np.ndarray:
    return strategy.order(counts, np.random.default_rng(seed))


def deviation(order: np.ndarray, counts: Sequence[int] | np.ndarray) -> Fraction:
    """The largest |drawn - fair share| over all prefixes and buckets, in batches."""
    drawn = np.cumsum(order[:, None] == np.arange(len(counts)), axis=0)
    fair_times_n = np.arange(1, len(order) + 1)[:, None] * np.asarray(counts)
    return Fraction(int(np.abs(len(order) * drawn - fair_times_n).max()), len(order))
