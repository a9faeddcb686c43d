"""A batch's costs are linear in what it holds; coefficients are counted from sizes or fitted to records."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from dflash_exp.plan.batches import Batches
from dflash_exp.plan.cost import (
    StageCosts,
    Work,
    batch_costs,
    batch_work,
    counted_costs,
    fit_costs,
    in_steps,
    joined,
    slower_stage,
    stage_costs,
)

LENGTHS = np.array([3, 5, 2, 4], dtype=np.int32)
ANCHORS = np.array([1, 2, 0, 3])
BATCHES = Batches(np.array([1, 3, 0, 2]), np.array([0, 2, 4]), np.array([1, 1]))  # lengths 5 4 | 3 2
COSTS = StageCosts(1.0, 0.5, 0.25, 2.0, 3.0, 0.125, 0.75)


@dataclass(frozen=True)
class Qwen3Of4B:
    hidden_size: int = 2560
    intermediate_size: int = 9728
    n_heads: int = 32
    n_kv_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151_936


def test_work_is_what_each_batch_holds() -> None:
    work = batch_work(BATCHES, LENGTHS, ANCHORS, block_size=8)
    assert work.batches.tolist() == [1, 1]
    assert work.padded_tokens.tolist() == [10, 6]
    assert work.squares.tolist() == [41, 13]
    assert work.slots.tolist() == [40, 8]
    assert work.anchor_tokens.tolist() == [22, 3]
    assert work.tokens.tolist() == [9, 5]


def test_work_counts_beyond_32_bits() -> None:
    lengths = np.array([100_000, 100_000], dtype=np.int32)
    work = batch_work(Batches(np.array([0, 1]), np.array([0, 2]), np.array([1])), lengths, lengths, 16)
    assert work.squares.tolist() == work.anchor_tokens.tolist() == [2 * 10**10]


def test_a_step_s_work_is_that_of_its_batches_in_the_order_of_training() -> None:
    work = Work(*(np.array([1, 2, 4]) * factor for factor in (1, 10, 100, 1, 1, 1)))
    steps = in_steps(work, drawn=np.array([2, 0, 1]), bounds=np.array([0, 2, 3]))
    assert steps.batches.tolist() == [5, 2] and steps.squares.tolist() == [500, 200]
    assert joined([steps, work]).padded_tokens.tolist() == [50, 20, 10, 20, 40]


def test_costs_are_the_terms_of_both_stages_times_their_coefficients() -> None:
    target, drafter = batch_costs(BATCHES, LENGTHS, ANCHORS, 8, COSTS)
    assert target.tolist() == [1 + 0.5 * 10 + 0.25 * 41, 1 + 0.5 * 6 + 0.25 * 13]
    assert drafter.tolist() == [2 + 3 * 40 + 0.125 * 22 + 0.75 * 9, 2 + 3 * 8 + 0.125 * 3 + 0.75 * 5]


def test_the_slower_stage_is_the_one_with_the_larger_sum() -> None:
    target, drafter = np.array([3.0, 3.0]), np.array([5.0, 0.0])
    assert slower_stage(target, drafter) is target
    assert slower_stage(target, drafter * 2) is not target


def random_work(n_records: int) -> Work:
    rng = np.random.default_rng(0)
    names = [field.name for field in dataclasses.fields(Work)]
    return Work(**{name: rng.integers(1, 10 ** (2 + place), n_records) for place, name in enumerate(names)})


def test_a_fit_finds_the_coefficients_that_made_the_records() -> None:
    work = random_work(40)
    found = fit_costs(work, *stage_costs(work, COSTS))
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(COSTS), rel=1e-6)


def test_a_fit_predicts_records_it_has_not_seen_where_terms_vary_together() -> None:
    work = random_work(40)
    alike = dataclasses.replace(work, padded_tokens=work.batches * 2048)
    target, drafter = stage_costs(alike, COSTS)
    seen = Work(*(term[:30] for term in vars(alike).values()))
    predicted = stage_costs(alike, fit_costs(seen, target[:30], drafter[:30]))[0]
    np.testing.assert_allclose(predicted[30:], target[30:], rtol=1e-6)


def test_a_fit_never_finds_work_that_saves_time() -> None:
    work = random_work(40)
    falling = fit_costs(work, work.squares.max() - work.squares, work.tokens.max() - work.tokens)
    assert min(dataclasses.astuple(falling)) >= 0


def test_counted_costs_of_a_target_of_4b_make_the_drafter_five_times_slower_on_short_sequences() -> None:
    costs = counted_costs(Qwen3Of4B(), n_target_layers=34, n_drafter_layers=5, n_taps=5, block_size=16)
    short, long = [560] * 25, [4300] * 3  # 16k tokens a batch
    anchors = [322] * 25 + [399] * 3  # 8050 and 1197
    batches = Batches(np.arange(28), np.array([0, 25, 28]), np.array([1, 1]))
    target, drafter = batch_costs(batches, np.array(short + long), np.array(anchors), 16, costs)
    assert (target / 1e12).tolist() == pytest.approx([99, 104], rel=0.02)
    assert (drafter / 1e12).tolist() == pytest.approx([591, 99], rel=0.02)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_coefficient_below_zero_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"^costs\.drafter_slot must be >= 0, got"):
        dataclasses.replace(COSTS, drafter_slot=value)
