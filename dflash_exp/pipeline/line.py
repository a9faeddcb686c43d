"""The line: plan -> prefetch -> target forward -> drafter step, one optimizer step at a time.

In: the steps of the plan, the three stages, and what to do after each step. `run_lockstep` is a for-loop;
`run_overlapped` gives the same results with the stages in threads of their own, joined by bounded channels.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from dflash_exp.messages import BatchPlan, StageTime, StepTiming
from dflash_exp.pipeline.channel import Channel
from dflash_exp.pipeline.drafter_train import DrafterTrainLoop
from dflash_exp.pipeline.launches import BatchLaunches, with_host_bound
from dflash_exp.pipeline.prefetch import BatchPrefetcher
from dflash_exp.pipeline.stages import AfterStep, Forwarded, Prefetched, Stages, Threads, named
from dflash_exp.pipeline.supervisor import Loop, Supervisor
from dflash_exp.pipeline.target_forward import Forward, TargetForwardLoop
from dflash_exp.pipeline.watch import Watch

Steps = Iterable[tuple[BatchPlan, ...]]


@dataclass(frozen=True)
class Lockstep:
    """A for-loop over the plan."""

    threads: Threads


@dataclass(frozen=True)
class Overlapped:
    """Each stage in a thread of its own."""

    threads: Threads
    batches_ahead: int
    """Batches that the prefetcher may hold ready."""
    features_ahead: int
    """Batches whose features may be under way or waiting, over all target loops."""
    features_bytes: int
    """Memory of those features; one batch passes whatever its size."""
    stall_timeout_s: float

    def __post_init__(self) -> None:
        counts = {"batches_ahead": self.batches_ahead, "features_ahead": self.features_ahead}
        for name, value in {**counts, "features_bytes": self.features_bytes}.items():
            if value < 1:
                raise ValueError(f"pipeline.{name} must be >= 1, got {value}; pipeline=lockstep overlaps nothing")
        if not self.stall_timeout_s > 0:
            raise ValueError(f"pipeline.stall_timeout_s must be > 0, got {self.stall_timeout_s}; .inf waits for ever")


def run_lockstep(steps: Steps, stages: Stages, threads: Threads, after_step: AfterStep) -> None:
    """Train on `steps` in order, each batch through all stages before the next, until `after_step` returns False."""
    default = torch.get_num_threads()
    try:
        for step in steps:
            started_s = time.perf_counter()
            busy_s = {"prefetch": 0.0, "target": 0.0, "drafter": 0.0, "meeting": 0.0}
            launches: list[BatchLaunches] = []
            for plan in step:
                with _timed(busy_s, "prefetch"), named("prefetch", plan):
                    batch = stages.prefetch(plan)
                shape = tuple(batch.tokens_BT.shape)
                torch.set_num_threads(threads.target or default)
                with _timed(busy_s, "target"), named("target", plan, shape):
                    features = stages.targets[0](batch)
                    if stages.landings is not None:
                        features = stages.landings[0](features, None)
                torch.set_num_threads(threads.drafter or default)
                with _timed(busy_s, "drafter"), named("drafter", plan, shape):
                    launches.append((features.launch, stages.drafter.accumulate(features)))
            torch.set_num_threads(threads.drafter or default)
            with _timed(busy_s, "meeting"):
                stages.drafter.meet()
            with _timed(busy_s, "drafter"):
                result = stages.drafter.finish()
            prefetch, target, drafter = (StageTime(busy_s[name], 0.0) for name in ("prefetch", "target", "drafter"))
            target, drafter = with_host_bound(target, drafter, launches)
            step_s = time.perf_counter() - started_s
            if not after_step(result, StepTiming(prefetch, target, drafter, step_s, {}, busy_s["meeting"])):
                return
    finally:  # a sweep's next run must not inherit the threads of one that failed
        torch.set_num_threads(default)


class _timed:
    """Adds the seconds of a block to an account."""

    def __init__(self, account_s: dict[str, float], name: str) -> None:
        self._account_s, self._name = account_s, name

    def __enter__(self) -> None:
        self._started_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._account_s[self._name] += time.perf_counter() - self._started_s


def run_overlapped(
    steps: Steps,
    stages: Stages,
    config: Overlapped,
    after_step: AfterStep,
    on_stall: Callable[[str], None],
) -> None:
    """The same results as `run_lockstep`, the stages side by side, the target once for each of `stages.targets`. The
    calling thread supervises.

    A loop's failure is raised here, as it was raised there, after the others ended or five seconds passed.
    `on_stall` is told which stage is stuck before `StageStalled` is raised: the time to dump every thread's stack.
    """
    batches: Channel[Prefetched] = Channel(config.batches_ahead)
    features: Channel[Forwarded] = Channel(config.features_ahead, stages.arena_bytes or config.features_bytes)
    channels = {"batches": batches, "features": features}
    default = torch.get_num_threads()
    for_target, for_drafter = config.threads.target or default, config.threads.drafter or default
    loops: list[Loop] = [BatchPrefetcher(steps, stages, batches, Watch("prefetch"))]
    landings = stages.landings or [None] * len(stages.targets)
    for i, (target, land) in enumerate(zip(stages.targets, landings, strict=True)):
        forward = Forward(target, stages.features_bytes, land, for_target)
        loops.append(TargetForwardLoop(batches, features, forward, Watch(f"target-{i}")))
    loops += [DrafterTrainLoop(channels, stages.drafter, after_step, for_drafter, Watch("drafter"))]
    try:
        Supervisor(loops, list(channels.values()), config.stall_timeout_s, on_stall).run()
    finally:
        torch.set_num_threads(default)
