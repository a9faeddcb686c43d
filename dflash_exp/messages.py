"""What one stage hands the next: BatchPlan, TokenBatch, TargetFeatures, StepResult, StepRecord.

Nothing here computes. A *plan* is ids, a *batch* is tensors, *features* are what the frozen target says of
a batch, a *record* is what one optimizer step leaves behind. torch is named for the types only, so that the
plan can be made (and `dflash-exp plan` can answer) without importing it.
"""

# B sequences, T padded tokens, P packed (real) tokens, F features (taps x hidden), A anchors

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import Event

Exchange = Callable[[Any], list[Any]]
"""Between steps: what every rank has to say, by rank, in words that JSON holds."""
ShareOut = Callable[[int, Callable[[int], Any]], list[Any]]
"""Between steps: does every item on one rank or another, and gives what came of all of them, in their order."""


@dataclass(frozen=True)
class BatchPlan:
    """One batch of the plan, as ids."""

    number: int
    """Position in the epoch's order: the item's sequence number in the line."""
    epoch: int
    step: int
    """Optimizer step within the epoch."""
    bucket: int
    index: int
    """Index of the batch among those of its bucket."""
    sequence_rows: np.ndarray
    """Rows of the store, int64, in the batch's own order."""


@dataclass(frozen=True)
class TokenBatch:
    """The tokens of one batch, right-padded, with the anchors of its sequences."""

    plan: BatchPlan
    tokens_BT: Tensor
    """int64, padded on the right; what stands in the padding never matters."""
    supervised_BT: Tensor
    """bool, False in the padding."""
    lengths_B: Tensor
    """int64, unpadded."""
    anchor_row_A: Tensor
    """int64, the sequence of each anchor, ascending."""
    anchor_position_A: Tensor
    """int64, the anchor's position in its own sequence, ascending within a sequence."""


class Mark(Protocol):
    """A point in a device's stream of work: a CUDA event."""

    def elapsed_time(self, other: Any, /) -> float:
        """Milliseconds from this one to another, both past."""
        ...

    def wait(self, stream: Any = None) -> None:
        """What is launched on the stream from now on comes after it."""
        ...


@dataclass(frozen=True)
class Launch:
    """What a stage launched on its device for one item."""

    host_s: float
    """Seconds of the launching."""
    began: Mark
    done: Mark
    ahead: bool
    """The device had not begun when all was launched."""


@dataclass(frozen=True)
class TargetFeatures:
    """A batch with the hidden states that the drafter is conditioned on."""

    batch: TokenBatch
    features_PF: Tensor
    """Tapped hidden states of the real tokens only, sequences one after the other, taps concatenated."""
    ready: Event | None = None
    """On CUDA: after it the features may be read."""
    launch: Launch | None = None
    """On CUDA: of the target's forward."""
    read_until: Callable[[Mark], None] | None = None
    """In memory that is used again: told after which mark that may be."""


@dataclass(frozen=True)
class LossSums:
    """Sums over some blocks, read off the device."""

    loss: float
    """Sum of weight x cross entropy."""
    weight: float
    correct: int
    """Supervised slots whose argmax is the label."""
    slots: int
    """Supervised slots."""
    accepted: int
    """Leading right slots, summed over the blocks; the bonus token is not among them."""
    anchors: int

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            self.loss + other.loss, self.weight + other.weight, self.correct + other.correct,
            self.slots + other.slots, self.accepted + other.accepted, self.anchors + other.anchors,
        )  # fmt: skip


def total(parts: Iterable[LossSums]) -> LossSums:
    """The sum of all parts, in their order."""
    return sum(parts, LossSums(0.0, 0.0, 0, 0, 0, 0))


def total_by_bucket(parts: Iterable[tuple[int, LossSums]]) -> dict[int, LossSums]:
    """The sums of each bucket's parts, buckets in the order of their first part."""
    by_bucket: dict[int, LossSums] = {}
    for bucket, sums in parts:
        by_bucket[bucket] = by_bucket[bucket] + sums if bucket in by_bucket else sums
    return by_bucket


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did: nothing in it depends on how fast it was."""

    epoch: int
    sums: LossSums
    by_bucket: Mapping[int, LossSums]
    buckets: list[int]
    """Bucket of each batch, in plan order."""
    tokens: int
    """Real tokens of the input."""
    padded_tokens: int
    short_step: bool
    """Fewer batches than batches_per_step: the epoch's last step."""
    lr: float
    grad_norm: float
    clipped: bool
    skipped: bool
    """The gradient was not finite and nothing was updated (`guard.non_finite=skip`)."""
    grad_cosine: float | None = None
    """Of the gradient with that of the step before; None for the first, and where the step was skipped."""
    update_norm: float | None = None
    """L2 norm of how far the parameters moved, from a sample of them; None where the step was skipped."""


class NonFinite(Enum):
    """What a step whose gradient is NaN or infinite does."""

    stop = "stop"
    """Fails the run."""
    skip = "skip"
    """Updates nothing, is counted and named."""


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage, summed over a step's batches."""

    busy_s: float
    wait_s: float
    """For its next item, or for room to hand on what it has."""
    host_bound_s: float | None = None
    """Of the busy ones: launching while the device had nothing queued. None where there is no such device."""

    def __add__(self, other: StageTime) -> StageTime:
        bound = [time_s for time_s in (self.host_bound_s, other.host_bound_s) if time_s is not None]
        return StageTime(self.busy_s + other.busy_s, self.wait_s + other.wait_s, sum(bound) if bound else None)


@dataclass(frozen=True)
class ChannelFill:
    """What a channel holds, out of what it may hold."""

    items: int
    capacity: int
    bytes: int


@dataclass(frozen=True)
class StepTiming:
    """Where the time of one optimizer step's batches went, stage by stage, and how long the step itself took."""

    prefetch: StageTime
    target: StageTime
    drafter: StageTime
    step_s: float
    """From the end of the step before to the end of this one."""
    channels: Mapping[str, ChannelFill]
    """By name, at the step's end; empty where there are none."""
    meeting_s: float
    """Until all ranks had come and their gradients were added up; no part of the drafter's time."""


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, as it is written to metrics.jsonl."""

    step: int
    """Optimizer steps done, from 1, over the whole run."""
    time_s: float
    """Seconds since the run began."""
    metrics: Mapping[str, float | int | bool | str | list[int] | None]
