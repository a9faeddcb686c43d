"""Edges cover every length, every length lies in the bucket that its edges say, and the optimal edges pad the least."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_exp.plan import buckets as buckets_module
from dflash_exp.plan.buckets import Buckets, EqualTokens, Fixed, Optimal, Quantile, Single, assign, assign_held_out

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60).map(lambda lengths: np.array(lengths, dtype=np.int32))


def padded_tokens(lengths: np.ndarray, edges: Iterable[int]) -> int:
    """Tokens when every sequence is padded to its bucket's edge, in plain Python."""
    ascending = sorted(edges)
    return sum(min(edge for edge in ascending if edge >= length) for length in lengths.tolist())


@given(LENGTHS, st.integers(1, 12))
def test_every_length_lies_above_the_edge_before_and_not_above_its_own(lengths: np.ndarray, n_buckets: int) -> None:
    every: list[Buckets] = [
        Quantile(n_buckets), EqualTokens(n_buckets), Optimal(n_buckets, 8), Single(), Fixed([7, 100, 300])
    ]  # fmt: skip
    for buckets in every:
        edges = buckets.upper_bounds(lengths)
        bucket = assign(lengths, edges)
        assert edges.dtype == np.int64
        assert (np.diff(edges) > 0).all()
        assert (lengths <= edges[bucket]).all()
        assert (lengths > np.concatenate(([0], edges))[bucket]).all()


@given(LENGTHS, st.integers(1, 12))
def test_edges_that_follow_the_lengths_leave_no_bucket_empty(lengths: np.ndarray, n_buckets: int) -> None:
    for buckets in (Quantile(n_buckets), EqualTokens(n_buckets), Optimal(n_buckets, 8), Optimal(n_buckets, 1)):
        edges = buckets.upper_bounds(lengths)
        assert len(edges) <= n_buckets
        assert set(assign(lengths, edges).tolist()) == set(range(len(edges)))


def test_quantile_gives_equal_counts_where_lengths_are_distinct() -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 13))
    edges = Quantile(4).upper_bounds(lengths)
    assert edges.tolist() == [3, 6, 9, 12]


def test_quantile_merges_edges_that_coincide() -> None:
    assert Quantile(4).upper_bounds(np.array([5, 5, 5, 9])).tolist() == [5, 9]


def test_equal_tokens_gives_equal_sums_where_it_can() -> None:
    lengths = np.array([1] * 12 + [2] * 6 + [3] * 4 + [12], dtype=np.int32)  # 12 tokens of each length
    assert EqualTokens(4).upper_bounds(lengths).tolist() == [1, 2, 3, 12]
    assert EqualTokens(2).upper_bounds(lengths).tolist() == [2, 12]


@given(LENGTHS, st.integers(1, 12))
def test_a_bucket_of_equal_tokens_ends_at_the_length_that_reaches_its_share(lengths: np.ndarray, n: int) -> None:
    edges, total = EqualTokens(n).upper_bounds(lengths).tolist(), int(lengths.sum())
    reached = [int(lengths[lengths <= edge].sum()) for edge in edges]
    before = [int(lengths[lengths < edge].sum()) for edge in edges]
    for share in range(1, n + 1):
        assert any(less * n < share * total <= upto * n for less, upto in zip(before, reached, strict=True))


def test_equal_tokens_counts_beyond_32_bits() -> None:
    lengths = np.full(100_000, 65_536, dtype=np.int32)
    lengths[:1000] = 1
    assert EqualTokens(2).upper_bounds(lengths).tolist() == [65_536]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 14), min_size=1, max_size=30), st.integers(1, 5))
def test_optimal_edges_pad_as_little_as_the_best_of_all(lengths: list[int], n_buckets: int) -> None:
    array = np.array(lengths)
    found = Optimal(n_buckets, 1).upper_bounds(array).tolist()
    longest, *shorter = sorted(set(lengths), reverse=True)
    every = itertools.combinations(shorter, min(n_buckets, len(shorter) + 1) - 1)
    assert padded_tokens(array, found) == min(padded_tokens(array, (*others, longest)) for others in every)


@given(LENGTHS, st.integers(1, 8), st.data())
def test_optimal_edges_pad_no_more_than_any_other_on_the_grid(
    lengths: np.ndarray, n_buckets: int, data: st.DataObject
) -> None:
    found = Optimal(n_buckets, 8).upper_bounds(lengths).tolist()
    cells = -(-int(lengths.max()) // 8)
    others = data.draw(st.sets(st.integers(1, cells), max_size=n_buckets - 1))
    assert all(edge % 8 == 0 for edge in found) and found[-1] == 8 * cells
    assert padded_tokens(lengths, found) <= padded_tokens(lengths, [8 * cell for cell in {*others, cells}])


@given(LENGTHS, st.integers(1, 8))
def test_optimal_edges_pad_no_more_than_those_of_equal_counts_or_tokens(lengths: np.ndarray, n_buckets: int) -> None:
    least = padded_tokens(lengths, Optimal(n_buckets, 1).upper_bounds(lengths).tolist())
    for buckets in (Quantile(n_buckets), EqualTokens(n_buckets)):
        assert least <= padded_tokens(lengths, buckets.upper_bounds(lengths).tolist())


def test_an_edge_belongs_to_the_bucket_below_it() -> None:
    assert assign(np.array([1, 10, 11, 20]), np.array([10, 20])).tolist() == [0, 0, 1, 1]


def test_more_buckets_than_a_byte_can_name_are_told_apart() -> None:
    lengths = np.arange(1, 400)
    assert assign(lengths, lengths).tolist() == list(range(399))


def test_lengths_are_counted_and_looked_up_piece_by_piece_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 100)
    edges = EqualTokens(5).upper_bounds(lengths)
    bucket = assign(lengths, edges)
    monkeypatch.setattr(buckets_module, "CHUNK", 7)
    np.testing.assert_array_equal(EqualTokens(5).upper_bounds(lengths), edges)
    np.testing.assert_array_equal(assign(lengths, edges), bucket)


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
    for refused in (Quantile, EqualTokens, lambda n_buckets: Optimal(n_buckets, 8)):
        with pytest.raises(ValueError, match=r"^buckets\.n_buckets must be >= 1, got 0"):
            refused(0)


def test_a_grid_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^buckets\.grid_tokens must be >= 1, got 0"):
        Optimal(6, 0)


def test_what_is_held_out_counts_in_the_bucket_of_its_length_and_in_the_last_beyond_it() -> None:
    lengths = np.array([1, 16, 17, 40, 41, 90, 91, 5000])
    assert assign_held_out(lengths, np.array([16, 40, 90])).tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
