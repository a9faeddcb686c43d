"""Batches hold every sequence once, stay inside their limits, and are as full as the order of packing allows."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.data.store import EmbeddedData, Responses, TooLong, read_split
from dflash_exp.plan import batches as batches_module
from dflash_exp.plan import packing
from dflash_exp.plan.batches import (
    Batches,
    Batching,
    FixedSize,
    TokenBudget,
    check_holds,
    compose,
    compose_compiled,
    compose_plainly,
    draw_batches,
    pack_bucket,
    pools_sorted,
)
from dflash_exp.plan.buckets import EqualTokens, Optimal, Quantile
from dflash_exp.plan.epoch import EpochPlan, Planner, PlanSettings
from dflash_exp.plan.interleave import Shuffle
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import Sequences

BUDGET = 64
LENGTHS = st.lists(st.integers(1, BUDGET), min_size=1, max_size=80)
LIMIT = st.none() | st.integers(1, 5)
POOL = st.integers(0, 9)
BATCHINGS = st.builds(TokenBudget, st.just(BUDGET), POOL, LIMIT, st.booleans()) | st.builds(
    FixedSize, st.integers(1, 9), POOL, st.booleans()
)
COMPOSERS = [compose_plainly, compose_compiled]
Composer = Callable[[np.ndarray, np.ndarray, int, Batching, np.random.Generator], Batches]


def budget(limit: int | None = None, pool: int = 0) -> TokenBudget:
    return TokenBudget(BUDGET, pool, limit, frozen=False)


def composed(
    lengths: list[int], seed: int, composer: Composer = compose, batching: Batching | None = None
) -> tuple[np.ndarray, np.ndarray, Batches]:
    """Lengths, the bucket of each, and the batches; bucket 1 of three stays empty."""
    array = np.array(lengths, dtype=np.int32)
    bucket = (array > 20).astype(np.uint8) * 2
    return array, bucket, composer(array, bucket, 3, batching or budget(), np.random.default_rng(seed))


def planned(batching: Batching, epoch: int) -> EpochPlan:
    lengths = np.arange(120) * 37 % 61 + 3
    settings = PlanSettings(Quantile(2), batching, Shuffle(), 1, Seeds(0, 0, 0, 0))
    return Planner(Sequences(lengths, np.arange(120)), settings).epoch(epoch)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compiling takes seconds on a machine's first run, over the deadline of an example."""
    for longest in (1, 2**16):
        lengths, bucket = np.array([longest], dtype=np.int32), np.zeros(1, dtype=np.uint8)
        compose_compiled(lengths, bucket, 1, FixedSize(1, 1, False), np.random.default_rng(0))


@given(LENGTHS, LIMIT)
def test_a_batch_is_closed_exactly_when_the_next_sequence_would_not_fit(lengths: list[int], limit: int | None) -> None:
    starts = pack_bucket(lengths, budget(limit))
    assert starts[0] == 0
    for start, end in zip(starts, [*starts[1:], len(lengths)], strict=True):
        assert (end - start) * max(lengths[start:end]) <= BUDGET
        assert limit is None or end - start <= limit
        if end < len(lengths):
            one_more = lengths[start : end + 1]
            assert len(one_more) * max(one_more) > BUDGET or end - start == limit


def test_padded_tokens_count_every_sequence_at_the_longest() -> None:
    assert pack_bucket([4, 4, 4, 1, 6, 6, 12, 1], TokenBudget(12, 0, None, frozen=False)) == [0, 3, 5, 6, 7]


def test_a_fixed_size_cuts_every_so_many_whatever_the_lengths() -> None:
    assert pack_bucket([9000, 1, 1, 5, 9000, 2, 2], FixedSize(3, 0, frozen=False)) == [0, 3, 6]


def test_no_sequences_make_no_batch() -> None:
    assert pack_bucket([], budget()) == []


@pytest.mark.parametrize("composer", COMPOSERS)
@given(lengths=LENGTHS, seed=st.integers(0, 9), batching=BATCHINGS)
def test_every_sequence_is_in_exactly_one_batch_of_its_own_bucket(
    composer: Composer, lengths: list[int], seed: int, batching: Batching
) -> None:
    array, bucket, batches = composed(lengths, seed, composer, batching)
    assert sorted(batches.sequences.tolist()) == list(range(len(array)))
    assert batches.counts.sum() == len(batches.sizes)
    assert batches.sizes.min() >= 1
    np.testing.assert_array_equal(np.repeat(batches.bucket, batches.sizes), bucket[batches.sequences])
    assert batches.counts[1] == 0


