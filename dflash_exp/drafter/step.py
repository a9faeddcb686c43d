"""One optimizer step of the drafter: batches add up weighted sums, then one division, one clip, one update.

In: features, batch by batch. Out: the sums of each batch and the step's gradient norm. The context's keys and values
are made once a batch; the blocks go through in passes of `drafter.slots_per_pass` slots, each forward and backward, so
memory is bounded whatever the bucket. Between `accumulate` and `finish` gradients are plain sums, all of them in
`DrafterStep.sums`: add ranks up there.
"""

# A anchors, S supervised slots, H hidden

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_exp.drafter.gradient import FlatGradient
from dflash_exp.drafter.layout import Anchors, locate_anchors
from dflash_exp.drafter.loss import BatchSums, LossConfig, Reduction, block_sums, slot_weights
from dflash_exp.drafter.model import Context, Drafter
from dflash_exp.drafter.movement import Movement
from dflash_exp.drafter.passes import Passes
from dflash_exp.drafter.sketch import Direction, GradientSketch
from dflash_exp.messages import TargetFeatures


class StepOptimizer(Protocol):
    """What the step asks of an optimizer; the learning rate is the caller's to set."""

    def step(self) -> object: ...


@dataclass(frozen=True)
class StepOutcome:
    grad_norm: float
    """Global L2 norm after the division, before the clip."""
    clipped: bool
    cosine: float | None
    """Of the gradient with that of the step before, from sketches; None for the first."""
    update_norm: float
    """L2 norm of how far the parameters moved, from a sample of them."""


