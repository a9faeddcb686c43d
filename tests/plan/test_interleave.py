"""What every strategy holds to, and the rules of those that bound no deviation."""

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dflash_exp.plan.counts import checked
from dflash_exp.plan.diagnosis import max_prefix_deviation, pick_rate
from dflash_exp.plan.interleave import (
    BlockShuffle,
    DiversityFirst,
    Interleave,
    Proportional,
    RoundRobin,
    Sequential,
    Shuffle,
    StrideJitter,
    WeightedRandom,
    option_name,
)
from tests.plan.strategies import (
    BY_CHANCE,
    COUNTS,
    FIXED,
    FREE_FIXED,
    FREE_REMAINING,
    QUOTA,
    REMAINING,
    STORY,
    STRATEGIES,
    UNEVEN,
    WITHOUT_CHANCE,
    compiled,
    deviation,
    ordered,
)

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
SEEDS = st.integers(0, 99)


@every_strategy
@compiled
@given(counts=COUNTS | UNEVEN, seed=SEEDS)
def test_every_bucket_is_drawn_exactly_as_often_as_it_has_batches(
    strategy: Interleave, counts: list[int], seed: int
) -> None:
    order = ordered(strategy, counts, seed)
    assert order.dtype == np.int32
    assert np.bincount(order, minlength=len(counts)).tolist() == counts


@every_strategy
@compiled
@given(counts=COUNTS, seed=SEEDS)
def test_an_order_is_a_pure_function_of_counts_and_generator(
    strategy: Interleave, counts: list[int], seed: int
) -> None:
    given_counts = np.array(counts)
    first = ordered(strategy, given_counts, seed)
    np.random.seed(seed)
    np.testing.assert_array_equal(first, ordered(strategy, given_counts, seed))
    np.testing.assert_array_equal(first, ordered(strategy, counts, seed))
    assert given_counts.tolist() == counts


@pytest.mark.parametrize("strategy", BY_CHANCE, ids=str)
def test_another_generator_gives_another_order(strategy: Interleave) -> None:
    orders = [ordered(strategy, [40, 50, 60], seed) for seed in range(5)]
    assert not any(np.array_equal(one, other) for one, other in pairwise(orders))


@pytest.mark.parametrize("strategy", WITHOUT_CHANCE, ids=str)
def test_a_strategy_without_chance_asks_nothing_of_the_generator(strategy: Interleave) -> None:
    rng = np.random.default_rng(3)
    strategy.order([40, 50, 60], rng)
    assert rng.random() == np.random.default_rng(3).random()


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if not isinstance(s, StrideJitter)], ids=str)
@compiled
@given(counts=UNEVEN, empty=st.lists(st.integers(0, 32), max_size=4), seed=SEEDS)
def test_empty_buckets_are_skipped(strategy: Interleave, counts: list[int], empty: list[int], seed: int) -> None:
    with_empty = list(counts)
    for place in empty:
        with_empty.insert(place, 0)
    full = np.flatnonzero(with_empty)
    order = ordered(strategy, [n for n in counts if n > 0], seed)
    np.testing.assert_array_equal(full[order], ordered(strategy, with_empty, seed))


@every_strategy
def test_a_single_bucket_is_drawn_throughout(strategy: Interleave) -> None:
    assert ordered(strategy, [0, 9, 0]).tolist() == [1] * 9
    assert ordered(strategy, [1]).tolist() == [0]


