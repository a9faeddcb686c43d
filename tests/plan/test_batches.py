"""Batches hold every sequence once, stay inside the budget, and are as full as arrival order allows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.plan.batches import Batches, TokenBudget, compose, draw_batches

BUDGET = 64
LENGTHS = st.lists(st.integers(1, BUDGET), min_size=1, max_size=80)
LIMIT = st.none() | st.integers(1, 5)


@given(LENGTHS, LIMIT)
def test_a_batch_is_closed_exactly_when_the_next_sequence_would_not_fit(lengths: list[int], limit: int | None) -> None:
    starts = TokenBudget(BUDGET, limit, frozen=False).pack(lengths)
    assert starts[0] == 0
    for start, end in zip(starts, [*starts[1:], len(lengths)], strict=True):
        assert (end - start) * max(lengths[start:end]) <= BUDGET
        assert limit is None or end - start <= limit
        if end < len(lengths):
            one_more = lengths[start : end + 1]
            assert len(one_more) * max(one_more) > BUDGET or end - start == limit


def test_padded_tokens_count_every_sequence_at_the_longest() -> None:
    assert TokenBudget(12, None, frozen=False).pack([4, 4, 4, 1, 6, 6, 12, 1]) == [0, 3, 5, 6, 7]


def test_no_sequences_make_no_batch() -> None:
    assert TokenBudget(12, None, frozen=False).pack([]) == []


def composed(lengths: list[int], seed: int) -> tuple[np.ndarray, np.ndarray, Batches]:
    array = np.array(lengths, dtype=np.int32)
    bucket = (array > 20).astype(np.int32) * 2  # bucket 1 of three stays empty
    budget = TokenBudget(BUDGET, None, frozen=False)
    return array, bucket, compose(array, bucket, 3, budget, np.random.default_rng(seed))


@given(LENGTHS, st.integers(0, 9))
def test_every_sequence_is_in_exactly_one_batch_of_its_own_bucket(lengths: list[int], seed: int) -> None:
    array, bucket, batches = composed(lengths, seed)
    assert sorted(batches.sequences.tolist()) == list(range(len(array)))
    assert batches.counts.sum() == len(batches.sizes)
    assert batches.sizes.min() >= 1
    np.testing.assert_array_equal(np.repeat(batches.bucket, batches.sizes), bucket[batches.sequences])
    assert batches.counts[1] == 0


@given(LENGTHS, st.integers(0, 9))
def test_sums_and_longest_are_those_of_each_batch(lengths: list[int], seed: int) -> None:
    array, _, batches = composed(lengths, seed)
    members = [array[part] for part in np.split(batches.sequences, batches.starts[1:-1])]
    assert batches.sums(array).tolist() == [int(part.sum()) for part in members]
    assert batches.longest(array).tolist() == [int(part.max()) for part in members]


def test_whole_numbers_sum_beyond_32_bits() -> None:
    batches = Batches(np.array([0, 1]), np.array([0, 2]), np.array([1]))
    assert batches.sums(np.array([2**31 - 1, 2**31 - 1], dtype=np.int32)).tolist() == [2**32 - 2]


def test_the_arrival_order_is_random_within_a_bucket() -> None:
    first, second = (composed([5] * 40, seed)[2].sequences.tolist() for seed in (0, 1))
    assert first != second
    assert first != sorted(first)


@given(LENGTHS, st.integers(0, 9))
def test_every_batch_is_drawn_once_in_a_slot_of_its_bucket(lengths: list[int], seed: int) -> None:
    batches = composed(lengths, seed)[2]
    order = np.random.default_rng(seed).permutation(batches.bucket)
    drawn = draw_batches(order, batches, np.random.default_rng(seed))
    assert sorted(drawn.tolist()) == list(range(len(order)))
    np.testing.assert_array_equal(batches.bucket[drawn], order)


def test_the_short_last_batch_of_a_bucket_is_not_always_drawn_last() -> None:
    batches = Batches(np.arange(8), np.arange(9), np.array([8]))
    places = {draw_batches(np.zeros(8, np.int32), batches, np.random.default_rng(seed)).argmax() for seed in range(40)}
    assert places == set(range(8))


@pytest.mark.parametrize(("budget", "limit", "key"), [(0, None, "budget_tokens"), (8, 0, "max_sequences")])
def test_a_budget_that_holds_nothing_is_refused(budget: int, limit: int | None, key: str) -> None:
    with pytest.raises(ValueError, match=rf"^batches\.{key} must be >= 1, got 0"):
        TokenBudget(budget, limit, frozen=False)


def test_a_sequence_longer_than_the_budget_is_named() -> None:
    budget = TokenBudget(4096, None, frozen=False)
    budget.check_holds(4096)
    with pytest.raises(ValueError, match=r"^batches\.budget_tokens must hold one sequence: the longest is 8192 tokens"):
        budget.check_holds(8192)
