"""Edges cover every length, and every length lies in the bucket that its edges say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.plan.buckets import Fixed, Quantile, Single, assign

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60).map(lambda lengths: np.array(lengths, dtype=np.int32))


@given(LENGTHS, st.integers(1, 12))
def test_every_length_lies_above_the_edge_before_and_not_above_its_own(lengths: np.ndarray, n_buckets: int) -> None:
    for buckets in (Quantile(n_buckets), Single(), Fixed([7, 100, 300])):
        edges = buckets.upper_bounds(lengths)
        bucket = assign(lengths, edges)
        assert edges.dtype == np.int64
        assert (np.diff(edges) > 0).all()
        assert (lengths <= edges[bucket]).all()
        assert (lengths > np.concatenate(([0], edges))[bucket]).all()


@given(LENGTHS, st.integers(1, 12))
def test_quantile_leaves_no_bucket_empty(lengths: np.ndarray, n_buckets: int) -> None:
    edges = Quantile(n_buckets).upper_bounds(lengths)
    assert set(assign(lengths, edges).tolist()) == set(range(len(edges)))


def test_quantile_gives_equal_counts_where_lengths_are_distinct() -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 13))
    edges = Quantile(4).upper_bounds(lengths)
    assert edges.tolist() == [3, 6, 9, 12]


def test_quantile_merges_edges_that_coincide() -> None:
    assert Quantile(4).upper_bounds(np.array([5, 5, 5, 9])).tolist() == [5, 9]


def test_an_edge_belongs_to_the_bucket_below_it() -> None:
    assert assign(np.array([1, 10, 11, 20]), np.array([10, 20])).tolist() == [0, 0, 1, 1]


def test_single_is_one_bucket_that_ends_at_the_longest() -> None:
    assert Single().upper_bounds(np.array([4, 9, 2])).tolist() == [9]


def test_fixed_edges_that_miss_the_longest_name_it() -> None:
    with pytest.raises(ValueError, match=r"^buckets\.edges must cover .* longest is 301 tokens, the last edge is 300"):
        Fixed([100, 300]).upper_bounds(np.array([5, 301]))


@pytest.mark.parametrize("edges", [[], [0, 5], [5, 5], [9, 5], [-3]])
def test_edges_that_do_not_ascend_are_refused(edges: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^buckets\.edges must be positive and strictly ascending, got"):
        Fixed(edges)


def test_no_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^buckets\.n_buckets must be >= 1, got 0"):
        Quantile(0)
