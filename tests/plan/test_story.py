"""Which claims of the story hold: each is measured, and the table is in the README as it comes out here.

`python -m pytest tests/plan/test_story.py` checks them; `python tests/plan/test_story.py` prints the table.
The story is told of six buckets of 2,120 to 19,581 batches; it gives the first and the last two, the middle three are
ours. A figure is the mean over `SEEDS` orders unless it says otherwise; w_b is a bucket's share of the batches.
"""

# N batches, K buckets

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dflash_exp.plan.diagnosis import exhausted_at, max_prefix_deviation, pick_rate, runs
from dflash_exp.plan.epoch import draw_order
from dflash_exp.plan.interleave import DiversityFirst, Interleave, Shuffle, StrideJitter, WeightedRandom, Weights
from dflash_exp.plan.seeds import Seeds

STORY = np.array([2120, 4200, 5723, 7100, 8009, 19581])
SHARE = STORY / STORY.sum()
SMALLEST, LARGEST = 0, 5
SEEDS = 60
DIVERSITY, DIVERSITY_FIXED = DiversityFirst(Weights.remaining), DiversityFirst(Weights.fixed)
WEIGHTED, STRIDE = WeightedRandom(Weights.remaining), StrideJitter(1.0)


@dataclass(frozen=True)
class Measured:
    """What was said, what is so, and whether the figures show it."""

    said: str
    verdict: str
    shown: bool


@cache
def orders(strategy: Interleave) -> list[np.ndarray]:
    return [draw_order(strategy, STORY, Seeds(0, 0, 0, seed), 0) for seed in range(SEEDS)]


def mean_of(figure: Callable[[np.ndarray], float], strategy: Interleave) -> float:
    return float(np.mean([figure(order) for order in orders(strategy)]))


def first_rates(order: np.ndarray, percent: int = 10) -> np.ndarray:
    """How often each bucket is drawn in the first `percent` %, 1 = fair."""
    return np.array(pick_rate(order, STORY, percent), dtype=float)


def ends(order: np.ndarray) -> np.ndarray:
    """The share of the epoch at which each bucket's last batch is drawn."""
    return np.array(exhausted_at(order, STORY), dtype=float)


def runs_of_largest(order: np.ndarray) -> np.ndarray:
    bucket, lengths = runs(order)
    return lengths[bucket == LARGEST]


def correlation(order: np.ndarray) -> float:
    """The largest autocorrelation, either sign, of "this batch is of the largest bucket" over lags 1 to 200."""
    is_largest = (order == LARGEST) - SHARE[LARGEST]
    power = np.abs(np.fft.rfft(is_largest, 2**17)) ** 2  # zeros behind, as many as the lags at least
    by_lag = np.fft.irfft(power)
    return float(np.abs(by_lag[1:201] / by_lag[0]).max())


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def change(relative: float) -> str:
    return f"{100 * relative:+.0f} %"


def without_repeats(weights: np.ndarray) -> np.ndarray:
    """How often each bucket is drawn, in the long run, if never twice running and else in proportion to fixed weights.

    The chain goes from a to b with w_b/(1 - w_a) and is reversible: pi_a w_b/(1 - w_a) = pi_b w_a/(1 - w_b) for
    pi_b = w_b (1 - w_b)/(1 - sum w^2).
    """
    return weights * (1 - weights) / (1 - (weights**2).sum())


def smallest_at_8_percent() -> Measured:
    after_largest = SHARE[SMALLEST] / (1 - SHARE[LARGEST])
    law = without_repeats(SHARE)[SMALLEST]
    seen = SHARE[SMALLEST] * mean_of(lambda o: first_rates(o)[SMALLEST], DIVERSITY)
    verdict = (
        f"no: {percent(after_largest)} is its chance right after bucket 5; over the first tenth it is {percent(seen)}, "
        f"{change(seen / SHARE[SMALLEST] - 1)} (closed form {percent(law)})"
    )
    shown = round(after_largest, 3) == 0.078 and abs(seen - law) < 0.002 and seen < 0.06
    return Measured("`diversity_first` draws bucket 0 at 7.8 %, +73 %", verdict, shown)


def largest_at_36_percent() -> Measured:
    law = without_repeats(SHARE)[LARGEST]
    seen = SHARE[LARGEST] * mean_of(lambda o: first_rates(o)[LARGEST], DIVERSITY)
    verdict = (
        f"no: {percent(seen)} over the first tenth, {change(seen / SHARE[LARGEST] - 1)} (closed form {percent(law)}); "
        f"the {percent(SHARE[LARGEST] / (1 - SHARE[LARGEST]), 0)} behind the 36 % is an odds, not a share"
    )
    return Measured("it draws bucket 5 at 36 %, -14 %", verdict, abs(seen - law) < 0.006 and seen < 0.34)


def small_over_large_under() -> Measured:
    rates = np.mean([first_rates(order, 1) for order in orders(DIVERSITY)], axis=0)
    verdict = (
        f"yes: over the first hundredth buckets 0 to 4 at {rates[:5].min():.2f} to {rates[:5].max():.2f} times "
        f"the fair rate, bucket 5 at {rates[LARGEST]:.2f}"
    )
    return Measured(
        "small buckets are drawn too often, the large one too rarely, from the first batch on",
        verdict,
        bool((rates[:5] > 1.1).all() and rates[LARGEST] < 0.85),
    )


