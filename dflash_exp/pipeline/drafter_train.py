"""The drafter stage of the line: gradients add up over a step's batches, then one update; and the loop around it.

In: features in plan order. Out: a `StepResult` a step, the same on every rank. The learning rate and the loss's
denominator come from a schedule that is known before the run begins: one `StepSetting` for each optimizer step.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from dflash_exp.drafter.loss import BatchSums, denominator
from dflash_exp.drafter.step import DrafterStep, StepOutcome
from dflash_exp.messages import (
    BatchPlan,
    ChannelFill,
    Launch,
    LossSums,
    NonFinite,
    StageTime,
    StepResult,
    StepTiming,
    TargetFeatures,
    TokenBatch,
    total,
    total_by_bucket,
)
from dflash_exp.pipeline.channel import Channel, EndOfChannel
from dflash_exp.pipeline.launches import BatchLaunches, launched, with_host_bound
from dflash_exp.pipeline.meeting import Meeting, OwnBatch, Told, checksum_of
from dflash_exp.pipeline.stages import AfterStep, DrafterStage, Forwarded, named, named_step, step_name, use_threads
from dflash_exp.pipeline.streams import wait_for
from dflash_exp.pipeline.watch import Doing, Watch

NO_TIME = StageTime(0.0, 0.0)


@dataclass(frozen=True)
class StepSetting:
    """What the plan knows of an optimizer step before it happens."""

    share: float
    """Share of the run's planned supervised tokens at the middle of the step."""
    epoch_weight_per_step: float
    """The constant of `loss.reduction=epoch`."""
    n_batches: int
    """Batches of a full step."""
    peak_scale: float = 1.0
    """What `optim.lr_scale` makes of the peak learning rate."""


PlannedStep = tuple[StepSetting, tuple[BatchPlan, ...]]
"""A whole step: its batches on all ranks."""
CHECKSUM_EVERY = 100
"""Steps between two comparisons of the ranks' parameters."""


class Scheduled(Protocol):
    """An optimizer whose rate follows the share of the run."""

    def set_share(self, share: float, peak_scale: float) -> float: ...


@dataclass(frozen=True)
class Reports:
    """Whom the trainer tells, and asks."""

    trained: Callable[[TokenBatch], None]
    """Of every batch that was trained here."""
    skipped: Callable[[str], None]
    """Of every step that was skipped, in a line."""
    asked_to_stop: Callable[[], bool]
    """Whether this rank was."""


class DrafterTrainer:
    """Accumulates a step's batches, meets the other ranks, and finishes it."""

    def __init__(
        self,
        step: DrafterStep,
        optimizer: Scheduled,
        planned: Iterator[PlannedStep],
        meeting: Meeting,
        non_finite: NonFinite,
        reports: Reports,
    ) -> None:
        """`planned`: every step from here on, whole, whichever rank trains its batches."""
        self._step = step
        self._optimizer = optimizer
        self._planned = planned
        self._meeting = meeting
        self._non_finite = non_finite
        self._reports = reports
        self._done: list[tuple[TokenBatch, BatchSums]] = []
        self._met: tuple[PlannedStep, Told] | None = None
        self._n_steps = 0

    @property
    def stop_agreed(self) -> bool:
        """Whether, at the last meeting, some rank was asked to stop."""
        return self._met is not None and self._met[1].stop

    def accumulate(self, features: TargetFeatures) -> Launch | None:
        """Forward and backward of one batch."""
        wait_for(features)
        sums, launch = launched(features.features_PF.device, lambda: self._step.accumulate(features))
        if features.read_until is not None and launch is not None:
            features.read_until(launch.done)
        self._done.append((features.batch, sums))
        self._reports.trained(features.batch)
        return launch

    def meet(self) -> None:
        """Add up gradients and sums over the ranks."""
        setting, plans = next(self._planned)
        first = plans[0].number
        own = {
            batch.plan.number - first: OwnBatch(sums, int(batch.lengths_B.sum()), batch.tokens_BT.numel())
            for batch, sums in self._done
        }
        due = self._n_steps % CHECKSUM_EVERY == 0
        checksum = checksum_of(self._step.drafter.parameters()) if due else None
        told = self._meeting.hold(own, len(plans), self._reports.asked_to_stop(), checksum)
        self._done, self._met = [], ((setting, plans), told)
        self._n_steps += 1

    def finish(self) -> StepResult:
        """Divide, clip, update. With `guard.non_finite=stop` raises FloatingPointError, naming the batches, when the
        gradient is not finite."""
        assert self._met is not None, "ranks meet before a step is finished"
        (setting, plans), reported = self._met[0], self._met[1].batches
        lr = self._optimizer.set_share(setting.share, setting.peak_scale)
        sums = [report.sums for report in reported]
        outcome = self._update(denominator(self._step.loss.reduction, sums, setting.epoch_weight_per_step), plans)
        by_bucket = total_by_bucket((plan.bucket, one) for plan, one in zip(plans, sums, strict=True))
        return StepResult(
            epoch=plans[0].epoch, sums=total(by_bucket.values()), by_bucket=dict(sorted(by_bucket.items())),
            buckets=[plan.bucket for plan in plans],
            tokens=sum(report.tokens for report in reported),
            padded_tokens=sum(report.padded_tokens for report in reported),
            short_step=len(plans) < setting.n_batches, lr=lr,
            grad_norm=math.nan if outcome is None else outcome.grad_norm,
            clipped=outcome is not None and outcome.clipped, skipped=outcome is None,
            grad_cosine=None if outcome is None else outcome.cosine,
            update_norm=None if outcome is None else outcome.update_norm,
        )  # fmt: skip

    def _update(self, denominator: float, plans: tuple[BatchPlan, ...]) -> StepOutcome | None:
        """None where the step was skipped."""
        try:
            with named_step(plans):
                return self._step.finish(denominator)
        except FloatingPointError as error:
            where = f"{error} ({step_name(plans)})"
            if self._non_finite is NonFinite.stop:
                raise FloatingPointError(where) from error
            self._step.discard()
            self._reports.skipped(f"skipped: {where}")
            return None


