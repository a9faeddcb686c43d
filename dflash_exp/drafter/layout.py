"""Where a batch's context, blocks and labels lie: index arithmetic, on the CPU, before any model runs.

In: a `TokenBatch`. Out: rows of the packed features, the anchors' tokens and positions, labels and whether they count.
Sequences of a batch are of one bucket, so a rectangle of their contexts wastes little: never more than the batch's
padded tokens. Nothing beyond the last anchor is read. On CUDA keep the batch on the CPU and only the features on the
device: then nothing here waits for the device.
"""

# B sequences with anchors, T context tokens (longest), P packed tokens, A anchors, K block slots, S supervised slots,
# Q query slots, M key/value heads, R query heads of a key/value head, E head dim

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_exp.drafter.attention import GroupedAttention, group_anchors
from dflash_exp.messages import TokenBatch


@dataclass(frozen=True)
class Anchors:
    """The blocks of a batch, on the CPU; B counts the sequences that have any."""

    sequence_A: Tensor
    """int64, index into B, ascending."""
    position_A: Tensor
    """int64, position in the own sequence, ascending within a sequence."""
    start_A: Tensor
    """int64, row of the packed features at which the own sequence begins."""
    token_A: Tensor
    """int64, the clean token in slot 0."""
    label_AS: Tensor
    """int64 [A, K - 1], the token that slot k must predict; arbitrary where not supervised."""
    supervised_AS: Tensor
    """bool [A, K - 1], False beyond the sequence's end and where the data is not trained on."""
    context_rows_BT: Tensor
    """int64, row of the packed features; columns at or beyond a sequence's end repeat its last token."""

    def slice(self, first: int, last: int, n_kv_heads: int, device: torch.device) -> BlockLayout:
        """The blocks first .. last-1 as the model takes them, their contexts in a rectangle."""
        sequences = torch.bincount(self.sequence_A[first:last], minlength=len(self.context_rows_BT))
        position_A = self.position_A[first:last]
        return BlockLayout(
            token_A=sent(self.token_A[first:last], device),
            position_A=sent(position_A, device),
            attend=GroupedAttention(group_anchors(sequences, position_A, n_kv_heads, device)),
        )


class Attend(Protocol):
    """How the blocks of one pass see their context and themselves."""

    def __call__(self, q_AMQRE: Tensor, k_AMKE: Tensor, v_AMKE: Tensor, k_BMTE: Tensor, v_BMTE: Tensor) -> Tensor:
        """Queries are the last Q slots of their blocks, scaled by 1 / sqrt(E); keys and values of the blocks, then of
        the context, as `Passes.context` made it. Returns [A, M, Q, R, E]."""
        ...


@dataclass(frozen=True)
class BlockLayout:
    """Blocks that run in one pass, on the model's device."""

    token_A: Tensor
    position_A: Tensor
    attend: Attend


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on the device; the host does not wait for the copy."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def locate_anchors(batch: TokenBatch, block_size: int) -> Anchors:
    """Everything about a batch's blocks that follows from ids alone. A batch without anchors gives empty tensors."""
    row_A, position_A = batch.anchor_row_A.cpu(), batch.anchor_position_A.cpu()
    tokens_BT, lengths = batch.tokens_BT.cpu(), batch.lengths_B.cpu()
    rows_B, sequence_A = torch.unique_consecutive(row_A, return_inverse=True)
    ahead_AS = position_A[:, None] + torch.arange(1, block_size)
    inside_AS = ahead_AS < lengths[row_A, None]
    within_AS = torch.where(inside_AS, ahead_AS, position_A[:, None])
    starts = torch.cumsum(lengths, 0) - lengths
    context_T = torch.arange(int(position_A.max()) if len(position_A) else 0)
    return Anchors(
        sequence_A=sequence_A,
        position_A=position_A,
        start_A=starts[row_A],
        token_A=tokens_BT[row_A, position_A],
        label_AS=tokens_BT[row_A[:, None], within_AS],
        supervised_AS=inside_AS & batch.supervised_BT.cpu()[row_A[:, None], within_AS],
        context_rows_BT=starts[rows_B, None] + torch.minimum(context_T, lengths[rows_B, None] - 1),
    )