@pytest.mark.parametrize("composer", COMPOSERS)
@given(lengths=LENGTHS, seed=st.integers(0, 9), batching=BATCHINGS)
def test_no_batch_is_over_its_limits(
    composer: Composer, lengths: list[int], seed: int, batching: TokenBudget | FixedSize
) -> None:
    array, _, batches = composed(lengths, seed, composer, batching)
    if isinstance(batching, TokenBudget):
        assert (batches.longest(array) * batches.sizes).max() <= BUDGET
    if batching.max_sequences is not None:
        assert batches.sizes.max() <= batching.max_sequences


@given(LENGTHS, st.integers(1, 9))
def test_batches_of_a_fixed_size_are_full_but_for_the_last_of_a_bucket(lengths: list[int], n: int) -> None:
    _, _, batches = composed(lengths, 0, batching=FixedSize(n, 0, frozen=False))
    last = set((batches.first + batches.counts - 1).tolist())
    assert all(size == n for number, size in enumerate(batches.sizes.tolist()) if number not in last)


@given(LENGTHS, st.integers(0, 9), POOL, LIMIT, st.sampled_from([1, 4000]))
def test_kernels_cut_where_the_loop_cuts(
    lengths: list[int], seed: int, pool: int, limit: int | None, times: int
) -> None:
    batching = TokenBudget(BUDGET * times, pool, limit, frozen=False)
    lengths = [length * times for length in lengths]  # also over 16 bits
    array, bucket, batches = composed(lengths, seed, compose_compiled, batching)
    begin = 0
    starts: list[int] = []
    for held in np.bincount(bucket, minlength=3).tolist():
        arrived = array[batches.sequences[begin : begin + held]].tolist()
        starts += [begin + start for start in pack_bucket(arrived, batching)]
        begin += held
    assert batches.starts.tolist() == [*starts, len(lengths)]


@pytest.mark.parametrize(("dtype", "longest"), [(np.uint16, 2**16 - 1), (np.int32, 2**31 - 1)])
@given(data=st.data())
def test_kernels_sort_pools_as_numpy_does(dtype: type, longest: int, data: st.DataObject) -> None:
    arrived = np.array(data.draw(st.lists(st.integers(1, longest) | st.integers(1, 3), min_size=1, max_size=60)), dtype)
    ends = np.array(sorted([*data.draw(st.lists(st.integers(0, len(arrived)), max_size=3)), len(arrived)]))
    pool = data.draw(st.integers(1, 70))
    sequences, lengths = np.arange(len(arrived), dtype=np.int32), arrived.copy()
    packing.sort_pools(sequences, lengths, ends, pool)
    np.testing.assert_array_equal(sequences, pools_sorted(arrived, ends, pool))
    np.testing.assert_array_equal(lengths, arrived[sequences])


@pytest.mark.parametrize("composer", COMPOSERS)
@given(lengths=LENGTHS, seed=st.integers(0, 9), pool=st.integers(1, 9))
def test_a_pool_holds_consecutive_arrivals_sorted_up_and_down_in_turn(
    composer: Composer, lengths: list[int], seed: int, pool: int
) -> None:
    array, bucket, arrived = composed(lengths, seed, composer)
    _, _, pooled = composed(lengths, seed, composer, budget(pool=pool))
    begin = 0
    for held in np.bincount(bucket, minlength=3).tolist():
        for number, first in enumerate(range(begin, begin + held, pool)):
            part = slice(first, min(first + pool, begin + held))
            assert sorted(pooled.sequences[part]) == sorted(arrived.sequences[part])
            falls = number % 2 == 1
            assert array[pooled.sequences[part]].tolist() == sorted(array[arrived.sequences[part]], reverse=falls)
        begin += held


@pytest.mark.parametrize("composer", COMPOSERS)
@pytest.mark.parametrize("pool", [0, 8])
def test_the_same_seed_gives_the_same_batches_and_another_gives_others(composer: Composer, pool: int) -> None:
    lengths = [5] * 40 + [30] * 5
    first, same, other = (
        composed(lengths, seed, composer, budget(pool=pool))[2].sequences.tolist() for seed in (0, 0, 1)
    )
    assert first == same != other
    assert first[:40] != sorted(first[:40])


@pytest.mark.parametrize("batching", [budget(pool=16), FixedSize(3, 16, frozen=False)])
def test_pools_change_every_epoch_unless_frozen(batching: TokenBudget | FixedSize) -> None:
    assert planned(batching, 0).batches_sha256 != planned(batching, 1).batches_sha256
    frozen = dataclasses.replace(batching, frozen=True)
    assert planned(frozen, 0).batches_sha256 == planned(frozen, 1).batches_sha256


