"""What is done to each batch, as plain callables, and what travels between the loops.

In: nothing. Out: the types that lockstep and the overlapped line share.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from dflash_exp.messages import BatchPlan, Launch, StageTime, StepResult, StepTiming, TargetFeatures, TokenBatch


@dataclass(frozen=True)
class Threads:
    """Intra-op threads of each stage on a CPU; None: as torch has them."""

    target: int | None
    drafter: int | None

    def __post_init__(self) -> None:
        for name, threads in {"target": self.target, "drafter": self.drafter}.items():
            if threads is not None and threads < 1:
                raise ValueError(f"pipeline.threads.{name} must be >= 1, got {threads}; null leaves it to torch")


class DrafterStage(Protocol):
    """The last stage: takes the batches of a step one by one, meets the other ranks, then updates the drafter."""

    def accumulate(self, features: TargetFeatures) -> Launch | None: ...
    def meet(self) -> None: ...
    def finish(self) -> StepResult: ...


Land = Callable[[TargetFeatures, int | None], TargetFeatures]
"""Brings features to the drafter's device: to where their range of bytes begins, None where they have none."""


@dataclass(frozen=True)
class Stages:
    """What is done to each batch."""

    prefetch: Callable[[BatchPlan], TokenBatch]
    targets: Sequence[Callable[[TokenBatch], TargetFeatures]]
    """One for each target loop."""
    drafter: DrafterStage
    batch_bytes: Callable[[TokenBatch], int]
    """Memory of a batch's tokens."""
    features_bytes: Callable[[TokenBatch], int]
    """Memory that a batch's features will take, known before they are there."""
    landings: Sequence[Land] | None = None
    """On CUDA: one for each target loop."""
    arena_bytes: int | None = None
    """Of the memory that the features land in; None: none is kept for them."""


AfterStep = Callable[[StepResult, StepTiming], bool]
"""Called between two optimizer steps, where the drafter stands still; False ends the line there."""


@dataclass(frozen=True)
class Prefetched:
    """From the prefetcher to the target."""

    batch: TokenBatch | None
    """None: this rank has no batch of the step."""
    ends_step: bool
    prefetch: StageTime


@dataclass(frozen=True)
class Forwarded:
    """From the target to the drafter."""

    features: TargetFeatures | None
    ends_step: bool
    prefetch: StageTime
    target: StageTime


@contextmanager
def named(stage: str, plan: BatchPlan, shape: tuple[int, ...] | None = None) -> Iterator[None]:
    """Whatever goes wrong inside says on which batch, in a note under its own traceback."""
    try:
        yield
    except Exception as error:
        padded = "" if shape is None else f", {' x '.join(map(str, shape))} padded tokens"
        error.add_note(
            f"in {stage}, on batch {plan.number} of epoch {plan.epoch}, step {plan.step}: bucket {plan.bucket} "
            f"index {plan.index}{padded}, rows {plan.sequence_rows.tolist()}"
        )
        raise


@contextmanager
def named_step(plans: Sequence[BatchPlan]) -> Iterator[None]:
    """Whatever goes wrong inside says on which optimizer step, with all its batches."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in drafter, at the end of {step_name(plans)}")
        raise


def step_name(plans: Sequence[BatchPlan]) -> str:
    """A step by its epoch, number and batches."""
    batches = "; ".join(f"bucket {p.bucket} index {p.index} rows {p.sequence_rows.tolist()}" for p in plans)
    return f"epoch {plans[0].epoch}, step {plans[0].step}: {batches}"


def use_threads(n_threads: int) -> None:
    """Intra-op threads of the calling thread. torch keeps one number for the process, which a thread takes over at its
    first parallel operation: asking for it first makes this thread's own number hold, whatever others set later."""
    torch.get_num_threads()
    torch.set_num_threads(n_threads)
