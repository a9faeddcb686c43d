"""The drafter stage: what a step's result says, what its gradient is divided by, and whom a bad gradient names."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from dflash_exp.drafter.loss import BatchSums, LossConfig, Reduction
from dflash_exp.drafter.step import DrafterStep, StepOutcome
from dflash_exp.messages import BatchPlan, LossSums, NonFinite, TargetFeatures, TokenBatch, total
from dflash_exp.pipeline.drafter_train import DrafterTrainer, Reports, StepSetting


class FakeStep(DrafterStep):
    """Sums follow from the batch's index; notes the denominator."""

    def __init__(self, reduction: Reduction, finite: bool = True) -> None:
        self.loss = LossConfig(reduction, 4.0)
        self.finite = finite
        self.denominators: list[float] = []
        self.n_discarded = 0

    def accumulate(self, features: TargetFeatures) -> BatchSums:
        k = features.batch.plan.index + 1
        loss, correct, accepted = torch.tensor(2.0 * k), torch.tensor(3 * k), torch.tensor(k)
        return BatchSums(loss, correct, accepted, weight=1.5 * k, slots=5 * k, anchors=2 * k)

    def finish(self, denominator: float) -> StepOutcome:
        self.denominators.append(denominator)
        if not self.finite:
            raise FloatingPointError("the gradient must be finite, its norm is nan")
        return StepOutcome(grad_norm=0.25, clipped=True)

    def discard(self) -> None:
        self.n_discarded += 1


@dataclass
class FakeSchedule:
    shares: list[float] = field(default_factory=list)

    def set_share(self, share: float) -> float:
        self.shares.append(share)
        return 10 * share


def features(bucket: int, index: int, lengths: list[int], epoch: int = 2, step: int = 7) -> TargetFeatures:
    plan = BatchPlan(0, epoch, step, bucket, index, np.array([index * 10, index * 10 + 1]))
    empty = torch.empty(0, dtype=torch.int64)
    tokens_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    return TargetFeatures(TokenBatch(plan, tokens_BT, tokens_BT > 0, torch.tensor(lengths), empty, empty), empty)


@dataclass
class Told:
    trained: list[TokenBatch] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def trainer_of(
    step: DrafterStep,
    *settings: StepSetting,
    schedule: FakeSchedule | None = None,
    non_finite: NonFinite = NonFinite.stop,
    told: Told | None = None,
) -> DrafterTrainer:
    told = told or Told()
    reports = Reports(told.trained.append, told.skipped.append)
    return DrafterTrainer(step, schedule or FakeSchedule(), iter(settings), non_finite, reports)


SETTING = StepSetting(share=0.05, epoch_weight_per_step=40.0, n_batches=3)


def test_a_step_s_result_adds_its_batches_up_by_bucket_in_ascending_order() -> None:
    trainer = trainer_of(FakeStep(Reduction.epoch), SETTING)
    for bucket, index, lengths in ((4, 0, [5, 3]), (1, 1, [6, 6]), (4, 2, [2])):
        trainer.accumulate(features(bucket, index, lengths))
    result = trainer.finish()
    assert result.sums == LossSums(12.0, 9.0, 18, 30, 6, 12)
    assert list(result.by_bucket.items()) == [
        (1, LossSums(4.0, 3.0, 6, 10, 2, 4)),
        (4, LossSums(8.0, 6.0, 12, 20, 4, 8)),
    ]
    assert result.buckets == [4, 1, 4]
    assert (result.tokens, result.padded_tokens) == (22, 24)
    assert (result.epoch, result.grad_norm, result.clipped, result.short_step) == (2, 0.25, True, False)


def test_the_rate_is_that_of_the_step_s_share_of_the_run() -> None:
    schedule = FakeSchedule()
    trainer = trainer_of(FakeStep(Reduction.epoch), SETTING, StepSetting(0.5, 40.0, 3), schedule=schedule)
    rates = []
    for _ in range(2):
        trainer.accumulate(features(0, 0, [4]))
        rates.append(trainer.finish().lr)
    assert schedule.shares == [0.05, 0.5] and rates == [0.5, 5.0]


def test_nothing_of_a_step_is_left_for_the_next_and_a_step_with_fewer_batches_is_short() -> None:
    trainer = trainer_of(FakeStep(Reduction.epoch), SETTING, SETTING)
    for index in range(3):
        trainer.accumulate(features(0, index, [4]))
    assert trainer.finish().short_step is False
    trainer.accumulate(features(2, 0, [3]))
    result = trainer.finish()
    assert (result.buckets, result.tokens, result.padded_tokens, result.short_step) == ([2], 3, 3, True)
    assert result.sums == LossSums(2.0, 1.5, 3, 5, 1, 2)


@pytest.mark.parametrize(
    ("reduction", "denominator"), [(Reduction.epoch, 40.0), (Reduction.step, 1.5 + 3.0), (Reduction.batch, 2.0)]
)
def test_the_gradient_is_divided_by_what_the_reduction_says(reduction: Reduction, denominator: float) -> None:
    step = FakeStep(reduction)
    trainer = trainer_of(step, SETTING)
    trainer.accumulate(features(0, 0, [4]))
    trainer.accumulate(features(1, 1, [4]))
    trainer.finish()
    assert step.denominators == [denominator]


def test_a_gradient_that_is_not_finite_names_epoch_step_and_every_batch() -> None:
    trainer = trainer_of(FakeStep(Reduction.epoch, finite=False), SETTING)
    trainer.accumulate(features(3, 5, [4, 4]))
    trainer.accumulate(features(0, 1, [4, 4]))
    named = r"norm is nan \(epoch 2, step 7: bucket 3 index 5 rows \[50, 51\]; bucket 0 index 1 rows \[10, 11\]\)"
    with pytest.raises(FloatingPointError, match=named):
        trainer.finish()


def test_a_gradient_that_is_not_finite_can_be_skipped_and_is_named_and_the_next_step_goes_on() -> None:
    step, told = FakeStep(Reduction.epoch, finite=False), Told()
    trainer = trainer_of(step, SETTING, SETTING, non_finite=NonFinite.skip, told=told)
    trainer.accumulate(features(4, 0, [5, 3]))
    result = trainer.finish()
    assert result.skipped and not result.clipped and math.isnan(result.grad_norm) and step.n_discarded == 1
    assert len(told.skipped) == 1 and "bucket 4 index 0 rows [0, 1]" in told.skipped[0]
    step.finite = True
    trainer.accumulate(features(1, 1, [6]))
    after = trainer.finish()
    assert not after.skipped and after.buckets == [1] and after.tokens == 6


def test_every_trained_batch_is_told_in_order() -> None:
    told = Told()
    trainer = trainer_of(FakeStep(Reduction.epoch), SETTING, told=told)
    for index in (3, 1):
        trainer.accumulate(features(4, index, [5]))
    assert [batch.plan.index for batch in told.trained] == [3, 1]


def test_the_total_of_nothing_is_zero() -> None:
    parts = [LossSums(1.0, 2.0, 3, 4, 5, 6), LossSums(10.0, 20.0, 30, 40, 50, 60)]
    assert total([]) == LossSums(0.0, 0.0, 0, 0, 0, 0)
    assert total(parts) == LossSums(11.0, 22.0, 33, 44, 55, 66)
