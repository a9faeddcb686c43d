"""What of a stage's launching was host-bound, by events that are past; on both ways through the line."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from dflash_exp.messages import (
    BatchPlan,
    Launch,
    LossSums,
    StageTime,
    StepResult,
    StepTiming,
    TargetFeatures,
    TokenBatch,
)
from dflash_exp.pipeline.launches import host_bound_s, launched, with_host_bound
from dflash_exp.pipeline.line import Overlapped, run_lockstep, run_overlapped
from dflash_exp.pipeline.stages import Stages, Threads

EMPTY = torch.empty(0, dtype=torch.int64)
FREE = Threads(None, None)


@dataclass(frozen=True)
class At:
    """A mark that a stream passed then."""

    ms: float

    def elapsed_time(self, end_event: Any) -> float:
        return end_event.ms - self.ms

    def wait(self, stream: Any = None) -> None:
        pass


def launch(host_s: float, device_s: float, ahead: bool = False) -> Launch:
    return Launch(host_s, At(500.0), At(500.0 + 1000 * device_s), ahead)


@pytest.mark.parametrize(
    ("host_s", "device_s", "expected_s"),
    [
        (0.016, 0.012, 0.016),  # the device ended before the host had launched all, if it began when the host did
        (0.016, 0.017, 0.016),  # its last kernels end a little later
        (0.016, 0.018, 0.0),
        (0.016, 0.200, 0.0),
    ],
)
def test_launching_is_host_bound_where_the_device_took_hardly_longer(host_s, device_s, expected_s) -> None:
    assert host_bound_s(launch(host_s, device_s)) == expected_s


def test_launching_is_not_host_bound_where_the_device_began_after_it() -> None:
    assert host_bound_s(launch(0.016, 0.004, ahead=True)) == 0.0


def test_a_stage_s_seconds_add_up_over_its_batches_and_each_stage_has_its_own() -> None:
    pairs = [(launch(0.25, 0.25), launch(0.5, 9.0)), (launch(0.125, 0.1), launch(0.75, 0.5)), (launch(4.0, 9.0), None)]
    target, drafter = with_host_bound(StageTime(5.0, 1.0), StageTime(3.0, 2.0), pairs)
    assert target == StageTime(5.0, 1.0, host_bound_s=0.375)
    assert drafter == StageTime(3.0, 2.0, host_bound_s=0.75)


def test_where_nothing_was_launched_nothing_is_said() -> None:
    target, drafter = StageTime(5.0, 1.0), StageTime(3.0, 2.0)
    assert with_host_bound(target, drafter, [(None, None)]) == (target, drafter) == with_host_bound(target, drafter, [])


def test_on_a_cpu_work_is_done_and_not_timed() -> None:
    assert launched(torch.device("cpu"), lambda: 7) == (7, None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_many_small_kernels_are_host_bound_and_few_large_ones_are_not() -> None:
    device = torch.device("cuda")
    small, large = torch.zeros(1, device=device), torch.zeros(8192, 8192, device=device)

    def many() -> None:
        for _ in range(2000):
            small.add_(1)

    def few() -> None:
        for _ in range(20):
            torch.mm(large, large)

    for work, bound in ((many, True), (few, False)):
        work()
        torch.cuda.synchronize()
        _, one = launched(device, work)
        torch.cuda.synchronize()
        assert one is not None and (host_bound_s(one) > 0) is bound, work.__name__


class Devices:
    """Stages of a made-up device: the target of batch n launches n seconds, host-bound where n is even."""

    def prefetch(self, plan: BatchPlan) -> TokenBatch:
        return TokenBatch(plan, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)

    def target(self, batch: TokenBatch) -> TargetFeatures:
        n = batch.plan.number
        return replace(TargetFeatures(batch, EMPTY), launch=launch(float(n), 0.5 if n % 2 == 0 else 100.0))

    def accumulate(self, features: TargetFeatures) -> Launch | None:
        return launch(10.0, 10.0)

    def meet(self) -> None:
        pass

    def finish(self) -> StepResult:
        return StepResult(0, LossSums(0.0, 0.0, 0, 0, 0, 0), {}, [], 1, 1, False, 0.1, 1.0, False, False)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_step_s_timing_says_what_of_its_own_batches_was_host_bound(overlapped: bool) -> None:
    plans = [BatchPlan(n, 0, n // 3, 0, n, np.array([n])) for n in range(5)]
    made, timings = Devices(), list[StepTiming]()
    stages = Stages(made.prefetch, [made.target], made, lambda _: 1, lambda _: 1)

    def after_step(_: StepResult, timing: StepTiming) -> bool:
        timings.append(timing)
        return True

    steps = [tuple(plans[:3]), tuple(plans[3:])]
    if overlapped:
        run_overlapped(steps, stages, Overlapped(FREE, 2, 2, 10, 20.0), after_step, pytest.fail)
    else:
        run_lockstep(steps, stages, FREE, after_step)
    assert [timing.target.host_bound_s for timing in timings] == [0.0 + 2.0, 4.0]
    assert [timing.drafter.host_bound_s for timing in timings] == [30.0, 20.0]
    assert all(timing.prefetch.host_bound_s is None for timing in timings)
