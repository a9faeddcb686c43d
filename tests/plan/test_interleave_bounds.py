"""The strategies that bound the deviation of every bucket, against their rules told slowly in fractions."""

import math
from collections import Counter
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dflash_exp.plan.interleave import EarliestDeadline, QuotaRandom, Tijdeman
from tests.plan.strategies import FEW, QUOTA, ROTATED, STORY, UNEVEN, compiled, deviation, ordered

SEEDS = st.integers(0, 99)


@compiled
@given(UNEVEN)
def test_tijdeman_keeps_to_the_best_bound_that_holds_for_all_counts(counts: list[int]) -> None:
    k = np.count_nonzero(counts)
    assert deviation(ordered(Tijdeman(), counts), counts) <= (1 - Fraction(1, 2 * int(k) - 2) if k > 1 else 0)


@compiled
@given(UNEVEN)
def test_earliest_deadline_keeps_below_one_batch_and_below_tijdeman(counts: list[int]) -> None:
    reached = deviation(ordered(EarliestDeadline(), counts), counts)
    assert reached <= deviation(ordered(Tijdeman(), counts), counts)
    assert reached < 1


@compiled
@given(UNEVEN, SEEDS, st.booleans(), st.sampled_from([1.0, 1.5, 3.25]))
def test_quota_random_keeps_to_its_bound_and_to_twice_that_when_rotated(
    counts: list[int], seed: int, no_repeat: bool, bound: float
) -> None:
    assert deviation(ordered(QuotaRandom(bound, no_repeat, rotate=False), counts, seed), counts) <= bound
    assert deviation(ordered(QuotaRandom(bound, no_repeat, rotate=True), counts, seed), counts) <= 2 * bound


@compiled
@given(UNEVEN, SEEDS)
def test_quota_random_keeps_to_the_smallest_bound_there_is_and_refuses_less(counts: list[int], seed: int) -> None:
    smallest = deviation(ordered(EarliestDeadline(), counts), counts)
    if smallest == 0:
        return
    named = math.ceil(smallest * 10**6) / 10**6
    assert deviation(ordered(QuotaRandom(named, True, rotate=False), counts, seed), counts) == smallest
    below = float(smallest) - 0.5 / sum(counts)
    with pytest.raises(ValueError) as raised:
        ordered(QuotaRandom(below, True, rotate=False), counts, seed)
    assert str(raised.value) == (
        f"interleave.bound_batches must be >= {named} for these counts, got {below}; "
        "raise it, or say interleave=earliest_deadline"
    )


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_without_meaning_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match=r"^interleave\.bound_batches must be > 0, got"):
        QuotaRandom(bound, no_repeat=True, rotate=True)


def test_a_bound_is_meant_as_it_is_written() -> None:
    assert Fraction(0.6) < Fraction(6, 10)
    order = ordered(QuotaRandom(0.6, no_repeat=True, rotate=False), [3, 3, 4])
    assert deviation(order, [3, 3, 4]) == Fraction(6, 10)


def test_a_bound_that_binds_nothing_allows_every_order() -> None:
    loose = QuotaRandom(1e9, no_repeat=False, rotate=False)
    assert len({tuple(ordered(loose, [1, 2, 3], seed)) for seed in range(2000)}) == 60


def smallest_deviation(counts: list[int]) -> Fraction:
    batches = [bucket for bucket, n in enumerate(counts) for _ in range(n)]
    return min(deviation(np.array(order), counts) for order in set(permutations(batches)))


@pytest.mark.parametrize("counts", [[1, 1], [1, 2, 3], [4, 1], [2, 2, 2], [1, 1, 1, 4], [3, 0, 4], [1, 1, 1, 1, 2]])
def test_no_order_at_all_deviates_less_than_earliest_deadline(counts: list[int]) -> None:
    assert deviation(ordered(EarliestDeadline(), counts), counts) == smallest_deviation(counts)


def window(j: int, n: int, n_batches: int, bound: Fraction) -> tuple[int, int]:
    p = Fraction(n, n_batches)
    return math.ceil((j - bound) / p), min(n_batches, math.floor((j - 1 + bound) / p) + 1)


def by_deadline(counts: list[int], bound: Fraction, begun: list[int]) -> list[int] | None:
    """The rest of an order that began so, by earliest deadline; None where a batch is late."""
    n_batches, order = sum(counts), list(begun)
    drawn = Counter(begun)
    for t in range(len(begun) + 1, n_batches + 1):
        open_windows = []
        for bucket, n in enumerate(counts):
            if drawn[bucket] < n:
                release, due = window(drawn[bucket] + 1, n, n_batches, bound)
                if due < t:
                    return None
                if release <= t:
                    open_windows.append((due, bucket))
        if not open_windows:
            return None
        order.append(min(open_windows)[1])
        drawn[order[-1]] += 1
    return order


