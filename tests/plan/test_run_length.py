"""A run is as many steps of as many epochs as its length says."""

import numpy as np
import pytest

from dflash_exp.plan.batches import TokenBudget
from dflash_exp.plan.buckets import Quantile
from dflash_exp.plan.epoch import Planner, PlanSettings
from dflash_exp.plan.interleave import Shuffle
from dflash_exp.plan.run_length import EpochSteps, RunLength, resolve_length
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import Sequences

LENGTHS = np.random.default_rng(0).integers(1, 60, 100)
SETTINGS = PlanSettings(Quantile(3), TokenBudget(64, 0, None, frozen=False), Shuffle(), 4, Seeds(0, 0, 0, 0))
PLANNER = Planner(Sequences(LENGTHS, np.arange(100)), SETTINGS)
N_STEPS = [PLANNER.epoch(epoch).n_steps for epoch in range(4)]


def resolved(epochs: int | None = None, steps: int | None = None, tokens: int | None = None) -> list[EpochSteps]:
    return resolve_length(RunLength(epochs, steps, tokens), PLANNER.epoch)


def test_epochs_are_taken_whole() -> None:
    assert resolved(epochs=3) == [EpochSteps(epoch, N_STEPS[epoch]) for epoch in range(3)]


def test_steps_run_over_the_end_of_an_epoch() -> None:
    assert resolved(steps=N_STEPS[0] + N_STEPS[1] + 2) == [*resolved(epochs=2), EpochSteps(2, 2)]


def test_steps_that_end_with_an_epoch_start_no_other() -> None:
    assert resolved(steps=N_STEPS[0]) == resolved(epochs=1)
    assert resolved(steps=1) == [EpochSteps(0, 1)]


def test_the_step_that_reaches_the_tokens_is_the_last() -> None:
    first_three = int(PLANNER.epoch(0).step_sums(LENGTHS)[:3].sum())
    assert resolved(tokens=first_three) == [EpochSteps(0, 3)]
    assert resolved(tokens=first_three + 1) == [EpochSteps(0, 4)]
    assert resolved(tokens=first_three - 1) == [EpochSteps(0, 3)]


def test_tokens_run_over_the_end_of_an_epoch() -> None:
    whole = int(LENGTHS.sum())
    assert resolved(tokens=2 * whole) == resolved(epochs=2)
    assert resolved(tokens=2 * whole + 1) == [*resolved(epochs=2), EpochSteps(2, 1)]


def test_exactly_one_length_is_given() -> None:
    with pytest.raises(ValueError, match=r"^epochs\|steps\|tokens must be given exactly once, got epochs=1, steps=10"):
        RunLength(1, 10, None)
    with pytest.raises(ValueError, match="must be given exactly once, got none"):
        RunLength(None, None, None)


@pytest.mark.parametrize("name", ["epochs", "steps", "tokens"])
def test_a_run_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be >= 1, got 0"):
        RunLength(**({"epochs": None, "steps": None, "tokens": None} | {name: 0}))