def smallest_runs_out() -> Measured:
    at = np.mean([ends(order) for order in orders(DIVERSITY)], axis=0)[:5]
    fixed = mean_of(lambda o: ends(o)[SMALLEST], DIVERSITY_FIXED)
    verdict = (
        f"no: weights of what remains mend themselves among the small ones, all five end at {percent(at.min())} to "
        f"{percent(at.max())}; with fixed weights yes, at {percent(fixed)}"
    )
    shown = np.ptp(at) < 0.002 and 0.75 < fixed < 0.82 < at.min()
    return Measured("bucket 0 runs out way before the others", verdict, bool(shown))


def tail_of_20_percent() -> Measured:
    tails = [int(runs(order)[1][-1]) / len(order) for order in orders(DIVERSITY)]
    tail = float(np.mean(tails))
    needed = int(np.ceil(STORY[LARGEST] / (STORY[:LARGEST].sum() + 1)))
    verdict = f"the tail is real and avoidable (a longest run of {needed} is possible), but {percent(tail)}"
    shown = 0.06 < min(tails) <= max(tails) < 0.1 and needed == 1
    return Measured("the tail is bucket 5 alone, about 20 % of the epoch", verdict, shown)


def weighted_runs() -> Measured:
    law = 1 / (1 - SHARE[LARGEST])
    weighted, shuffled = (mean_of(lambda o: float(runs_of_largest(o).mean()), s) for s in (WEIGHTED, Shuffle()))
    verdict = (
        f"yes for bucket 5 ({weighted:.2f}, closed form 1/(1 - w) = {law:.2f}), but by what remains it has the law of "
        f"the shuffle that was blamed ({shuffled:.2f})"
    )
    return Measured("`weighted_random` has runs of 1.72", verdict, max(abs(weighted - law), abs(shuffled - law)) < 0.01)


def long_runs_of_a_shuffle() -> Measured:
    share = mean_of(lambda o: float((runs_of_largest(o) >= 3).mean()), Shuffle())
    every = mean_of(lambda o: len(o) / int((runs_of_largest(o) >= 3).sum()), Shuffle())
    law = SHARE[LARGEST] ** 2
    verdict = (
        f"yes: {percent(share)} of bucket 5's runs are of 3 or more (closed form w^2 = {percent(law)}), "
        f"one every {every:.0f} batches"
    )
    return Measured("shuffling often gives runs of 3 or 4 long batches", verdict, abs(share - law) < 0.005)


def periodic_resets() -> Measured:
    largest = max(correlation(order) for order in orders(Shuffle()))
    noise = 4.5 / np.sqrt(STORY.sum())
    verdict = f"no: a shuffle is white noise, no autocorrelation above {largest:.3f} at lags 1 to 200 in {SEEDS} orders"
    return Measured("shuffling causes periodic resets", verdict, largest < noise)


def all_end_together() -> Measured:
    strides = np.mean([(1 - ends(order)) * STORY for order in orders(STRIDE)], axis=0)
    shuffled = mean_of(lambda o: ends(o)[SMALLEST], Shuffle())
    stride, shuffle = (mean_of(lambda o: max_prefix_deviation(o, STORY), s) for s in (STRIDE, Shuffle()))
    verdict = (
        f"yes, each within {strides.max():.1f} of its strides on average, but so does a plain shuffle (bucket 0 at "
        f"{percent(shuffled, 2)}); what it buys is a deviation of {stride:.1f} batches instead of {shuffle:.0f}"
    )
    shown = strides.max() < 1 and shuffled > 0.999 and stride < 3 < 50 < shuffle
    return Measured("in a stride order all buckets end together", verdict, bool(shown))


CLAIMS = [
    smallest_at_8_percent,
    largest_at_36_percent,
    small_over_large_under,
    smallest_runs_out,
    tail_of_20_percent,
    weighted_runs,
    long_runs_of_a_shuffle,
    periodic_resets,
    all_end_together,
]


def table() -> list[str]:
    """The lines of the README's table."""
    rows = [f"| {measured.said} | {measured.verdict} |" for measured in (claim() for claim in CLAIMS)]
    return ["| the story says | measured |", "|---|---|", *rows]


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_figures_show_the_verdict_on(claim: Callable[[], Measured]) -> None:
    measured = claim()
    assert measured.shown, f"{measured.said}: {measured.verdict}"


def test_the_closed_form_is_what_the_chain_without_repeats_settles_at() -> None:
    step = np.where(np.eye(len(SHARE), dtype=bool), 0, SHARE / (1 - SHARE[:, None]))
    np.testing.assert_allclose(step.sum(axis=1), 1)
    settled = without_repeats(SHARE)
    assert settled.sum() == pytest.approx(1)
    np.testing.assert_allclose(settled @ step, settled, rtol=1e-12)


def test_fixed_weights_draw_at_the_closed_form_while_all_buckets_last() -> None:
    rates = np.mean([first_rates(order, 50) * SHARE for order in orders(DIVERSITY_FIXED)], axis=0)
    np.testing.assert_allclose(rates, without_repeats(SHARE), rtol=0.01)


def test_the_readme_has_the_table_as_it_is_measured() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in table() if line not in readme] == []


if __name__ == "__main__":
    print("\n".join(table()))
