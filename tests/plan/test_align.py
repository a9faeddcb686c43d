"""Steps cover the order, in order; an aligner deals each step's batches to the ranks, every one once."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_exp.plan.align import Align, Cost, Lpt, NoAlign, exchanged, longest_first, step_bounds, sync_efficiency
from dflash_exp.plan.batches import TokenBudget
from dflash_exp.plan.buckets import Quantile
from dflash_exp.plan.cost import StageCosts, batch_costs
from dflash_exp.plan.epoch import Planner, PlanSettings
from dflash_exp.plan.interleave import Shuffle
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import Sequences

ALIGNERS: list[Align] = [NoAlign(), Cost(), Lpt()]
COSTS = st.lists(st.floats(0, 1e15) | st.integers(0, 4).map(float), min_size=1, max_size=40).map(np.array)
RANKS = st.integers(1, 9)
QWEN3_4B = StageCosts(0.0, 6.86e9, 2.8e5, 0.0, 4.49e9, 1.97e6, 2.9e8)
"""In FLOP, with a drafter of 5 layers and blocks of 16."""


def loads(dealt: list[list[int]], cost: np.ndarray) -> list[float]:
    return [float(sum(cost[number] for number in held)) for held in dealt]


def slack(cost: np.ndarray) -> float:
    """What rounding may add to a sum."""
    return 1e-12 * float(cost.sum())


@given(st.integers(1, 100), st.integers(1, 12))
def test_all_steps_are_full_but_the_last_which_holds_what_remains(n_batches: int, batches_per_step: int) -> None:
    bounds = step_bounds(n_batches, batches_per_step).tolist()
    sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
    assert bounds[0] == 0 and bounds[-1] == n_batches
    assert all(size == batches_per_step for size in sizes[:-1])
    assert 1 <= sizes[-1] <= batches_per_step


@given(st.integers(0, 30), COSTS, RANKS, st.sampled_from(ALIGNERS))
def test_dealing_gives_every_batch_of_the_step_to_exactly_one_rank(
    first: int, cost: np.ndarray, n_ranks: int, align: Align
) -> None:
    numbers = range(first, first + len(cost))
    dealt = align.deal(numbers, n_ranks, cost)
    assert len(dealt) == n_ranks
    assert sorted(number for held in dealt for number in held) == list(numbers)
    assert dealt == align.deal(list(numbers), n_ranks, cost.copy())


@given(COSTS, RANKS, st.sampled_from([NoAlign(), Cost()]))
def test_none_and_cost_even_the_numbers_of_batches(cost: np.ndarray, n_ranks: int, align: Align) -> None:
    sizes = [len(held) for held in align.deal(range(len(cost)), n_ranks, cost)]
    assert max(sizes) - min(sizes) <= 1


def test_batches_are_dealt_as_they_come_one_each_in_turn() -> None:
    assert NoAlign().deal(range(4, 9), 2, np.array([9.0, 1.0, 9.0, 1.0, 9.0])) == [[4, 6, 8], [5, 7]]


def test_sorted_by_cost_the_dearest_come_first_and_the_ranks_turn_about() -> None:
    assert Cost().deal(range(10, 15), 2, np.array([1.0, 5.0, 3.0, 2.0, 4.0])) == [[11, 13, 10], [14, 12]]


@given(COSTS, RANKS)
def test_sorted_by_cost_no_micro_step_holds_a_batch_dearer_than_one_of_the_step_before(
    cost: np.ndarray, n_ranks: int
) -> None:
    micro_steps = list(itertools.zip_longest(*Cost().deal(range(len(cost)), n_ranks, cost)))
    held = [[cost[number] for number in micro_step if number is not None] for micro_step in micro_steps]
    assert all(min(earlier) >= max(later) for earlier, later in itertools.pairwise(held))


def test_the_dearest_goes_to_the_least_loaded_rank_and_ranks_keep_the_order() -> None:
    cost = np.array([2.0, 7.0, 6.0, 3.0, 3.0])  # 7 | 6, 7 | 6 3, 7 3 | 6 3, 7 3 | 6 3 2
    assert longest_first(cost, 2).tolist() == [1, 0, 1, 1, 0]
    assert Lpt().deal(range(20, 25), 2, cost) == [[21, 24], [20, 22, 23]]


def test_batches_that_cost_nothing_are_spread_all_the_same() -> None:
    assert [len(held) for held in Lpt().deal(range(6), 3, np.zeros(6))] == [2, 2, 2]


def test_an_exchange_mends_what_longest_first_leaves() -> None:
    cost = np.array([3.0, 3.0, 2.0, 2.0, 2.0])  # longest first: 3 2 2 | 3 2
    assert loads(Lpt().deal(range(5), 2, cost), cost) == [6.0, 6.0]


@given(COSTS, RANKS)
def test_exchanges_never_make_a_step_longer_and_leave_none_that_would_help(cost: np.ndarray, n_ranks: int) -> None:
    first = longest_first(cost, n_ranks)
    then = exchanged(cost, first, n_ranks)
    before, after = (np.bincount(rank_of, cost, n_ranks) for rank_of in (first, then))
    assert after.max() <= before.max() + slack(cost)
    assert after.sum() == pytest.approx(cost.sum())
    np.testing.assert_array_equal(exchanged(cost, then, n_ranks), then)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 3))
def test_lpt_is_within_a_third_of_the_best_deal(costs: list[int], n_ranks: int) -> None:
    cost = np.array(costs, dtype=np.float64)
    every = itertools.product(range(n_ranks), repeat=len(costs))
    best = min(np.bincount(rank_of, cost, n_ranks).max() for rank_of in every)
    assert max(loads(Lpt().deal(range(len(costs)), n_ranks, cost), cost)) <= best * (4 - 1 / n_ranks) / 3 + 1e-9


def test_sync_efficiency_is_work_over_the_time_of_all_ranks() -> None:
    cost = np.array([3.0, 1.0, 2.0, 2.0, 4.0])
    # steps 3 1 | 2 2 | 4 on two ranks: 3 + 2 + 4 long, 12 of work
    assert sync_efficiency(NoAlign(), cost, np.array([0, 2, 4, 5]), 2) == pytest.approx(12 / 18)
    assert sync_efficiency(NoAlign(), cost, np.array([0, 5]), 1) == 1.0


@pytest.mark.parametrize("anchor_share", [0.5, 1.0])
def test_eight_ranks_with_four_batches_each_wait_for_less_than_3_percent(anchor_share: float) -> None:
    rng = np.random.default_rng(0)
    spread = np.log(8192 / 1600) / 2.326  # the 99th percentile of a normal variable
    lengths = np.exp(rng.normal(np.log(1600), spread, 20_000)).clip(16, 8192).astype(np.int32)
    anchors = np.minimum(512, lengths * anchor_share).astype(np.int64)
    budget = TokenBudget(16_384, 0, None, frozen=False)
    settings = PlanSettings(Quantile(6), budget, Shuffle(), 32, Seeds(0, 0, 0, 0))
    plan = Planner(Sequences(lengths, np.arange(len(lengths))), settings).epoch(0)
    for cost in batch_costs(plan.batches, lengths, anchors, 16, QWEN3_4B):
        as_it_comes, by_cost, lpt = (sync_efficiency(align, cost[plan.drawn], plan.bounds, 8) for align in ALIGNERS)
        assert as_it_comes < by_cost < lpt
        assert as_it_comes < 0.94
        assert lpt >= 0.97
