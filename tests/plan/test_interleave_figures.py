"""The published figures, the counts at the edge of what is planned, and orders that must be the same everywhere."""

from hashlib import sha256

import numpy as np
import pytest

from dflash_exp.plan.diagnosis import exhausted_at, max_prefix_deviation, runs, window_tv
from dflash_exp.plan.interleave import (
    BlockShuffle,
    EarliestDeadline,
    Interleave,
    Proportional,
    QuotaRandom,
    RoundRobin,
    Sequential,
    Shuffle,
    StrideJitter,
    Tijdeman,
)
from tests.lengths import full_or
from tests.plan.strategies import (
    FIXED,
    FREE_FIXED,
    FREE_REMAINING,
    QUOTA,
    REMAINING,
    ROTATED,
    STORY,
    STRATEGIES,
    WITHOUT_CHANCE,
    ordered,
)


@pytest.mark.parametrize(
    ("strategy", "longest_run", "mean_run_b5", "deviation", "tv", "exhausted"),
    [
        (Shuffle(), 11.7, 1.72, 98.6, 0.082, 0.9996),
        (FREE_REMAINING, 11.7, 1.72, 98.6, 0.082, 0.9996),
        (REMAINING, 3664, 1.23, 2326, 0.129, 0.921),
        (FIXED, 6102, 1.45, 3587, 0.183, 0.785),
        (FREE_FIXED, 52, 1.73, 156, 0.086, 0.980),
        (RoundRobin(), 11573, 2.445, 6871, 0.358, 0.272),
        (Proportional(), 3, 1.23, 1.14, 0.0092, 0.9998),
        (StrideJitter(0.5), 3.8, 1.25, 1.66, 0.0106, 0.9998),
        (StrideJitter(1.0), 4.3, 1.33, 2.09, 0.0135, 0.9998),
        (Tijdeman(), 2, 1.01, 0.90, 0.0089, 0.9999),
        (EarliestDeadline(), 2, 1.05, 0.794, 0.0091, 0.9999),
        (QUOTA, 1, 1.00, 1.00, 0.0139, 0.9997),
        (ROTATED, 1.24, 1.00, 1.72, 0.0139, 0.9996),
        (BlockShuffle(32), 9.5, 1.67, 5.7, 0.028, 0.9998),
    ],
    ids=str,
)
def test_the_published_figures_come_out(
    strategy: Interleave, longest_run: float, mean_run_b5: float, deviation: float, tv: float, exhausted: float
) -> None:
    seen = []
    for seed in range(1 if strategy in WITHOUT_CHANCE else 6):
        order = ordered(strategy, STORY, seed)
        bucket, lengths = runs(order)
        window = window_tv(order, STORY)
        assert window is not None
        ends = [end for end in exhausted_at(order, STORY) if end is not None]
        deviated = max_prefix_deviation(order, STORY)
        seen.append([float(lengths.max()), float(lengths[bucket == 5].mean()), deviated, window["mean"], min(ends)])
    mean = np.mean(seen, axis=0)
    deviation_within = 0.006 if strategy in WITHOUT_CHANCE else 0.45 if deviation in (98.6, 156) else 0.15
    assert mean[0] == pytest.approx(longest_run, rel=0.25)
    assert mean[1] == pytest.approx(mean_run_b5, abs=0.02)
    assert mean[2] == pytest.approx(deviation, rel=deviation_within)
    assert mean[3] == pytest.approx(tv, rel=0.05)
    assert mean[4] == pytest.approx(exhausted, abs=0.02 if deviation > 100 else 0.0006)


@pytest.mark.parametrize(
    ("strategy", "worst"),
    [(Proportional(), 2.34), (StrideJitter(1.0), 5.09), (Tijdeman(), 0.955), (EarliestDeadline(), 0.815)],
)
def test_proportional_and_stride_orders_miss_the_quota_at_other_counts(strategy: Interleave, worst: float) -> None:
    rng = np.random.default_rng(0)
    several = [np.exp(rng.uniform(0, 8, rng.integers(2, 13))).astype(int) + 1 for _ in range(60)]
    found = max(max_prefix_deviation(ordered(strategy, counts), counts) for counts in several)
    assert found == pytest.approx(worst, abs=0.01)


EDGES = {
    "a bucket of none and one of one": [0, 1, 700, 40],
    "equal counts": [100] * 7,
    "one bucket of nearly all": [1, 99_990, 9],
    "ones": [1] * 20,
    "200 buckets": np.random.default_rng(0).integers(0, 60, 200).tolist(),
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)


@every_strategy
@pytest.mark.parametrize("counts", EDGES.values(), ids=EDGES)
def test_counts_at_the_edge_are_drawn_in_full(strategy: Interleave, counts: list[int]) -> None:
    assert np.bincount(ordered(strategy, counts), minlength=len(counts)).tolist() == counts


@pytest.mark.parametrize("counts", EDGES.values(), ids=EDGES)
def test_bounds_hold_at_the_edge(counts: list[int]) -> None:
    found = [
        max_prefix_deviation(ordered(strategy, counts), np.array(counts))
        for strategy in (EarliestDeadline(), Tijdeman(), QUOTA)
    ]
    assert found[0] <= found[1] < 1
    assert found[2] <= 1 + 1e-9


@pytest.mark.slow
@every_strategy
def test_millions_of_batches_are_drawn_in_full(strategy: Interleave) -> None:
    counts = STORY * full_or(10_000_000, 1_000_000) // STORY.sum()
    order = ordered(strategy, counts)
    assert np.bincount(order).tolist() == counts.tolist()
    if isinstance(strategy, Tijdeman | EarliestDeadline | QuotaRandom):
        assert max_prefix_deviation(order, counts) < 5


SHA256 = [
    "7f77cbd2c8f6",  # Sequential
    "dcc179976d17",  # RoundRobin
    "6e47a1babfe3",  # Proportional
    "119831fc9c11",  # Tijdeman
    "6b78f213ee0d",  # EarliestDeadline
    "153bbc029333",  # Shuffle
    "470e317dea3e",  # DiversityFirst, remaining
    "1121203ccf32",  # DiversityFirst, fixed
    "c42d4dfe72df",  # WeightedRandom, remaining
    "184c200a68ee",  # WeightedRandom, fixed
    "d55f60159a7b",  # StrideJitter 0
    "7f3b6ff003c5",  # StrideJitter 1
    "6a6082afd164",  # StrideJitter 9
    "8c94865955a5",  # BlockShuffle 7
    "b9fe1fd36050",  # QuotaRandom 1, no_repeat
    "1309413b997c",  # QuotaRandom 1, no_repeat, rotate
    "3a6ac3773928",  # QuotaRandom 2.5
]
"""Of each strategy's order of the story's counts at seed 0. Where one changes, raise ALGORITHM_VERSION."""


@pytest.mark.parametrize(("strategy", "begins"), list(zip(STRATEGIES, SHA256, strict=True)), ids=str)
def test_an_order_is_the_same_on_every_platform(strategy: Interleave, begins: str) -> None:
    assert sha256(ordered(strategy, STORY).astype("<i4").tobytes()).hexdigest().startswith(begins)


def test_sequential_is_as_far_from_even_as_it_gets() -> None:
    assert max_prefix_deviation(ordered(Sequential(), STORY), STORY) == pytest.approx(11377, abs=1)
