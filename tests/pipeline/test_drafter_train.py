"""The drafter stage: what a step's result says, what its gradient is divided by, and whom a bad gradient names."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from dflash_exp.drafter.gradient import FlatGradient
from dflash_exp.drafter.loss import BatchSums, LossConfig, Reduction
from dflash_exp.drafter.step import DrafterStep, StepOutcome
from dflash_exp.messages import BatchPlan, LossSums, NonFinite, StepResult, TargetFeatures, TokenBatch, total
from dflash_exp.pipeline.drafter_train import DrafterTrainer, PlannedStep, Reports, StepSetting
from dflash_exp.pipeline.meeting import Meeting, room
from dflash_exp.ranks import Alone
from tests.tiny_drafter import drafter_of


class FakeStep(DrafterStep):
    """Sums follow from the batch's index; notes the denominator."""

    def __init__(self, reduction: Reduction, finite: bool = True) -> None:
        self.loss = LossConfig(reduction, 4.0)
        self.drafter = drafter_of()
        self.sums = FlatGradient(self.drafter.parameters(), room(n_batches=3, n_ranks=1))
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
        self.sums.clear()
        return StepOutcome(grad_norm=0.25, clipped=True, cosine=0.5, update_norm=0.125)

    def discard(self) -> None:
        self.n_discarded += 1
        self.sums.clear()


@dataclass
class FakeSchedule:
    shares: list[float] = field(default_factory=list)

    def set_share(self, share: float, peak_scale: float) -> float:
        self.shares.append(share)
        return 10 * share * peak_scale


def features(
    bucket: int, index: int, lengths: list[int], epoch: int = 2, step: int = 7, number: int = 0
) -> TargetFeatures:
    plan = BatchPlan(number, epoch, step, bucket, index, np.array([index * 10, index * 10 + 1]))
    empty = torch.empty(0, dtype=torch.int64)
    tokens_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    return TargetFeatures(TokenBatch(plan, tokens_BT, tokens_BT > 0, torch.tensor(lengths), empty, empty), empty)


@dataclass
class Told:
    trained: list[TokenBatch] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    stop: bool = False


def trainer_of(
    step: DrafterStep,
    *steps: PlannedStep,
    schedule: FakeSchedule | None = None,
    non_finite: NonFinite = NonFinite.stop,
    told: Told | None = None,
) -> DrafterTrainer:
    told = told or Told()
    reports = Reports(told.trained.append, told.skipped.append, lambda: told.stop)
    meeting = Meeting(step.sums, Alone(), n_batches=3)
    return DrafterTrainer(step, schedule or FakeSchedule(), iter(steps), meeting, non_finite, reports)


def planned(*batches: TargetFeatures, setting: StepSetting | None = None) -> PlannedStep:
    return setting or SETTING, tuple(one.batch.plan for one in batches)


def trained(trainer: DrafterTrainer, *batches: TargetFeatures) -> StepResult:
    for one in batches:
        trainer.accumulate(one)
    trainer.meet()
    return trainer.finish()


SETTING = StepSetting(share=0.05, epoch_weight_per_step=40.0, n_batches=3)


def test_a_step_s_result_adds_its_batches_up_by_bucket_in_ascending_order() -> None:
    lengths = ((4, 0, [5, 3]), (1, 1, [6, 6]), (4, 2, [2]))
    batches = [features(bucket, index, of, number=10 + i) for i, (bucket, index, of) in enumerate(lengths)]
    result = trained(trainer_of(FakeStep(Reduction.epoch), planned(*batches)), *reversed(batches))
    assert result.sums == LossSums(12.0, 9.0, 18, 30, 6, 12)
    assert list(result.by_bucket.items()) == [
        (1, LossSums(4.0, 3.0, 6, 10, 2, 4)),
        (4, LossSums(8.0, 6.0, 12, 20, 4, 8)),
    ]
    assert result.buckets == [4, 1, 4], "in the order of the plan, whatever was trained first"
    assert (result.tokens, result.padded_tokens) == (22, 24)
    assert (result.epoch, result.grad_norm, result.clipped, result.short_step) == (2, 0.25, True, False)
    assert result.grad_cosine == 0.5 and result.update_norm == 0.125


def test_the_rate_is_that_of_the_step_s_share_of_the_run() -> None:
    schedule, one = FakeSchedule(), features(0, 0, [4])
    settings = [StepSetting(0.5, 40.0, 3), StepSetting(0.5, 40.0, 3, peak_scale=0.25)]
    steps = [planned(one), *(planned(one, setting=setting) for setting in settings)]
    trainer = trainer_of(FakeStep(Reduction.epoch), *steps, schedule=schedule)
    rates = [trained(trainer, one).lr for _ in range(3)]
    assert schedule.shares == [0.05, 0.5, 0.5] and rates == [0.5, 5.0, 1.25]