@every_strategy
@pytest.mark.parametrize("counts", [[-1, 3], [[1, 2], [3, 4]], []])
def test_counts_that_are_no_numbers_of_batches_are_refused(strategy: Interleave, counts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^plan\.counts must be a list of numbers of batches, each >= 0, got"):
        ordered(strategy, counts)


def test_counts_reach_a_kernel_in_one_layout() -> None:
    frozen = np.arange(12, dtype=np.int64)
    frozen.flags.writeable = False
    for counts in (frozen, frozen[::3], frozen.astype(np.uint8), [1, 2]):
        flags = checked(counts).flags
        assert flags.c_contiguous and flags.writeable


def test_counts_whose_products_would_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^plan\.counts must keep buckets x batches\^2 below 2\^62, got 2 buckets of"):
        ordered(Proportional(), [2**30, 2**30])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StrideJitter(-1), "jitter_strides must be >= 0, got -1;"),
        (lambda: StrideJitter(float("nan")), "jitter_strides must be >= 0, got nan;"),
        (lambda: StrideJitter(float("inf")), "jitter_strides must be >= 0, got inf;"),
        (lambda: BlockShuffle(0), "block_batches must be >= 1, got 0;"),
        (lambda: DiversityFirst("both"), "weights must be remaining or fixed, got both;"),  # type: ignore[arg-type]
        (lambda: WeightedRandom("both"), "weights must be remaining or fixed, got both;"),  # type: ignore[arg-type]
    ],
)
def test_a_parameter_without_meaning_is_refused(make: Callable[[], Interleave], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        make()
    assert str(raised.value).startswith(f"interleave.{message}")
    assert "\n" not in str(raised.value)


def test_one_word_names_class_and_option() -> None:
    assert [option_name(strategy) for strategy in (Shuffle(), FIXED, StrideJitter(1.0), QUOTA)] == [
        "shuffle",
        "diversity_first",
        "stride_jitter",
        "quota_random",
    ]


def test_the_strategies_are_imported_without_a_compiler() -> None:
    said = "import sys, dflash_exp.plan.interleave; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said]).returncode == 0


def test_sequential_goes_bucket_by_bucket() -> None:
    assert ordered(Sequential(), [2, 0, 1, 3]).tolist() == [0, 0, 2, 3, 3, 3]


def test_round_robin_cycles_over_the_buckets_that_still_have_batches() -> None:
    assert ordered(RoundRobin(), [2, 4, 1]).tolist() == [0, 1, 2, 0, 1, 1, 1]


def test_proportional_draws_at_the_middle_of_every_stride_and_ties_go_to_the_lower_index() -> None:
    # positions in strides of N: 1/2 for the first, 1/4 3/4 for the second, 1/6 1/2 5/6 for the third
    assert ordered(Proportional(), [1, 2, 3]).tolist() == [2, 1, 0, 2, 1, 2]


@compiled
@given(COUNTS, SEEDS)
def test_diversity_first_repeats_a_bucket_only_when_no_other_is_left(counts: list[int], seed: int) -> None:
    for strategy in (REMAINING, FIXED):
        order = ordered(strategy, counts, seed)
        for slot in np.flatnonzero(np.diff(order) == 0):
            assert set(order[slot:].tolist()) == {order[slot]}


def orders_of(strategy: Interleave, counts: list[int], n: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    return [tuple(strategy.order(counts, rng).tolist()) for _ in range(n)]


def test_diversity_first_draws_the_first_two_slots_by_the_stated_weights() -> None:
    counts = [1, 2, 5]
    pairs = [order[:2] for order in orders_of(REMAINING, counts, 4000)]
    share = {pair: pairs.count(pair) / len(pairs) for pair in set(pairs)}
    wanted = {(a, b): counts[a] / 8 * counts[b] / (8 - counts[a]) for a in range(3) for b in range(3) if a != b}
    assert share.keys() == wanted.keys()
    assert max(abs(share[pair] - wanted[pair]) for pair in wanted) < 0.03


@pytest.mark.parametrize(("strategy", "wanted"), [(FIXED, 6 / 7), (FREE_FIXED, 6 / 7), (FREE_REMAINING, 5 / 6)])
def test_fixed_weights_stay_until_a_bucket_runs_out(strategy: Interleave, wanted: float) -> None:
    third = [order[2] for order in orders_of(strategy, [1, 1, 6], 8000) if order[:2] == (2, 0)]
    assert set(third) == {1, 2}
    assert abs(third.count(2) / len(third) - wanted) < 0.025


@pytest.mark.parametrize("strategy", [Shuffle(), FREE_REMAINING, StrideJitter(1e6), BlockShuffle(6)], ids=str)
def test_all_orders_are_equally_likely(strategy: Interleave) -> None:
    orders = orders_of(strategy, [1, 2, 3], 6000)
    seen = [orders.count(order) for order in set(orders)]
    assert len(seen) == 60
    assert chisquare(seen).pvalue > 1e-3


def test_not_all_orders_are_equally_likely_where_weights_are_fixed() -> None:
    orders = orders_of(FREE_FIXED, [1, 2, 3], 6000)
    assert chisquare([orders.count(order) for order in set(orders)]).pvalue < 1e-9


class HalfPhase(np.random.Generator):
    """Draws 1/2, whatever is asked."""

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        return np.full(size, 0.5)


@compiled
@given(COUNTS | UNEVEN)
def test_stride_without_jitter_at_phase_one_half_is_proportional(counts: list[int]) -> None:
    half = HalfPhase(np.random.PCG64(0))
    np.testing.assert_array_equal(StrideJitter(0.0).order(counts, half), ordered(Proportional(), counts))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), SEEDS)
