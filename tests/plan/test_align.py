"""Optimizer steps cover the order, in order, and the last holds what remains."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.plan.align import NoAlign, step_bounds


@given(st.integers(1, 100), st.integers(1, 12))
def test_all_steps_are_full_but_the_last_which_holds_what_remains(n_batches: int, batches_per_step: int) -> None:
    bounds = step_bounds(n_batches, batches_per_step).tolist()
    sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
    assert bounds[0] == 0 and bounds[-1] == n_batches
    assert all(size == batches_per_step for size in sizes[:-1])
    assert 1 <= sizes[-1] <= batches_per_step


@given(st.integers(0, 30), st.integers(1, 20), st.integers(1, 9))
def test_dealing_gives_every_batch_to_one_rank_and_evens_their_numbers(first: int, n: int, n_ranks: int) -> None:
    dealt = NoAlign().deal(range(first, first + n), n_ranks)
    assert len(dealt) == n_ranks
    assert sorted(number for rank in dealt for number in rank) == list(range(first, first + n))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_batches_are_dealt_as_they_come_one_each_in_turn() -> None:
    assert [list(rank) for rank in NoAlign().deal(range(4, 9), 2)] == [[4, 6, 8], [5, 7]]
