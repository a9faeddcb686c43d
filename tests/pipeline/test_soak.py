"""Thousands of steps, stops and faults without end: every batch is trained exactly once, in order."""

import copy
import random
import time
from dataclasses import replace
from itertools import islice

import pytest

from dflash_exp.messages import BatchPlan, StepResult, StepTiming, TargetFeatures, TokenBatch
from dflash_exp.pipeline.line import run_lockstep, run_overlapped
from dflash_exp.pipeline.stages import Stages
from tests.lengths import full_or
from tests.pipeline.test_overlapped import ONE, Arithmetic, Log, no_stall, overlapped, steps_of

N_STEPS, N_CYCLES, SAVE_EVERY = full_or(20_000, 3000), full_or(200, 30), 7


class Fault(Exception):
    """Injected."""


class Run:
    """A run that saves every few steps and goes on from there, as the real one does."""

    def __init__(self) -> None:
        self.state = Arithmetic(0)
        self.saved = copy.deepcopy(self.state)
        self.saved_results: list[StepResult] = []
        self.results: list[StepResult] = []

    def go_on(self, steps: list[tuple[BatchPlan, ...]], rng: random.Random) -> None:
        """One session: until its stop, its fault, or the end."""
        n_more, kind = rng.randrange(1, 2 * N_STEPS // N_CYCLES), rng.choice(["stop", "prefetch", "target", "drafter"])
        until = len(self.results) + n_more

        def after(result: StepResult, _: StepTiming) -> bool:
            self.results.append(result)
            stops = kind == "stop" and len(self.results) >= until
            if stops or len(self.results) % SAVE_EVERY == 0:
                self.save()
            return not stops

        config = overlapped(batches_ahead=rng.randrange(1, 9), features_ahead=rng.randrange(1, 9))
        left = islice(steps, len(self.results), None)
        try:
            stages = faulty(self.state, kind, until, rng, n_workers=rng.randrange(1, 4))
            run_overlapped(left, stages, config, after, no_stall)
        except Fault:
            self.state, self.results = copy.deepcopy(self.saved), list(self.saved_results)

    def save(self) -> None:
        self.saved, self.saved_results = copy.deepcopy(self.state), list(self.results)


def faulty(state: Arithmetic, kind: str, number: int, rng: random.Random, n_workers: int) -> Stages:
    """The stages with random delays, one of which fails at batch `number`."""
    pauses = random.Random(rng.random())

    def rest(stage: str, at: int) -> None:
        if kind == stage and at == number:
            raise Fault(stage)
        if pauses.random() < 0.02:
            time.sleep(pauses.random() * 2e-4)

    def prefetch(plan: BatchPlan) -> TokenBatch:
        rest("prefetch", plan.number)
        return state.prefetch(plan)

    def target(batch: TokenBatch) -> TargetFeatures:
        rest("target", batch.plan.number)
        return state.target(batch)

    class Drafter:
        def accumulate(self, features: TargetFeatures) -> None:
            rest("drafter", features.batch.plan.number)
            state.accumulate(features)

        def meet(self) -> None:
            pass

        def finish(self) -> StepResult:
            return state.finish()

    return replace(state.stages(), prefetch=prefetch, targets=[target] * n_workers, drafter=Drafter())


@pytest.mark.slow
def test_stops_and_faults_at_random_leave_no_trace() -> None:
    steps, rng, oracle = steps_of(N_STEPS, 1), random.Random(0), Log()
    run_lockstep(steps, Arithmetic(0).stages(), ONE, oracle)
    run, n_sessions = Run(), 0
    while len(run.results) < N_STEPS:
        run.go_on(steps, rng)
        n_sessions += 1
    assert n_sessions > 0.8 * N_CYCLES
    assert run.state.trained == list(range(N_STEPS))
    assert run.results == oracle.results
