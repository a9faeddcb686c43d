"""How a batch goes through the drafter: its context at once, its blocks so many slots at a time.

In: a batch's features and where its blocks lie. Out: the context's keys and values, and the blocks of each pass as the
model takes them. Two ways: contexts in a rectangle and groups of anchors, or all of it as one packed row.
"""

# P packed tokens, A anchors

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dflash_exp.drafter.flex import Flex, FlexAttention, PaddedShape, block_mask
from dflash_exp.drafter.layout import Anchors, BlockLayout, sent
from dflash_exp.drafter.model import Context, Drafter
from dflash_exp.messages import TargetFeatures


class Passes(Protocol):
    """What a step asks for; `slots` bounds the memory of a pass, and changes nothing else."""

    @property
    def slots(self) -> int: ...
    def context(self, drafter: Drafter, features: TargetFeatures, anchors: Anchors) -> Context: ...
    def layout(self, drafter: Drafter, anchors: Anchors, first: int, last: int) -> BlockLayout:
        """The blocks first .. last-1."""
        ...


@dataclass(frozen=True)
class GroupedPasses:
    """Contexts in a rectangle, up to their batch's last anchor."""

    slots: int

    def context(self, drafter: Drafter, features: TargetFeatures, anchors: Anchors) -> Context:
        """Keys and values [B, M, T, E] a layer."""
        features_PF = features.features_PF
        rows_BT = anchors.context_rows_BT.to(features_PF.device, non_blocking=True)
        features_BTF = features_PF.index_select(0, rows_BT.flatten()).view(*rows_BT.shape, features_PF.shape[1])
        return drafter.context(features_BTF)

    def layout(self, drafter: Drafter, anchors: Anchors, first: int, last: int) -> BlockLayout:
        """The blocks in groups of 12 anchors."""
        return anchors.slice(first, last, drafter.shape.n_kv_heads, drafter.fc.weight.device)


@dataclass(frozen=True)
class PackedPasses:
    """All sequences in one row, as the features come; whatever a pass holds, attention is padded to one shape."""

    slots: int
    shape: PaddedShape
    flex: Flex

    def context(self, drafter: Drafter, features: TargetFeatures, anchors: Anchors) -> Context:
        """Keys and values [1, M, P, E] a layer."""
        lengths_B = features.batch.lengths_B.cpu()
        n_tokens = len(features.features_PF)
        assert n_tokens <= self.shape.context, f"{n_tokens} tokens in a run of at most {self.shape.context} a batch"
        starts_B = torch.cumsum(lengths_B, 0) - lengths_B
        position_P = torch.arange(n_tokens) - starts_B.repeat_interleave(lengths_B)
        return drafter.context(features.features_PF[None], sent(position_P, features.features_PF.device))

    def layout(self, drafter: Drafter, anchors: Anchors, first: int, last: int) -> BlockLayout:
        """The blocks with the mask of what they see."""
        device = drafter.fc.weight.device
        position_A, start_A = anchors.position_A[first:last], anchors.start_A[first:last]
        return BlockLayout(
            token_A=sent(anchors.token_A[first:last], device),
            position_A=sent(position_A, device),
            attend=FlexAttention(self._mask(start_A, start_A + position_A, device), self.shape, self.flex),
        )

    def compile(self, drafter: Drafter) -> int:
        """Compile whatever the run will need, for training and for measuring: how many graphs that was.

        Call it with as many intra-op threads as the drafter will have: the number is part of what is compiled.
        """
        before = n_compiled()
        self._attend_nothing(drafter).sum().backward()
        with torch.no_grad():
            self._attend_nothing(drafter)
        return n_compiled() - before

    def _attend_nothing(self, drafter: Drafter) -> Tensor:
        """Zeros through the kernel, in the shape of every pass."""
        of, shape, like, trains = drafter.shape, self.shape, drafter.head_VH, torch.is_grad_enabled()
        sizes = [(of.n_heads, shape.slots), *[(of.n_kv_heads, shape.context + shape.slots)] * 2]
        q, k, v = (
            torch.zeros(1, n_heads, n, of.head_dim, dtype=like.dtype, device=like.device).requires_grad_(trains)
            for n_heads, n in sizes
        )
        none_A = torch.empty(0, dtype=torch.int64)
        return self.flex(q, k, v, self._mask(none_A, none_A, like.device))

    def _mask(self, begin_A: Tensor, end_A: Tensor, device: torch.device) -> BlockMask:
        """Of anchors on the CPU, as many as there are, on the device."""
        bounds_2A = torch.zeros(2, self.shape.anchors, dtype=torch.int32)
        bounds_2A[:, : len(begin_A)] = torch.stack([begin_A, end_A])
        begin_A, end_A = sent(bounds_2A, device).unbind()
        return block_mask(begin_A, end_A, self.shape)


def n_compiled() -> int:
    """Graphs that torch compiled in this process so far."""
    from torch._dynamo.utils import counters  # takes seconds, and who compiles nothing has no use for it

    return counters["stats"]["unique_graphs"]