def test_nothing_of_a_step_is_left_for_the_next_and_a_step_with_fewer_batches_is_short() -> None:
    whole, last = [features(0, index, [4], number=index) for index in range(3)], features(2, 0, [3], number=3)
    trainer = trainer_of(FakeStep(Reduction.epoch), planned(*whole), planned(last))
    assert trained(trainer, *whole).short_step is False
    result = trained(trainer, last)
    assert (result.buckets, result.tokens, result.padded_tokens, result.short_step) == ([2], 3, 3, True)
    assert result.sums == LossSums(2.0, 1.5, 3, 5, 1, 2)


@pytest.mark.parametrize(
    ("reduction", "denominator"), [(Reduction.epoch, 40.0), (Reduction.step, 1.5 + 3.0), (Reduction.batch, 2.0)]
)
def test_the_gradient_is_divided_by_what_the_reduction_says(reduction: Reduction, denominator: float) -> None:
    step, batches = FakeStep(reduction), [features(0, 0, [4]), features(1, 1, [4], number=1)]
    trained(trainer_of(step, planned(*batches)), *batches)
    assert step.denominators == [denominator]


def test_a_gradient_that_is_not_finite_names_epoch_step_and_every_batch() -> None:
    batches = [features(3, 5, [4, 4]), features(0, 1, [4, 4], number=1)]
    trainer = trainer_of(FakeStep(Reduction.epoch, finite=False), planned(*batches))
    named = r"norm is nan \(epoch 2, step 7: bucket 3 index 5 rows \[50, 51\]; bucket 0 index 1 rows \[10, 11\]\)"
    with pytest.raises(FloatingPointError, match=named):
        trained(trainer, *batches)


def test_a_gradient_that_is_not_finite_can_be_skipped_and_is_named_and_the_next_step_goes_on() -> None:
    step, told = FakeStep(Reduction.epoch, finite=False), Told()
    bad, good = features(4, 0, [5, 3]), features(1, 1, [6])
    trainer = trainer_of(step, planned(bad), planned(good), non_finite=NonFinite.skip, told=told)
    result = trained(trainer, bad)
    assert result.skipped and not result.clipped and math.isnan(result.grad_norm) and step.n_discarded == 1
    assert result.grad_cosine is None and result.update_norm is None
    assert len(told.skipped) == 1 and "bucket 4 index 0 rows [0, 1]" in told.skipped[0]
    step.finite = True
    after = trained(trainer, good)
    assert not after.skipped and after.buckets == [1] and after.tokens == 6


def test_whatever_fails_at_the_end_of_a_step_names_epoch_step_and_every_batch() -> None:
    class OutOfMemory(FakeStep):
        def finish(self, denominator: float) -> StepOutcome:
            raise torch.OutOfMemoryError("in the optimizer")

    batches = [features(3, 5, [4, 4]), features(0, 1, [4, 4], number=1)]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        trained(trainer_of(OutOfMemory(Reduction.epoch), planned(*batches)), *batches)
    assert caught.value.__notes__ == [
        "in drafter, at the end of epoch 2, step 7: bucket 3 index 5 rows [50, 51]; bucket 0 index 1 rows [10, 11]"
    ]


def test_every_trained_batch_is_told_in_order() -> None:
    told = Told()
    batches = [features(4, index, [5], number=i) for i, index in enumerate((3, 1))]
    trained(trainer_of(FakeStep(Reduction.epoch), planned(*batches), told=told), *batches)
    assert [batch.plan.index for batch in told.trained] == [3, 1]


def test_a_stop_that_is_asked_for_is_agreed_on_at_the_meeting() -> None:
    told, one = Told(), features(0, 0, [4])
    trainer = trainer_of(FakeStep(Reduction.epoch), planned(one), planned(one), told=told)
    trained(trainer, one)
    told.stop = True
    assert not trainer.stop_agreed
    trained(trainer, one)
    assert trainer.stop_agreed


def test_a_batch_of_the_step_that_nobody_trained_ends_the_run() -> None:
    batches = [features(0, 0, [4]), features(1, 1, [4], number=1)]
    with pytest.raises(RuntimeError, match="trained by one rank, got batch 1 by 0"):
        trained(trainer_of(FakeStep(Reduction.epoch), planned(*batches)), batches[0])


def test_the_total_of_nothing_is_zero() -> None:
    parts = [LossSums(1.0, 2.0, 3, 4, 5, 6), LossSums(10.0, 20.0, 30, 40, 50, 60)]
    assert total([]) == LossSums(0.0, 0.0, 0, 0, 0, 0)
    assert total(parts) == LossSums(11.0, 22.0, 33, 44, 55, 66)