@compiled
@given(FEW)
def test_earliest_deadline_is_the_rule_at_the_smallest_bound(counts: list[int]) -> None:
    order = ordered(EarliestDeadline(), counts)
    bound = deviation(order, counts)
    assert order.tolist() == by_deadline(counts, bound, [])
    assert bound == 0 or by_deadline(counts, bound - Fraction(1, sum(counts)), []) is None


@compiled
@given(FEW)
def test_tijdeman_is_the_rule_of_the_chairman_assignment(counts: list[int]) -> None:
    shares = [Fraction(n, sum(counts)) for n in counts]
    k = sum(n > 0 for n in counts)
    e = Fraction(1, max(2, 2 * k - 2))
    drawn, wanted = Counter(), []
    for t in range(sum(counts)):
        behind = [p * (t + 1) - drawn[bucket] for bucket, p in enumerate(shares)]
        late = [bucket for bucket, lag in enumerate(behind) if lag >= e]
        wanted.append(min(late, key=lambda bucket: ((1 - e - behind[bucket]) / shares[bucket], bucket)))
        drawn[wanted[-1]] += 1
    assert ordered(Tijdeman(), counts).tolist() == wanted


def allowed_next(counts: list[int], bound: Fraction, begun: list[int]) -> list[int]:
    """The buckets that may come next if some rest of the order is to keep to the bound: each is tried out."""
    drawn, n_batches = Counter(begun), sum(counts)
    return [
        bucket
        for bucket, n in enumerate(counts)
        if drawn[bucket] < n
        and window(drawn[bucket] + 1, n, n_batches, bound)[0] <= len(begun) + 1
        and by_deadline(counts, bound, [*begun, bucket]) is not None
    ]


@compiled
@given(FEW, SEEDS, st.sampled_from([Fraction(1), Fraction(3, 2)]))
def test_quota_random_repeats_a_bucket_only_where_no_other_is_allowed(
    counts: list[int], seed: int, bound: Fraction
) -> None:
    order = ordered(QuotaRandom(float(bound), no_repeat=True, rotate=False), counts, seed).tolist()
    for slot in range(1, len(order)):
        if order[slot] == order[slot - 1]:
            assert allowed_next(counts, bound, order[:slot]) == [order[slot]]


@pytest.mark.parametrize(
    ("counts", "bound", "no_repeat"), [([2, 2, 3], 1, False), ([1, 2, 5], 1, True), ([3, 2, 2], 2, True)]
)
def test_quota_random_draws_every_allowed_order_by_the_shares_of_what_is_allowed(
    counts: list[int], bound: int, no_repeat: bool
) -> None:
    strategy, rng = QuotaRandom(bound, no_repeat, rotate=False), np.random.default_rng(0)
    seen = Counter(tuple(strategy.order(counts, rng).tolist()) for _ in range(4000))
    wanted = {(): 1.0}
    for _ in range(sum(counts)):
        longer = {}
        for begun, chance in wanted.items():
            allowed = allowed_next(counts, Fraction(bound), list(begun))
            others = [bucket for bucket in allowed if bucket not in begun[-1:]]
            tickets = others if no_repeat and others else allowed
            for bucket in tickets:
                longer[*begun, bucket] = chance * counts[bucket] / sum(counts[other] for other in tickets)
        wanted = longer
    assert seen.keys() <= wanted.keys()
    assert len(wanted) > 5
    drawn = [seen[order] for order in wanted]
    assert chisquare(drawn, [4000 * chance for chance in wanted.values()]).pvalue > 1e-3


def unfairest(strategy: QuotaRandom, counts: np.ndarray, n_orders: int) -> float:
    """The smallest p-value of all slots: how often each bucket is drawn there, over many orders, against its share."""
    rng = np.random.default_rng(0)
    orders = np.array([strategy.order(counts, rng) for _ in range(n_orders)])
    drawn = (orders[:, :, None] == np.arange(len(counts))).sum(axis=0)
    return chisquare(drawn, n_orders * counts / counts.sum(), axis=1).pvalue.min()


def test_rotated_quota_random_draws_every_bucket_fairly_in_every_slot() -> None:
    assert unfairest(ROTATED, np.array([1, 2, 5, 9]), 4000) > 1e-3
    assert unfairest(QUOTA, np.array([1, 2, 5, 9]), 4000) < 1e-9


def test_no_bucket_follows_itself_at_the_counts_of_the_story() -> None:
    assert (np.diff(ordered(QUOTA, STORY)) != 0).all()
