"""The overlapped line: what a for-loop gives, whoever is first; and how it ends, fails and stalls."""

import random
import threading
import time
import traceback
from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_exp.messages import BatchPlan, LossSums, StepResult, StepTiming, TargetFeatures, TokenBatch
from dflash_exp.pipeline.line import Overlapped, run_lockstep, run_overlapped
from dflash_exp.pipeline.stages import Stages, Threads
from dflash_exp.pipeline.supervisor import StageStalled

EMPTY = torch.empty(0, dtype=torch.int64)
ONE = Threads(None, None)


class Arithmetic:
    """Stages whose results depend on every batch and on their order, down to the last bit."""

    def __init__(self, seed: int, pause_s: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.pause_s = pause_s
        self.weight = np.float64(1.0)
        self.gradient = np.float64(0.0)
        self.trained: list[int] = []
        self.step_buckets: list[int] = []

    def rest(self) -> None:
        if self.pause_s:
            time.sleep(self.rng.random() * self.pause_s)

    def prefetch(self, plan: BatchPlan) -> TokenBatch:
        self.rest()
        return TokenBatch(plan, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)

    def target(self, batch: TokenBatch) -> TargetFeatures:
        self.rest()
        return TargetFeatures(batch, torch.tensor([1.0 / (3 + batch.plan.number)], dtype=torch.float64))

    def accumulate(self, features: TargetFeatures) -> None:
        self.rest()
        self.trained.append(features.batch.plan.number)
        self.step_buckets.append(features.batch.plan.bucket)
        self.gradient += np.sin(self.weight) * features.features_PF.item()

    def meet(self) -> None:
        pass

    def finish(self) -> StepResult:
        self.weight -= 0.1 * self.gradient
        sums = LossSums(float(self.weight), 1.0, 0, 0, 0, 0)
        result = StepResult(0, sums, {}, self.step_buckets, 1, 1, False, 0.1, float(self.gradient), False, False)
        self.gradient, self.step_buckets = np.float64(0.0), []
        return result

    def stages(self, workers: int = 1) -> Stages:
        return Stages(
            self.prefetch, [self.target] * workers, self, lambda _: 8, lambda batch: 1 + batch.plan.number % 7
        )


def steps_of(n_batches: int, a_step: int) -> list[tuple[BatchPlan, ...]]:
    plans = [BatchPlan(n, 0, n // a_step, n % 5, n, np.array([n])) for n in range(n_batches)]
    return [tuple(plans[i : i + a_step]) for i in range(0, n_batches, a_step)]


def overlapped(**changed: float) -> Overlapped:
    config = Overlapped(ONE, batches_ahead=3, features_ahead=4, features_bytes=1000, stall_timeout_s=20.0)
    return replace(config, **changed)


class Log:
    """Keeps what comes after each step; says stop after so many."""

    def __init__(self, n_steps: int = 10**9) -> None:
        self.results: list[StepResult] = []
        self.timings: list[StepTiming] = []
        self.n_steps = n_steps

    def __call__(self, result: StepResult, timing: StepTiming) -> bool:
        self.results.append(result)
        self.timings.append(timing)
        return len(self.results) < self.n_steps


def no_stall(shown: str) -> None:
    raise AssertionError(shown)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("capacity", [1, 2, 7, 50])
def test_the_results_are_those_of_a_for_loop_bit_for_bit(workers: int, capacity: int) -> None:
    oracle = Log()
    run_lockstep(steps_of(40, 3), Arithmetic(0).stages(), ONE, oracle)
    for seed in range(3):
        log, stages = Log(), Arithmetic(seed, pause_s=0.002)
        config = overlapped(batches_ahead=capacity, features_ahead=capacity, features_bytes=1 + 5 * seed)
        run_overlapped(steps_of(40, 3), stages.stages(workers), config, log, no_stall)
        assert log.results == oracle.results
        assert stages.trained == list(range(40))


def test_a_step_of_which_this_rank_trains_nothing_is_finished_too() -> None:
    plans = steps_of(6, 2)
    steps = [(), plans[0], (), (), plans[1], ()]
    oracle, log = Log(), Log()
    run_lockstep(steps, Arithmetic(0).stages(), ONE, oracle)
    run_overlapped(steps, Arithmetic(0).stages(3), overlapped(batches_ahead=1, features_ahead=1), log, no_stall)
    assert [result.buckets for result in oracle.results] == [[], [0, 1], [], [], [2, 3], []]
    assert log.results == oracle.results


def test_the_line_ends_where_it_is_told_to_and_trains_nothing_more() -> None:
    log, stages = Log(n_steps=4), Arithmetic(0)
    run_overlapped(steps_of(40, 2), stages.stages(2), overlapped(), log, no_stall)
    assert stages.trained == list(range(8)) and len(log.results) == 4
    assert not loops()


def test_a_plan_without_steps_is_over_at_once() -> None:
    log = Log()
    run_overlapped([], Arithmetic(0).stages(3), overlapped(), log, no_stall)
    assert log.results == []


@pytest.mark.parametrize("stage", ["prefetch", "target", "drafter", "after"])
def test_a_failure_in_any_loop_surfaces_with_its_own_traceback_and_the_batch_s_name(stage: str) -> None:
    numbers = Arithmetic(0)

    def fail_at_five(item: BatchPlan | TokenBatch | TargetFeatures) -> None:
        plan = item if isinstance(item, BatchPlan) else item.plan if isinstance(item, TokenBatch) else item.batch.plan
        if plan.number == 5:
            raise ArithmeticError(f"the {stage}'s own")

    def after(result: StepResult, timing: StepTiming) -> bool:
        if stage == "after" and len(numbers.trained) == 6:
            raise ArithmeticError("the after's own")
        return True

    def prefetch(plan: BatchPlan) -> TokenBatch:
        fail_at_five(plan)
        return numbers.prefetch(plan)

    def target(batch: TokenBatch) -> TargetFeatures:
        fail_at_five(batch)
        return numbers.target(batch)

    class FailingDrafter:
        def accumulate(self, features: TargetFeatures) -> None:
            fail_at_five(features)
            numbers.accumulate(features)

        def meet(self) -> None:
            pass

        def finish(self) -> StepResult:
            return numbers.finish()

    plain = numbers.stages(2)
    stages = {
        "prefetch": replace(plain, prefetch=prefetch),
        "target": replace(plain, targets=[target] * 2),
        "drafter": replace(plain, drafter=FailingDrafter()),
        "after": plain,
    }[stage]
    started_s = time.monotonic()
    with pytest.raises(ArithmeticError, match=f"the {stage}'s own") as caught:
        run_overlapped(steps_of(40, 2), stages, overlapped(), after, no_stall)
    assert time.monotonic() - started_s < 30
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert ("after" if stage == "after" else "fail_at_five") in frames
    if stage != "after":
        assert "batch 5 of epoch 0" in caught.value.__notes__[0] and f"in {stage}" in caught.value.__notes__[0]


def test_a_stage_that_is_silent_too_long_is_named_and_the_line_fails() -> None:
    stages, stuck, said = Arithmetic(0), threading.Event(), list[str]()

    def target(batch: TokenBatch) -> TargetFeatures:
        if batch.plan.number == 3:
            stuck.wait(60.0)
        return stages.target(batch)

    with pytest.raises(StageStalled, match=r"pipeline\.stall_timeout_s=0\.2 s, got: prefetch .*target-0 busy"):
        run_overlapped(
            steps_of(20, 1), replace(stages.stages(), targets=[target]), overlapped(stall_timeout_s=0.2), Log(),
            said.append,
        )  # fmt: skip
    stuck.set()
    assert len(said) == 1 and "target-0 busy, drafter waiting" in said[0]


def test_a_long_wait_for_a_slow_stage_is_no_stall() -> None:
    stages = Arithmetic(0)

    def target(batch: TokenBatch) -> TargetFeatures:
        time.sleep(0.4)
        return stages.target(batch)

    log = Log()
    config = overlapped(stall_timeout_s=2.0)
    run_overlapped(steps_of(6, 6), replace(stages.stages(), targets=[target]), config, log, no_stall)
    assert len(log.results) == 1 and log.timings[0].drafter.wait_s > 2.0


def loops() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(("prefetch", "target", "drafter"))]


def test_an_interrupt_in_the_supervisor_waits_for_no_loop_and_stops_them_all() -> None:
    stages = Arithmetic(0, pause_s=0.005)

    def interrupt(shown: str) -> None:
        raise KeyboardInterrupt

    stuck = threading.Event()

    def target(batch: TokenBatch) -> TargetFeatures:
        stuck.wait(60.0)
        return stages.target(batch)

    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_overlapped(
            steps_of(40, 1), replace(stages.stages(), targets=[target]), overlapped(stall_timeout_s=0.1), Log(),
            interrupt,
        )  # fmt: skip
    assert time.monotonic() - began_s < 30
    stuck.set()
    for loop in loops():
        loop.join(5.0)
    assert not loops()


def test_busy_and_wait_add_up_to_the_time_of_the_step_and_the_channels_fill_is_told() -> None:
    log = Log()
    run_overlapped(steps_of(12, 3), Arithmetic(0, pause_s=0.004).stages(), overlapped(), log, no_stall)
    spent_s = sum(timing.drafter.busy_s + timing.drafter.wait_s for timing in log.timings)
    assert spent_s == pytest.approx(sum(timing.step_s for timing in log.timings), rel=0.5)
    for timing in log.timings:
        assert set(timing.channels) == {"batches", "features"}
        assert 0 <= timing.channels["features"].items <= 4 and timing.channels["features"].capacity == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batches_ahead": 0}, r"pipeline\.batches_ahead must be >= 1, got 0; pipeline=lockstep"),
        ({"features_bytes": 0}, r"pipeline\.features_bytes must be >= 1, got 0"),
        ({"stall_timeout_s": 0.0}, r"pipeline\.stall_timeout_s must be > 0, got 0\.0; \.inf"),
    ],
)
def test_values_out_of_range_are_refused(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlapped(**changed)
