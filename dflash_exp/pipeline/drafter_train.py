"""The drafter stage of the line: gradients add up over a step's batches, then one update.

In: features in plan order. Out: a `StepResult` a step. The learning rate and the loss's denominator come from a
schedule that is known before the run begins: one `StepSetting` for each optimizer step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dflash_exp.drafter.loss import BatchSums, denominator
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import BatchPlan, LossSums, StepResult, TargetFeatures, total, total_by_bucket


@dataclass(frozen=True)
class StepSetting:
    """What the plan knows of an optimizer step before it happens."""

    share: float
    """Share of the run's planned supervised tokens at the middle of the step."""
    epoch_weight_per_step: float
    """The constant of `loss.reduction=epoch`."""
    n_batches: int
    """Batches of a full step."""


class Scheduled(Protocol):
    """An optimizer whose rate follows the share of the run."""

    def set_share(self, share: float) -> float: ...


class DrafterTrainer:
    """Accumulates a step's batches and finishes it."""

    def __init__(self, step: DrafterStep, optimizer: Scheduled, settings: Iterator[StepSetting]) -> None:
        self._step = step
        self._optimizer = optimizer
        self._settings = settings
        self._done: list[tuple[BatchPlan, BatchSums]] = []
        self._tokens = self._padded_tokens = 0

    def accumulate(self, features: TargetFeatures) -> None:
        """Forward and backward of one batch."""
        batch = features.batch
        self._done.append((batch.plan, self._step.accumulate(features)))
        self._tokens += int(batch.lengths_B.sum())
        self._padded_tokens += batch.tokens_BT.numel()

    def finish(self) -> StepResult:
        """Divide, clip, update; raises FloatingPointError, naming the batches, when the gradient is not finite."""
        setting = next(self._settings)
        lr = self._optimizer.set_share(setting.share)
        plans, sums = [plan for plan, _ in self._done], [s for _, s in self._done]
        try:
            outcome = self._step.finish(denominator(self._step.loss.reduction, sums, setting.epoch_weight_per_step))
        except FloatingPointError as error:
            named = "; ".join(f"bucket {p.bucket} index {p.index} rows {p.sequence_rows.tolist()}" for p in plans)
            raise FloatingPointError(f"{error} (epoch {plans[0].epoch}, step {plans[0].step}: {named})") from error
        by_bucket = total_by_bucket((plan.bucket, read_sums(s)) for plan, s in self._done)
        result = StepResult(
            epoch=plans[0].epoch, sums=total(by_bucket.values()), by_bucket=dict(sorted(by_bucket.items())),
            buckets=[plan.bucket for plan in plans], tokens=self._tokens, padded_tokens=self._padded_tokens,
            short_step=len(plans) < setting.n_batches, lr=lr, grad_norm=outcome.grad_norm, clipped=outcome.clipped,
        )  # fmt: skip
        self._done, self._tokens, self._padded_tokens = [], 0, 0
        return result


def read_sums(sums: BatchSums) -> LossSums:
    """Read a batch's sums off the device (waits for it)."""
    return LossSums(float(sums.loss), sums.weight, int(sums.correct), sums.slots, int(sums.accepted), sums.anchors)
