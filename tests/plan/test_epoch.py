"""An epoch drops nothing, needs no other epoch, and its hashes say what it follows from and what it holds."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.plan.batches import FixedSize, TokenBudget
from dflash_exp.plan.buckets import Fixed, Quantile, Single
from dflash_exp.plan.epoch import EpochPlan, Planner, PlanSettings, draw_order, plan_difference
from dflash_exp.plan.interleave import DiversityFirst, Interleave, Shuffle, StrideJitter, Weights
from dflash_exp.plan.seeds import Seeds, named_rng
from dflash_exp.plan.sequences import Sequences

BUDGET = TokenBudget(64, 0, None, frozen=False)
SETTINGS = PlanSettings(Quantile(4), BUDGET, StrideJitter(1.0), 3, Seeds(init=0, data=0, anchors=0, order=0))
STRATEGIES: list[Interleave] = [Shuffle(), DiversityFirst(Weights.remaining), StrideJitter(1.0)]


def some_sequences(n: int = 200) -> Sequences:
    # whole-number arithmetic in place of a generator: the pinned hashes then test the plan's streams alone
    lengths = (np.arange(n) * 37 % 61 + 3).astype(np.int32)
    return Sequences(lengths, np.arange(n)[::-1] + 1000, weights=lengths * 0.5, anchors=lengths // 4)


def turns_of(plan: EpochPlan) -> list[list[int]]:
    """The index of every batch, bucket by bucket, in the order of training."""
    batches = [batch for step in plan.steps() for batch in step]
    return [[batch.index for batch in batches if batch.bucket == bucket] for bucket in range(len(plan.counts))]


def planned(settings: PlanSettings = SETTINGS, epoch: int = 0) -> EpochPlan:
    return Planner(some_sequences(), settings).epoch(epoch)


def ids_of(plan: EpochPlan) -> list[list[int]]:
    return [batch.sequence_rows.tolist() for step in plan.steps() for batch in step]


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=60), st.sampled_from(STRATEGIES), st.integers(1, 5),
    st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_nothing_is_dropped_and_every_batch_is_what_it_says(
    lengths: list[int], interleave: Interleave, batches_per_step: int, epoch: int, frozen: bool
) -> None:
    budget = TokenBudget(64, 0, 7, frozen)
    settings = PlanSettings(Fixed([8, 20, 64]), budget, interleave, batches_per_step, SETTINGS.seeds)
    plan = Planner(Sequences(np.array(lengths), np.arange(len(lengths)) * 10), settings).epoch(epoch)
    batches = [batch for step in plan.steps() for batch in step]
    assert [batch.number for batch in batches] == list(range(plan.n_batches))
    assert [batch.step for batch in batches] == [number // batches_per_step for number in range(plan.n_batches)]
    assert [batch.bucket for batch in batches] == plan.order.tolist()
    assert sorted(row for batch in batches for row in batch.sequence_rows) == [10 * i for i in range(len(lengths))]
    assert len({(batch.bucket, batch.index) for batch in batches}) == plan.n_batches
    for batch in batches:
        held = np.array(lengths)[batch.sequence_rows // 10]
        assert batch.epoch == epoch and batch.sequence_rows.dtype == np.int64
        assert 0 <= batch.index < plan.counts[batch.bucket]
        assert len(held) * held.max() <= 64
        assert np.searchsorted(plan.edges, held).tolist() == [batch.bucket] * len(held)


@pytest.mark.parametrize("frozen", [False, True])
def test_an_epoch_needs_no_other_epoch(frozen: bool) -> None:
    settings = dataclasses.replace(SETTINGS, batches=dataclasses.replace(BUDGET, frozen=frozen))
    planner = Planner(some_sequences(), settings)
    in_turn = [planner.epoch(epoch) for epoch in range(4)]
    alone = planned(settings, epoch=3)
    assert ids_of(in_turn[3]) == ids_of(alone)
    assert in_turn[3].plan_sha256 == alone.plan_sha256
    assert len({plan.plan_sha256 for plan in in_turn}) == 4
    assert len({plan.order_sha256 for plan in in_turn}) == 4


def test_composition_changes_every_epoch_unless_frozen() -> None:
    frozen = dataclasses.replace(SETTINGS, batches=dataclasses.replace(BUDGET, frozen=True))
    assert planned(epoch=0).batches_sha256 != planned(epoch=1).batches_sha256
    assert planned(frozen, 0).batches_sha256 == planned(frozen, 1).batches_sha256 == planned(epoch=0).batches_sha256
    assert turns_of(planned(frozen, 0)) != turns_of(planned(frozen, 1))


def test_the_plan_hash_tells_epochs_apart_that_hold_the_same_batches_in_the_same_order() -> None:
    one_bucket = dataclasses.replace(SETTINGS, buckets=Single(), batches=dataclasses.replace(BUDGET, frozen=True))
    first, second = planned(one_bucket, 0), planned(one_bucket, 1)
    assert (first.batches_sha256, first.order_sha256) == (second.batches_sha256, second.order_sha256)
    assert first.plan_sha256 != second.plan_sha256


@pytest.mark.parametrize("epoch", [0, 2])
def test_strategies_differ_in_order_alone(epoch: int) -> None:
    plans = [planned(dataclasses.replace(SETTINGS, interleave=strategy), epoch) for strategy in STRATEGIES]
    assert len({plan.batches_sha256 for plan in plans}) == 1
    assert len({plan.order_sha256 for plan in plans}) == len(STRATEGIES)
    assert turns_of(plans[0]) == turns_of(plans[1]) == turns_of(plans[2])


def hashes_of(plan: EpochPlan) -> dict[str, str]:
    return {name: getattr(plan, name) for name in ("batches_sha256", "order_sha256", "plan_sha256")}


def test_one_batch_that_is_another_makes_two_plans_differ_in_more_than_order() -> None:
    plan, shuffled = planned(), planned(dataclasses.replace(SETTINGS, interleave=Shuffle()))
    assert plan_difference(hashes_of(plan), hashes_of(planned())) is None
    assert plan_difference(hashes_of(plan), hashes_of(shuffled)) == "order alone (order_sha256)"
    swapped = plan.batches.sequences.copy()
    ends = plan.batches.starts[[0, 1]]
    swapped[ends] = swapped[ends[::-1]]  # the first sequence of a batch and of the next one change places
    changed = dataclasses.replace(shuffled, batches=dataclasses.replace(plan.batches, sequences=swapped))
    assert plan_difference(hashes_of(plan), hashes_of(changed)) == "more than order (batches_sha256)"
    followed = hashes_of(plan) | {"plan_sha256": "another"}
    assert plan_difference(hashes_of(plan), followed) == "what it follows from (plan_sha256)"


def test_seeds_order_moves_the_order_and_nothing_else() -> None:
    other = planned(dataclasses.replace(SETTINGS, seeds=Seeds(init=0, data=0, anchors=0, order=1)))
    assert other.batches_sha256 == planned().batches_sha256
    assert turns_of(other) == turns_of(planned())
    assert other.order_sha256 != planned().order_sha256


def test_seeds_data_moves_the_batches() -> None:
    other = planned(dataclasses.replace(SETTINGS, seeds=Seeds(init=0, data=1, anchors=0, order=0)))
    assert other.batches_sha256 != planned().batches_sha256


def test_the_plan_hash_depends_on_all_that_an_epoch_follows_from() -> None:
    changes = [
        {"buckets": Quantile(5)},
        {"batches": TokenBudget(63, 0, None, frozen=False)},
        {"batches": TokenBudget(64, 0, 64, frozen=False)},
        {"batches": TokenBudget(64, 1, None, frozen=False)},
        {"batches": FixedSize(2, 0, frozen=False)},
        {"interleave": StrideJitter(0.5)},
        {"batches_per_step": 4},
        {"seeds": Seeds(init=1, data=0, anchors=0, order=0)},
        {"seeds": Seeds(init=0, data=0, anchors=1, order=0)},
    ]
    hashes = [planned(dataclasses.replace(SETTINGS, **change)).plan_sha256 for change in changes]
    assert len({*hashes, planned().plan_sha256, planned(epoch=1).plan_sha256}) == len(changes) + 2


def test_the_plan_hash_depends_on_lengths_and_ids() -> None:
    base = some_sequences()
    moved = Planner(Sequences(base.lengths, base.rows + 1), SETTINGS).epoch(0)
    longer = Planner(Sequences(np.where(base.lengths == 3, 4, base.lengths), base.rows), SETTINGS).epoch(0)
    assert len({plan.plan_sha256 for plan in (planned(), moved, longer)}) == 3
    assert moved.batches_sha256 != planned().batches_sha256


def test_hashes_do_not_depend_on_the_width_of_the_integers_handed_in() -> None:
    base = some_sequences()
    wide = Planner(Sequences(base.lengths.astype(np.int64), base.rows.astype(np.int32)), SETTINGS).epoch(0)
    assert wide.plan_sha256 == planned().plan_sha256


def test_the_order_hash_is_that_of_little_endian_int32() -> None:
    plan = planned()
    written = b"".join(int(bucket).to_bytes(4, "little") for bucket in plan.order)
    assert plan.order_sha256 == hashlib.sha256(written).hexdigest()


def test_the_same_epoch_comes_out_on_every_machine() -> None:
    plan = planned(epoch=5)
    hashes = [plan.batches_sha256[:16], plan.order_sha256[:16], plan.plan_sha256[:16]]
    assert hashes == ["9b346d89db3de87d", "bbdeace79cb92d8c", "83d7a0c3a0707d6e"]


def test_steps_resume_where_they_are_told() -> None:
    plan = planned()
    numbers = [[batch.number for batch in step] for step in plan.steps(start=plan.n_steps - 2)]
    last = (plan.n_steps - 1) * 3
    assert numbers == [list(range(last - 3, last)), list(range(last, plan.n_batches))]


def test_step_sums_add_up_the_sequences_of_each_step() -> None:
    plan = planned()
    length_of = dict(zip(plan.sequences.rows.tolist(), plan.sequences.lengths.tolist(), strict=True))
    by_hand = [sum(length_of[row] for batch in step for row in batch.sequence_rows) for step in plan.steps()]
    assert plan.step_sums(plan.sequences.lengths).tolist() == by_hand


def test_weight_per_step_is_the_epochs_weight_over_its_steps_whatever_the_order() -> None:
    for strategy in STRATEGIES:
        plan = planned(dataclasses.replace(SETTINGS, interleave=strategy))
        assert plan.weight_per_step == some_sequences().lengths.sum() * 0.5 / plan.n_steps
        assert plan.n_anchors == (some_sequences().lengths // 4).sum()


def test_without_weights_and_anchors_there_is_no_constant() -> None:
    plan = Planner(Sequences(np.array([3, 4]), np.array([0, 1])), SETTINGS).epoch(0)
    assert plan.weight_per_step is None
    assert plan.n_anchors is None


@pytest.mark.parametrize("number", [-1, 10**6])
def test_a_batch_or_step_outside_the_epoch_is_refused(number: int) -> None:
    plan = planned()
    with pytest.raises(IndexError, match="batch number must be in 0"):
        plan.batch(number)
    with pytest.raises(IndexError, match="step must be in 0"):
        plan.step(number)


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_an_empty_store_or_sequence_is_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^data\.path must hold at least one sequence, each of one token or more"):
        Sequences(np.array(lengths, dtype=np.int32), np.arange(len(lengths)))


@pytest.mark.parametrize("name", ["rows", "weights", "anchors"])
def test_arrays_of_other_sequences_are_refused(name: str) -> None:
    arrays = {"rows": np.arange(2), name: np.arange(3)}
    with pytest.raises(ValueError, match=rf"^{name} must have one entry for each of the 2 lengths, got shape \(3,\)"):
        Sequences(np.array([5, 6]), **arrays)


def test_the_longest_must_fit_the_budget() -> None:
    with pytest.raises(ValueError, match=r"^batches\.budget_tokens must hold one sequence: the longest is 63 tokens"):
        planned(dataclasses.replace(SETTINGS, batches=TokenBudget(60, 0, None, frozen=False)))


def test_a_step_of_no_batches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^batches_per_step must be >= 1, got 0"):
        dataclasses.replace(SETTINGS, batches_per_step=0)


@dataclasses.dataclass(frozen=True)
class Forgetful:
    def order(self, counts: Sequence[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return Shuffle().order(counts, rng)[1:]


def test_a_strategy_that_drops_a_batch_is_named() -> None:
    with pytest.raises(ValueError, match=r"^interleave=forgetful must draw every bucket as often as it has batches"):
        draw_order(Forgetful(), [3, 4], SETTINGS.seeds, epoch=0)


def test_streams_are_told_apart_by_name_seed_and_epoch() -> None:
    keys = [("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1), ("a", 11, 0), ("a", 1, 10)]
    assert len({tuple(named_rng(*key).integers(2**62, size=4).tolist()) for key in keys}) == len(keys)
    assert named_rng("a", 0, 0).random() == named_rng("a", 0, 0).random()


@pytest.mark.parametrize("name", ["init", "data", "anchors", "order"])
def test_a_negative_seed_is_refused(name: str) -> None:
    seeds = {"init": 0, "data": 0, "anchors": 0, "order": 0, name: -1}
    with pytest.raises(ValueError, match=rf"^seeds\.{name} must be >= 0, got -1"):
        Seeds(**seeds)
