"""The line: plan -> prefetch -> target forward -> drafter step, one optimizer step at a time.

In: the steps of the plan and the three stages, each a plain callable. Out: what each step did, and how long each stage
was busy. `run_lockstep` is a for-loop; whatever overlaps the stages must give the same results as it does.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from dflash_exp.messages import BatchPlan, StepResult, StepTiming, TargetFeatures, TokenBatch

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class Threads:
    """Intra-op threads of each stage on a CPU; None: as torch has them."""

    target: int | None
    drafter: int | None

    def __post_init__(self) -> None:
        for name, threads in {"target": self.target, "drafter": self.drafter}.items():
            if threads is not None and threads < 1:
                raise ValueError(f"pipeline.threads.{name} must be >= 1, got {threads}; null leaves it to torch")


@dataclass(frozen=True)
class Lockstep:
    """A for-loop over the plan."""

    threads: Threads


class DrafterStage(Protocol):
    """The last stage: takes the batches of a step one by one, then updates the drafter."""

    def accumulate(self, features: TargetFeatures) -> None: ...
    def finish(self) -> StepResult: ...


@dataclass(frozen=True)
class Stages:
    """What is done to each batch."""

    prefetch: Callable[[BatchPlan], TokenBatch]
    target: Callable[[TokenBatch], TargetFeatures]
    drafter: DrafterStage


def run_lockstep(
    steps: Iterable[tuple[BatchPlan, ...]], stages: Stages, threads: Threads
) -> Iterator[tuple[StepResult, StepTiming]]:
    """Train on `steps` in order, each batch through all stages before the next; yields after every optimizer step."""
    default = torch.get_num_threads()
    try:
        for step in steps:
            watch = _Watch()
            for plan in step:
                batch = watch.timed("prefetch", stages.prefetch, plan)
                torch.set_num_threads(threads.target or default)
                features = watch.timed("target", stages.target, batch)
                torch.set_num_threads(threads.drafter or default)
                watch.timed("drafter", stages.drafter.accumulate, features)
            result = watch.timed("drafter", lambda _: stages.drafter.finish(), None)
            yield result, watch.timing()
    finally:  # a sweep's next run must not inherit the threads of one that failed
        torch.set_num_threads(default)


class _Watch:
    """Adds up the seconds of a step by stage."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._busy_s = {"prefetch": 0.0, "target": 0.0, "drafter": 0.0}

    def timed(self, stage: str, work: Callable[[In], Out], item: In) -> Out:
        before_s = time.perf_counter()
        done = work(item)
        self._busy_s[stage] += time.perf_counter() - before_s
        return done

    def timing(self) -> StepTiming:
        busy_s = self._busy_s
        return StepTiming(
            busy_s["prefetch"], busy_s["target"], busy_s["drafter"], time.perf_counter() - self._started_s
        )
