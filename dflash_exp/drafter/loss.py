"""Weighted cross entropy of the blocks' slots, and what divides its gradient.

In: hidden states of slots 1..K-1, labels, which of them count. Out: the weighted *sum* of token losses and the counts
behind accuracy and the teacher-forced prefix. The head is frozen, so logits live for one chunk of rows: the input's
gradient is made in the same pass and the logits are dropped. 2485 rows x 2048 words would be 20 MB; a chunk is 4.
Hidden states and head may be in bf16: logits are then cast to fp32 before the softmax.
"""

# A anchors, S slots 1..K-1, N rows (supervised slots), H hidden, V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dflash_exp.drafter.anchors import slot_decay

CHUNK_LOGITS = 2**20
"""Logits alive at once, in elements, unless that is fewer than `CHUNK_ROWS` rows."""
CHUNK_ROWS = 128
"""Rows of a chunk at least: each product reads the whole head. CPU ms for 512 rows of 32768 words at 32, 64, 128, 256,
512 on one thread: 247, 215, 186, 197, 230."""


class Reduction(str, Enum):
    """What a step's weighted sum is divided by (design.md, invariant 1)."""

    epoch = "epoch"
    """One constant: the epoch's expected weight per step."""
    step = "step"
    """The step's own weight over all its batches and ranks (the paper)."""
    batch = "batch"
    """Mean of batch means: each batch by its own weight, then by the number of batches."""


@dataclass(frozen=True)
class LossConfig:
    reduction: Reduction
    gamma: float
    """Slot k weighs exp(-(k-1)/gamma); the paper: 7, 5, 4 for block size 16, 10, 8."""

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ValueError(f"loss.gamma must be > 0, got {self.gamma}; the paper has 4 for blocks of 8 and 7 for 16")


@dataclass(frozen=True)
class BatchSums:
    """Sums over a batch's blocks; add them up over batches and ranks, divide at the end.

    The tensors are 0-dimensional, on the model's device: reading one waits for the device, so read them once a step.
    """

    loss: Tensor
    """Sum of weight * cross entropy, fp32 at least."""
    correct: Tensor
    """Supervised slots whose argmax is the label, int64."""
    accepted: Tensor
    """Sum over blocks of the leading slots that are supervised and right, int64: not counting the bonus token."""
    weight: float
    """Sum of weights."""
    slots: int
    """Supervised slots."""
    anchors: int


def slot_weights(supervised_AS: Tensor, gamma: float) -> Tensor:
    """exp(-(k-1)/gamma) where supervised, 0 elsewhere; float64 [A, S]."""
    return supervised_AS * torch.from_numpy(slot_decay(supervised_AS.shape[1] + 1, gamma))


class Weighted(Protocol):
    """Sums that know their weight."""

    @property
    def weight(self) -> float: ...


def denominator(reduction: Reduction, batches: Sequence[Weighted], epoch_weight_per_step: float) -> float:
    """What a step's accumulated gradient is divided by, for all its batches, over all ranks.

    `epoch`: the constant handed in, whatever the step holds. Under `batch` a batch without weight is no batch.
    """
    if reduction is Reduction.epoch:
        return epoch_weight_per_step
    if reduction is Reduction.step:
        return sum(sums.weight for sums in batches)
    return float(sum(sums.weight > 0 for sums in batches))


@dataclass(frozen=True)
class RowLosses:
    """What the head says of some rows."""

    loss: Tensor
    """Sum of weight * cross entropy: differentiable in the hidden states only."""
    correct_N: Tensor
    """bool: no logit exceeds the label's; among equal ones, common in bf16, the first is the drafted one."""


def head_loss(hidden_NH: Tensor, head_VH: Tensor, label_N: Tensor, weight_N: Tensor) -> RowLosses:
    """Cross entropy through the frozen head in chunks: never more than `CHUNK_LOGITS` logits, or `CHUNK_ROWS` rows.

    Logits are cast to weight_N's dtype before the softmax, and the sum is kept in it: fp32 under bf16.
    """
    loss, correct_N = _HeadLoss.apply(hidden_NH, head_VH, label_N, weight_N, torch.is_grad_enabled())  # type: ignore
    return RowLosses(loss, correct_N)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden: Tensor, head: Tensor, label: Tensor, weight: Tensor, with_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        loss = weight.new_zeros(())
        correct = torch.empty_like(label, dtype=torch.bool)
        d_hidden = torch.empty_like(hidden) if with_gradient else hidden.new_empty(0)
        n_rows = max(CHUNK_ROWS, CHUNK_LOGITS // len(head))
        ties_are_common = head.dtype != weight.dtype
        for low in range(0, len(hidden), n_rows):
            rows = slice(low, low + n_rows)
            logits_nV = F.linear(hidden[rows], head).to(weight.dtype)
            at_label_n1 = logits_nV.gather(1, label[rows, None])
            # amax and a comparison: argmax alone took a fifth of this function's time.
            top_n1 = logits_nV.amax(-1, keepdim=True)
            correct[rows] = (at_label_n1 == top_n1).squeeze(1)
            if ties_are_common:
                correct[rows] &= logits_nV.argmax(-1) == label[rows]
            total_n1 = logits_nV.sub_(top_n1).exp_().sum(-1, keepdim=True)
            loss += torch.dot((total_n1.log() + top_n1 - at_label_n1).squeeze(1), weight[rows])
            if with_gradient:
                d_logits_nV = logits_nV.mul_(weight[rows, None] / total_n1)
                d_logits_nV.scatter_add_(1, label[rows, None], -weight[rows, None])
                torch.mm(d_logits_nV.to(head.dtype), head, out=d_hidden[rows])
        ctx.save_for_backward(d_hidden)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: FunctionCtx, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (d_hidden,) = ctx.saved_tensors  # type: ignore[attr-defined]
        # in fp32 under bf16: a scale rounded to 8 bits would be a weight that depends on the batch
        return (d_hidden.to(d_loss.dtype) * d_loss).to(d_hidden.dtype), None, None, None, None


def block_sums(hidden_ASH: Tensor, head_VH: Tensor, label_AS: Tensor, supervised_AS: Tensor, gamma: float) -> BatchSums:
    """Sums over blocks; rows that do not count never meet the head.

    hidden on the model's device; label (int64) and supervised (bool) on the CPU.
    """
    device = hidden_ASH.device
    wide = torch.promote_types(hidden_ASH.dtype, torch.float32)
    weight_AS = slot_weights(supervised_AS, gamma)
    row_N = torch.nonzero(supervised_AS.flatten()).flatten()
    row_here_N = row_N.to(device, non_blocking=True)
    rows = head_loss(
        hidden_ASH.flatten(0, 1).index_select(0, row_here_N),
        head_VH,
        label_AS.flatten()[row_N].to(device, non_blocking=True),
        weight_AS.flatten()[row_N].to(device, wide, non_blocking=True),
    )
    right_AS = torch.zeros(supervised_AS.shape, dtype=torch.int64, device=device)
    right_AS.view(-1)[row_here_N] = rows.correct_N.to(torch.int64)
    return BatchSums(
        loss=rows.loss,
        correct=right_AS.sum(),
        accepted=right_AS.cumprod(dim=1).sum(),
        weight=float(weight_AS.sum()),
        slots=len(row_N),
        anchors=len(supervised_AS),
    )
