"""Every strategy draws every bucket as often as it has batches; the figures of each are those of its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.plan.diagnosis import exhausted_at, max_prefix_deviation, pick_rate, runs, window_tv
from dflash_exp.plan.interleave import DiversityFirst, Interleave, Shuffle, StrideJitter, Weights, option_name

STORY = np.array([2120, 4200, 5723, 7100, 8009, 19581])
REMAINING, FIXED = DiversityFirst(Weights.remaining), DiversityFirst(Weights.fixed)
STRATEGIES = [Shuffle(), REMAINING, FIXED, StrideJitter(0.0), StrideJitter(0.5), StrideJitter(1.0), StrideJitter(9.0)]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def ordered(strategy: Interleave, counts: list[int] | np.ndarray, seed: int = 0) -> np.ndarray:
    return strategy.order(counts, np.random.default_rng(seed))


@every_strategy
@given(counts=COUNTS, seed=st.integers(0, 99))
def test_every_bucket_is_drawn_exactly_as_often_as_it_has_batches(
    strategy: Interleave, counts: list[int], seed: int
) -> None:
    order = ordered(strategy, counts, seed)
    assert order.dtype == np.int32
    assert np.bincount(order, minlength=len(counts)).tolist() == counts


@every_strategy
@given(counts=COUNTS, seed=st.integers(0, 99))
def test_an_order_is_a_pure_function_of_counts_and_generator(
    strategy: Interleave, counts: list[int], seed: int
) -> None:
    given_counts = np.array(counts)
    first = ordered(strategy, given_counts, seed)
    np.random.seed(seed)
    np.testing.assert_array_equal(first, ordered(strategy, given_counts, seed))
    assert given_counts.tolist() == counts


@every_strategy
def test_another_generator_gives_another_order(strategy: Interleave) -> None:
    assert not np.array_equal(ordered(strategy, [40, 50, 60], 0), ordered(strategy, [40, 50, 60], 1))


@every_strategy
@pytest.mark.parametrize("counts", [[-1, 3], [[1, 2], [3, 4]]])
def test_counts_that_are_no_numbers_of_batches_are_refused(strategy: Interleave, counts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^plan\.counts must be a list of numbers of batches, each >= 0, got"):
        ordered(strategy, counts)


@given(COUNTS, st.integers(0, 99))
def test_diversity_first_repeats_a_bucket_only_when_no_other_is_left(counts: list[int], seed: int) -> None:
    for strategy in (REMAINING, FIXED):
        order = ordered(strategy, counts, seed)
        for slot in np.flatnonzero(np.diff(order) == 0):
            assert set(order[slot:].tolist()) == {order[slot]}


def test_diversity_first_draws_the_first_two_slots_by_the_stated_weights() -> None:
    counts = [1, 2, 5]
    pairs = [tuple(ordered(REMAINING, counts, seed)[:2].tolist()) for seed in range(4000)]
    share = {pair: pairs.count(pair) / len(pairs) for pair in set(pairs)}
    wanted = {(a, b): counts[a] / 8 * counts[b] / (8 - counts[a]) for a in range(3) for b in range(3) if a != b}
    assert share.keys() == wanted.keys()
    assert max(abs(share[pair] - wanted[pair]) for pair in wanted) < 0.03


def test_fixed_weights_stay_until_a_bucket_runs_out() -> None:
    counts = [1, 1, 6]
    orders = [ordered(FIXED, counts, seed) for seed in range(4000)]
    third = [order[2] for order in orders if order[0] == 2 and order[1] == 0]
    assert set(third) == {1, 2}
    assert abs(third.count(2) / len(third) - 6 / 7) < 0.03


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 99))
def test_stride_without_jitter_places_a_bucket_in_every_stride_of_its_own(counts: list[int], seed: int) -> None:
    order = ordered(StrideJitter(0.0), counts, seed)
    assert max_prefix_deviation(order, np.array(counts)) <= len(counts)


def test_stride_jitter_wraps_and_does_not_pile_up_at_the_ends() -> None:
    counts = [50, 500, 5000]
    firsts = np.mean([ordered(StrideJitter(5.0), counts, seed)[:55] == 0 for seed in range(60)])
    lasts = np.mean([ordered(StrideJitter(5.0), counts, seed)[-55:] == 0 for seed in range(60)])
    assert firsts == pytest.approx(50 / 5550, rel=0.5)
    assert lasts == pytest.approx(50 / 5550, rel=0.5)


def test_wide_jitter_comes_near_a_shuffle() -> None:
    deviations = [max_prefix_deviation(ordered(StrideJitter(j), STORY), STORY) for j in (1.0, 100.0, 1e6)]
    assert deviations[0] < 3 < deviations[1] < 40 < deviations[2]


@pytest.mark.parametrize("jitter", [-1, float("nan"), float("inf")])
def test_a_jitter_without_meaning_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match=r"^interleave\.jitter_strides must be >= 0, got"):
        StrideJitter(jitter)


@pytest.mark.parametrize(
    ("strategy", "longest_run", "mean_run_b5", "deviation", "tv", "exhausted"),
    [
        (Shuffle(), 11.7, 1.72, 98.6, 0.082, 0.9996),
        (REMAINING, 3664, 1.23, 2326, 0.129, 0.921),
        (FIXED, 6102, 1.45, 3587, 0.183, 0.785),
        (StrideJitter(0.5), 3.8, 1.25, 1.66, 0.0106, 0.9998),
        (StrideJitter(1.0), 4.3, 1.33, 2.09, 0.0135, 0.9998),
    ],
    ids=str,
)
def test_the_published_figures_come_out(
    strategy: Interleave, longest_run: float, mean_run_b5: float, deviation: float, tv: float, exhausted: float
) -> None:
    seen = []
    for seed in range(6):
        order = ordered(strategy, STORY, seed)
        bucket, lengths = runs(order)
        ends = [end for end in exhausted_at(order, STORY) if end is not None]
        window = window_tv(order, STORY)
        assert window is not None
        deviated = max_prefix_deviation(order, STORY)
        seen.append([float(lengths.max()), float(lengths[bucket == 5].mean()), deviated, window["mean"], min(ends)])
    mean = np.mean(seen, axis=0)
    assert mean[0] == pytest.approx(longest_run, rel=0.25)
    assert mean[1] == pytest.approx(mean_run_b5, abs=0.02)
    assert mean[2] == pytest.approx(deviation, rel=0.45 if isinstance(strategy, Shuffle) else 0.15)
    assert mean[3] == pytest.approx(tv, rel=0.05)
    assert mean[4] == pytest.approx(exhausted, abs=0.02 if deviation > 1000 else 0.0006)


def test_diversity_first_picks_the_smallest_bucket_too_often_and_the_largest_too_rarely() -> None:
    drawn = [pick_rate(ordered(REMAINING, STORY, seed), STORY, 10) for seed in range(6)]
    rates = np.array(drawn, dtype=np.float64).mean(axis=0)
    assert rates[0] == pytest.approx(1.27, abs=0.08)
    assert rates[5] == pytest.approx(0.79, abs=0.02)


def test_one_word_names_class_and_option() -> None:
    assert [option_name(strategy) for strategy in (STRATEGIES[0], FIXED, STRATEGIES[3])] == [
        "shuffle",
        "diversity_first",
        "stride_jitter",
    ]