def read_sums(sums: BatchSums) -> LossSums:
    """Read a batch's sums off the device (waits for it)."""
    return LossSums(float(sums.loss), sums.weight, int(sums.correct), sums.slots, int(sums.accepted), sums.anchors)


class DrafterTrainLoop:
    """The last loop: takes features in plan order, trains, and calls `after_step` between two optimizer steps."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        stage: DrafterStage,
        after_step: AfterStep,
        threads: int,
        watch: Watch,
    ) -> None:
        """`channels["features"]` is read; the fill of all is reported."""
        self._channels = channels
        self._features: Channel[Forwarded] = channels["features"]
        self._stage = stage
        self._after_step = after_step
        self._threads = threads
        self.watch = watch

    def run(self) -> None:
        """Until the features end or `after_step` says so."""
        use_threads(self._threads)
        before_s = time.perf_counter()
        prefetch = target = NO_TIME
        launches: list[BatchLaunches] = []
        while True:
            try:
                number, item = self._features.take()
            except EndOfChannel:
                return
            if item.features is not None:
                launches.append((item.features.launch, self._train(item.features)))
            prefetch, target, ends_step = prefetch + item.prefetch, target + item.target, item.ends_step
            del item  # credit goes back when the memory does
            self._features.release(number)
            if ends_step:
                result = self._finish()
                step_s = time.perf_counter() - before_s
                meeting_s = self.watch.spent_s(Doing.meeting)
                target, drafter = with_host_bound(target, self.watch.lap(), launches)
                timing = StepTiming(prefetch, target, drafter, step_s, self._fill(), meeting_s)
                if not self._after_step(result, timing):
                    self._features.close()
                    return
                self.watch.lap()  # what is done between two steps is no part of either
                before_s = time.perf_counter()
                prefetch, target, launches = NO_TIME, NO_TIME, []
            self.watch.turn(Doing.waiting)

    def _train(self, features: TargetFeatures) -> Launch | None:
        self.watch.turn(Doing.busy)
        batch = features.batch
        with named("drafter", batch.plan, tuple(batch.tokens_BT.shape)):
            return self._stage.accumulate(features)

    def _finish(self) -> StepResult:
        self.watch.turn(Doing.meeting)
        self._stage.meet()
        self.watch.turn(Doing.busy)
        return self._stage.finish()

    def _fill(self) -> dict[str, ChannelFill]:
        found = {name: channel.statistics() for name, channel in self._channels.items()}
        return {name: ChannelFill(s.items, s.capacity, s.bytes) for name, s in found.items()}