def test_stride_without_jitter_places_a_bucket_in_every_stride_of_its_own(counts: list[int], seed: int) -> None:
    assert max_prefix_deviation(ordered(StrideJitter(0.0), counts, seed), np.array(counts)) <= len(counts)


def test_stride_jitter_wraps_and_does_not_pile_up_at_the_ends() -> None:
    counts = [50, 500, 5000]
    firsts = np.mean([ordered(StrideJitter(5.0), counts, seed)[:55] == 0 for seed in range(60)])
    lasts = np.mean([ordered(StrideJitter(5.0), counts, seed)[-55:] == 0 for seed in range(60)])
    assert firsts == pytest.approx(50 / 5550, rel=0.5)
    assert lasts == pytest.approx(50 / 5550, rel=0.5)


def test_wide_jitter_comes_near_a_shuffle() -> None:
    deviations = [max_prefix_deviation(ordered(StrideJitter(j), STORY), STORY) for j in (1.0, 100.0, 1e6)]
    assert deviations[0] < 3 < deviations[1] < 40 < deviations[2]


def test_buckets_of_equal_size_lock_in_step_without_jitter_and_not_at_width_1() -> None:
    def likeliest_next(jitter: float) -> float:
        order = ordered(StrideJitter(jitter), [2000] * 6)
        pairs = np.bincount(6 * order[:-1] + order[1:], minlength=36).reshape(6, 6)
        return (pairs / pairs.sum(axis=1, keepdims=True)).max()

    assert likeliest_next(0.0) > 0.95
    assert likeliest_next(1.0) < 0.25  # 1/5: a bucket does not often follow itself


def test_blocks_hold_what_they_hold_in_proportional_order_and_are_shuffled_inside() -> None:
    counts = [30, 50, 21]
    even, mixed = ordered(Proportional(), counts), ordered(BlockShuffle(10), counts)
    assert not np.array_equal(even, mixed)
    for start in range(0, 101, 10):
        assert sorted(even[start : start + 10]) == sorted(mixed[start : start + 10])
    np.testing.assert_array_equal(ordered(BlockShuffle(1), counts), even)
    last_block_is_short = ordered(BlockShuffle(40), counts)[80:]
    assert last_block_is_short.tolist() != even[80:].tolist()
    assert sorted(last_block_is_short) == sorted(even[80:])
    assert deviation(mixed, counts) <= deviation(even, counts) + 10


def test_diversity_first_picks_the_smallest_bucket_too_often_and_the_largest_too_rarely() -> None:
    drawn = [pick_rate(ordered(REMAINING, STORY, seed), STORY, 10) for seed in range(6)]
    rates = np.array(drawn, dtype=np.float64).mean(axis=0)
    assert rates[0] == pytest.approx(1.27, abs=0.08)
    assert rates[5] == pytest.approx(0.79, abs=0.02)
    closed = STORY / STORY.sum() * (1 - STORY / STORY.sum()) / (1 - ((STORY / STORY.sum()) ** 2).sum())
    np.testing.assert_allclose(rates * STORY / STORY.sum(), closed, rtol=0.06)


def test_weights_may_be_said_as_a_word() -> None:
    spelled = DiversityFirst("fixed")  # type: ignore[arg-type]
    np.testing.assert_array_equal(ordered(spelled, [3, 9, 20]), ordered(FIXED, [3, 9, 20]))
