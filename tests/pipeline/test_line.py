"""The line in lockstep is a for-loop: each batch through every stage before the next, and every stage's seconds."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_exp.messages import BatchPlan, LossSums, StageTime, StepResult, StepTiming, TargetFeatures, TokenBatch
from dflash_exp.pipeline.line import run_lockstep
from dflash_exp.pipeline.stages import Stages, Threads

EMPTY = torch.empty(0, dtype=torch.int64)
RESULT = StepResult(0, LossSums(0.0, 0.0, 0, 0, 0, 0), {}, [], 1, 1, False, 0.1, 1.0, False, False)


class Recorder:
    """All three stages: notes who did what under how many threads; the clock stands in for work."""

    def __init__(self, spend: Callable[[float], None] = lambda _: None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.threads: dict[str, int] = {}
        self.spend = spend

    def prefetch(self, plan: BatchPlan) -> TokenBatch:
        self.note("prefetch", plan.number)
        self.spend(1.0)
        return TokenBatch(plan, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)

    def target(self, batch: TokenBatch) -> TargetFeatures:
        self.note("target", batch.plan.number)
        self.spend(10.0)
        return TargetFeatures(batch, EMPTY)

    def accumulate(self, features: TargetFeatures) -> None:
        self.note("drafter", features.batch.plan.number)
        self.spend(100.0)

    def meet(self) -> None:
        pass

    def finish(self) -> StepResult:
        self.note("finish", -1)
        self.spend(1000.0)
        return replace(RESULT, buckets=[number for stage, number in self.seen if stage == "drafter"])

    def note(self, stage: str, number: int) -> None:
        self.seen.append((stage, number))
        self.threads[stage] = torch.get_num_threads()

    def stages(self) -> Stages:
        return Stages(self.prefetch, [self.target], self, lambda _: 0, lambda _: 0)


def steps_of(*sizes: int) -> list[tuple[BatchPlan, ...]]:
    numbers = iter(range(sum(sizes)))
    return [tuple(BatchPlan(next(numbers), 0, s, 0, 0, np.arange(1)) for _ in range(n)) for s, n in enumerate(sizes)]


def train(
    steps: Iterable[tuple[BatchPlan, ...]], stages: Stages, threads: Threads, n_steps: int = 10
) -> list[StepTiming]:
    """The timings of the first `n_steps` steps."""
    timings: list[StepTiming] = []

    def after_step(_: StepResult, timing: StepTiming) -> bool:
        timings.append(timing)
        return len(timings) < n_steps

    run_lockstep(steps, stages, threads, after_step)
    return timings


def test_every_batch_goes_through_all_stages_before_the_next_and_steps_end_with_an_update() -> None:
    recorder = Recorder()
    train(steps_of(2, 1), recorder.stages(), Threads(None, None))
    stages = ("prefetch", "target", "drafter")
    assert recorder.seen == [
        *((stage, 0) for stage in stages), *((stage, 1) for stage in stages), ("finish", -1),
        *((stage, 2) for stage in stages), ("finish", -1),
    ]  # fmt: skip


def test_what_comes_after_a_step_comes_before_the_next_and_can_end_the_line() -> None:
    recorder = Recorder()
    assert len(train(steps_of(1, 1, 1), recorder.stages(), Threads(None, None), n_steps=2)) == 2
    assert [number for stage, number in recorder.seen if stage == "drafter"] == [0, 1]
    assert recorder.seen[-1] == ("finish", -1)


def test_the_plan_is_asked_for_one_step_at_a_time() -> None:
    steps = iter(steps_of(1, 1, 1))
    train(steps, Recorder().stages(), Threads(None, None), n_steps=1)
    assert [step[0].number for step in steps] == [1, 2]


def test_each_stage_s_seconds_are_its_own_and_the_update_is_the_drafter_s(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def spend(seconds: float) -> None:
        now_s[0] += seconds

    first, second = train(steps_of(2, 1), Recorder(spend).stages(), Threads(None, None))
    assert (first.prefetch, first.target, first.drafter) == tuple(StageTime(s, 0.0) for s in (2.0, 20.0, 1200.0))
    assert first.step_s == 1222.0 and first.channels == {}
    assert (second.prefetch, second.target, second.drafter) == tuple(StageTime(s, 0.0) for s in (1.0, 10.0, 1100.0))


def test_each_stage_has_its_own_number_of_threads_and_torch_s_comes_back() -> None:
    before, recorder = torch.get_num_threads(), Recorder()
    train(steps_of(1, 1), recorder.stages(), Threads(before + 1, before + 2))
    assert recorder.threads["target"] == before + 1
    assert recorder.threads["drafter"] == recorder.threads["finish"] == before + 2
    assert torch.get_num_threads() == before


def test_a_failing_stage_takes_the_line_down_with_its_own_error_and_leaves_torch_s_threads() -> None:
    def fails(_: TokenBatch) -> TargetFeatures:
        raise ArithmeticError("the target's own")

    before, stages = torch.get_num_threads(), replace(Recorder().stages(), targets=[fails])
    with pytest.raises(ArithmeticError, match="the target's own") as caught:
        train(steps_of(1), stages, Threads(before + 1, None))
    assert torch.get_num_threads() == before
    assert caught.value.__notes__ == [
        "in target, on batch 0 of epoch 0, step 0: bucket 0 index 0, 0 padded tokens, rows [0]"
    ]


def test_less_than_one_thread_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pipeline\.threads\.drafter must be >= 1, got 0; null"):
        Threads(None, 0)