@pytest.mark.parametrize("bin_sequences", [1, 2, 2**15])
def test_kernels_draw_every_arrival_equally_often(bin_sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BIN_SEQUENCES", bin_sequences)
    rng = np.random.default_rng(0)
    lengths, bucket = np.arange(1, 6, dtype=np.int32), np.array([0, 1, 0, 0, 0], dtype=np.uint8)
    drawn: dict[tuple[int, ...], int] = {}
    for _ in range(2400):
        sequences, arrived, ends = packing.arrive(lengths, bucket, 2, rng)
        assert sequences[4] == 1 and ends.tolist() == [4, 5] and (arrived == lengths[sequences]).all()
        order = tuple(sequences[:4].tolist())
        drawn[order] = drawn.get(order, 0) + 1
    assert len(drawn) == 24
    chi_square = sum((times - 100) ** 2 / 100 for times in drawn.values())
    assert chi_square < 49.7  # 23 degrees of freedom: p = .001


def test_kernels_leave_no_trace_of_the_store_s_order() -> None:
    n = 100_000  # four bins a bucket
    sequences, _, _ = packing.arrive(np.ones(n, np.int32), np.zeros(n, np.uint8), 1, np.random.default_rng(0))
    correlation = np.corrcoef(sequences[1:], sequences[:-1])[0, 1], np.corrcoef(sequences, np.arange(n))[0, 1]
    assert np.abs(correlation).max() < 4 / n**0.5


def test_many_sequences_are_composed_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, plain = (composed([5] * 40, 0, composer)[2].sequences.tolist() for composer in COMPOSERS[::-1])
    assert composed([5] * 40, 0)[2].sequences.tolist() == plain != compiled
    monkeypatch.setattr(batches_module, "COMPILED_FROM", 40)
    assert composed([5] * 40, 0)[2].sequences.tolist() == compiled


def test_a_small_plan_imports_no_compiler() -> None:
    program = "import sys, numpy as np; from dflash_exp.plan import epoch; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("responses", list(Responses))
@pytest.mark.parametrize("buckets", [Quantile(6), EqualTokens(6), Optimal(6, 8)])
def test_pools_of_256_waste_less_than_2_percent_on_the_conversations_that_ship(
    responses: Responses, buckets: Quantile | EqualTokens | Optimal
) -> None:
    conversations = read_split(EmbeddedData(responses, None, TooLong.error).folder, "train", None, TooLong.error)
    lengths = conversations.lengths
    for pool, least, most in ((0, 0.1, 0.2), (256, 0.0, 0.02)):
        settings = PlanSettings(buckets, TokenBudget(2048, pool, None, False), Shuffle(), 1, Seeds(0, 0, 0, 0))
        plan = Planner(Sequences(lengths, conversations.rows), settings).epoch(0)
        assert least < 1 - lengths.sum() / plan.n_padded_tokens < most


@given(LENGTHS, st.integers(0, 9))
def test_sums_and_longest_are_those_of_each_batch(lengths: list[int], seed: int) -> None:
    array, _, batches = composed(lengths, seed)
    members = [array[part] for part in np.split(batches.sequences, batches.starts[1:-1])]
    assert batches.sums(array).tolist() == [int(part.sum()) for part in members]
    assert batches.longest(array).tolist() == [int(part.max()) for part in members]


def test_whole_numbers_sum_beyond_32_bits() -> None:
    batches = Batches(np.array([0, 1]), np.array([0, 2]), np.array([1]))
    assert batches.sums(np.array([2**31 - 1, 2**31 - 1], dtype=np.int32)).tolist() == [2**32 - 2]


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TokenBudget(0, 0, None, False), "budget_tokens must be >= 1, got 0"),
        (lambda: TokenBudget(8, -1, None, False), "pool must be >= 0, got -1"),
        (lambda: TokenBudget(8, 0, 0, False), "max_sequences must be >= 1, got 0"),
        (lambda: FixedSize(0, 0, False), "n_sequences must be >= 1, got 0"),
        (lambda: FixedSize(1, -1, False), "pool must be >= 0, got -1"),
    ],
)
def test_batches_that_hold_nothing_are_refused(make: Callable[[], Batching], said: str) -> None:
    with pytest.raises(ValueError, match=rf"^batches\.{said}"):
        make()


def test_a_sequence_longer_than_the_budget_is_named() -> None:
    batching = TokenBudget(4096, 0, None, frozen=False)
    check_holds(batching, 4096)
    check_holds(FixedSize(1, 0, frozen=False), 8192)
    with pytest.raises(ValueError, match=r"^batches\.budget_tokens must hold one sequence: the longest is 8192 tokens"):
        check_holds(batching, 8192)