class DrafterStep:
    """Accumulates the gradient of weighted sums over batches and turns it into one update."""

    def __init__(
        self, drafter: Drafter, loss: LossConfig, optimizer: StepOptimizer, passes: Passes, max_grad_norm: float,
        n_behind: int = 0,
    ) -> None:  # fmt: skip
        """`n_behind`: numbers that ranks add up along with the gradient, see `FlatGradient`."""
        if not max_grad_norm > 0:
            raise ValueError(f"optim.max_grad_norm must be > 0, got {max_grad_norm}; use 1.0, or inf for no clip")
        self.drafter, self.loss, self.optimizer, self.passes = drafter, loss, optimizer, passes
        self.anchors_per_pass = max(1, passes.slots // drafter.shape.block_size)
        self.max_grad_norm = max_grad_norm
        self.sums = FlatGradient(drafter.parameters(), n_behind)
        self.direction = Direction(GradientSketch(self.sums.gradient, seed=0))
        self.movement = Movement(drafter.parameters())

    def accumulate(self, features: TargetFeatures) -> BatchSums:
        """Add a batch's gradient: of its weighted sum (`epoch`, `step`) or of its weighted mean (`batch`)."""
        anchors = locate_anchors(features.batch, self.drafter.shape.block_size)
        weight = float(slot_weights(anchors.supervised_AS, self.loss.gamma).sum())
        if weight == 0:
            return _no_sums(self.drafter, len(anchors.position_A))
        scale = 1 / weight if self.loss.reduction is Reduction.batch else 1.0
        context = self.passes.context(self.drafter, features, anchors)
        leaves = [(_leaf(k), _leaf(v)) for k, v in context]
        parts = []
        for sums in self._passes(leaves, anchors):
            (sums.loss * scale).backward()
            parts.append(_detached(sums))
        outputs = [tensor for pair in context for tensor in pair]
        torch.autograd.backward(outputs, [_gradient(leaf).to(leaf.dtype) for pair in leaves for leaf in pair])
        return _added(parts)

    @torch.no_grad()
    def measure(self, features: TargetFeatures) -> BatchSums:
        """The sums that `accumulate` would return, without gradients: for the probe."""
        anchors = locate_anchors(features.batch, self.drafter.shape.block_size)
        if not bool(anchors.supervised_AS.any()):
            return _no_sums(self.drafter, len(anchors.position_A))
        return _added(list(self._passes(self.passes.context(self.drafter, features, anchors), anchors)))

    @torch.no_grad()
    def measure_each(self, features: TargetFeatures) -> list[BatchSums]:
        """The sums of every sequence of the batch, in its order; added up they are what `measure` returns."""
        row_A = features.batch.anchor_row_A.cpu()
        parts: list[list[BatchSums]] = [[] for _ in features.batch.lengths_B]
        if len(row_A):
            anchors = locate_anchors(features.batch, self.drafter.shape.block_size)
            context = self.passes.context(self.drafter, features, anchors)
            for first, hidden_ASH in self._hidden(context, anchors):
                rows, counts = row_A[first : first + len(hidden_ASH)].unique_consecutive(return_counts=True)
                for row, own_ASH in zip(rows.tolist(), hidden_ASH.split(counts.tolist()), strict=True):
                    parts[row].append(self._sums(own_ASH, anchors, first))
                    first += len(own_ASH)
        return [_added(own) if own else _no_sums(self.drafter, 0) for own in parts]

    def finish(self, denominator: float) -> StepOutcome:
        """Divide, clip by global norm, update, clear. `denominator`: see `loss.denominator`, summed over ranks.

        A step without any weight (denominator 0) has a gradient of zeros, and is divided by 1.
        Raises FloatingPointError, before any update, when the norm is not finite.
        """
        self.sums.gradient.div_(denominator if denominator > 0 else 1.0)
        norm = float(self.sums.norm())
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"the gradient must be finite, its norm is {norm}; parameters are as before this step:"
                " lower optim.lr or look at the batch's features"
            )
        cosine = self.direction.turn(self.sums.gradient)
        clipped = norm > self.max_grad_norm
        if clipped:
            self.sums.gradient.mul_(self.max_grad_norm / norm)
        self.movement.begin()
        self.optimizer.step()
        update_norm = float(self.movement.norm())
        self.discard()
        return StepOutcome(grad_norm=norm, clipped=clipped, cosine=cosine, update_norm=update_norm)

    def sketch(self, features: TargetFeatures) -> list[float]:
        """Of a batch's gradient, which is forgotten again; only between two steps."""
        self.accumulate(features)
        sketch = self.direction.sketch(self.sums.gradient).tolist()
        self.discard()
        return sketch

    def discard(self) -> None:
        """Forget the gradient."""
        self.sums.clear()

    def _passes(self, context: Context, anchors: Anchors) -> Iterator[BatchSums]:
        """The sums of `anchors_per_pass` blocks at a time."""
        return (self._sums(hidden_ASH, anchors, first) for first, hidden_ASH in self._hidden(context, anchors))

    def _hidden(self, context: Context, anchors: Anchors) -> Iterator[tuple[int, Tensor]]:
        """The hidden states of `anchors_per_pass` blocks at a time, and the first block's number."""
        for first in range(0, len(anchors.position_A), self.anchors_per_pass):
            blocks = self.passes.layout(self.drafter, anchors, first, first + self.anchors_per_pass)
            yield first, self.drafter(context, blocks)

    def _sums(self, hidden_ASH: Tensor, anchors: Anchors, first: int) -> BatchSums:
        """The sums of the blocks from `first` on whose hidden states these are."""
        last = first + len(hidden_ASH)
        labels_AS, supervised_AS = anchors.label_AS[first:last], anchors.supervised_AS[first:last]
        return block_sums(hidden_ASH, self.drafter.head_VH, labels_AS, supervised_AS, self.loss.gamma)


def _leaf(x: Tensor) -> Tensor:
    """The same numbers, whose gradient adds up in fp32 at least over the passes, whatever they are in."""
    leaf = x.detach().requires_grad_()
    leaf.grad_dtype = torch.promote_types(x.dtype, torch.float32)
    return leaf


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None, "every pass reads every layer's context"
    return leaf.grad


def _detached(sums: BatchSums) -> BatchSums:
    return BatchSums(sums.loss.detach(), sums.correct, sums.accepted, sums.weight, sums.slots, sums.anchors)


def _no_sums(drafter: Drafter, n_anchors: int) -> BatchSums:
    """The sums of a batch in which nothing counts."""
    weight = drafter.fc.weight
    count = torch.zeros((), dtype=torch.int64, device=weight.device)
    loss = torch.zeros((), dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    return BatchSums(loss, count, count.clone(), 0.0, 0, n_anchors)


def _added(parts: list[BatchSums]) -> BatchSums:
    return BatchSums(
        loss=torch.stack([part.loss for part in parts]).sum(),
        correct=torch.stack([part.correct for part in parts]).sum(),
        accepted=torch.stack([part.accepted for part in parts]).sum(),
        weight=sum(part.weight for part in parts),
        slots=sum(part.slots for part in parts),
        anchors=sum(part.anchors for part in parts),
    )
