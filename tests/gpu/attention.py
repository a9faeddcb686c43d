"""Flex attention against the groups at a drafter's real shapes: how far apart, how fast, how often compiled.

On a CPU, where torch has no backward of the kernel, the same mask is read densely in its place.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from dflash_exp.bench.figures import Figure
from dflash_exp.drafter.flex import compiled_flex, padded_shape
from dflash_exp.drafter.loss import LossConfig, Reduction
from dflash_exp.drafter.model import Drafter, initialise
from dflash_exp.drafter.passes import GroupedPasses, PackedPasses, Passes, n_compiled
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import BatchPlan, TargetFeatures, TokenBatch


@dataclass(frozen=True)
class Blocks:
    """A drafter, and a batch of documents of one length with anchors spread over them."""

    shape: DrafterShape
    dtype: torch.dtype
    documents: int
    length: int
    anchors: int
    """Of each document."""
    slots_per_pass: int


BLOCKS_4B = Blocks(
    DrafterShape(2560, 9728, 32, 8, 128, 5, 16, 151_936, 151_669, (1, 9, 17, 25, 33), 1e6, 1e-6, 36),
    torch.bfloat16, documents=8, length=2048, anchors=512, slots_per_pass=16_384,
)  # fmt: skip
BLOCKS_TINY = Blocks(
    DrafterShape(32, 48, 4, 2, 16, 2, 4, 512, 511, (0, 2), 1e4, 1e-6, 4),
    torch.float32, documents=3, length=96, anchors=20, slots_per_pass=64,
)  # fmt: skip


def attention_figures(blocks: Blocks, device: torch.device) -> list[Figure]:
    """One batch's gradient under both, from the same weights."""
    before = n_compiled()
    flex_s, flex = accumulated(blocks, packed_for(blocks, device), device)
    n_graphs = n_compiled() - before
    grouped_s, grouped = accumulated(blocks, GroupedPasses(blocks.slots_per_pass), device)
    apart = float((flex - grouped).norm() / grouped.norm())
    within, most = (1e-5, 0) if device.type == "cpu" else (2e-2, 1)
    return [
        Figure("attention", "flex against grouped, gradient", apart, "of L2", within),
        Figure("attention", "graphs compiled for training", n_graphs, "", most),
        Figure("attention", "a batch's forward and backward, flex", 1000 * flex_s, "ms", None),
        Figure("attention", "a batch's forward and backward, grouped", 1000 * grouped_s, "ms", None),
        Figure("attention", "flex / grouped, seconds", flex_s / grouped_s, "", None),
    ]


def packed(most_tokens: int, slots: int, block_size: int, device: torch.device) -> PackedPasses:
    """Passes under flex; on a CPU with the dense reading."""
    flex = compiled_flex() if device.type == "cuda" else dense
    return PackedPasses(slots, padded_shape(most_tokens, min(slots // block_size, most_tokens), block_size), flex)


def packed_for(blocks: Blocks, device: torch.device) -> PackedPasses:
    return packed(blocks.documents * blocks.length, blocks.slots_per_pass, blocks.shape.block_size, device)


def dense(q_1NSE: Tensor, k_1MCE: Tensor, v_1MCE: Tensor, mask: BlockMask) -> Tensor:
    """Every score, by the mask's own rule."""
    seen = create_mask(mask.mask_mod, None, None, q_1NSE.shape[2], k_1MCE.shape[2], device=str(q_1NSE.device))
    return F.scaled_dot_product_attention(q_1NSE, k_1MCE, v_1MCE, attn_mask=seen, scale=1.0, enable_gqa=True)


def accumulated(blocks: Blocks, passes: Passes, device: torch.device) -> tuple[float, Tensor]:
    """Seconds of the third of three times, and the gradient of one."""
    step, features = step_of(blocks, passes, device), batch_of(blocks, device)
    seconds = 0.0
    for _ in range(3):  # the first compiles, the second fills the allocator
        step.discard()
        synchronized(device)
        started_s = time.perf_counter()
        step.accumulate(features)
        synchronized(device)
        seconds = time.perf_counter() - started_s
    return seconds, step.sums.gradient.clone()


def step_of(blocks: Blocks, passes: Passes, device: torch.device) -> DrafterStep:
    shape, draw = blocks.shape, torch.Generator().manual_seed(0)
    table_VH = torch.randn(shape.vocab_size, shape.hidden_size, generator=draw).mul_(0.02).to(blocks.dtype)
    drafter = Drafter(shape, table_VH, table_VH).to(device)
    initialise(drafter, seed=0)
    optimizer = torch.optim.SGD(drafter.parameters(), lr=0.0)
    return DrafterStep(drafter, LossConfig(Reduction.epoch, 7.0), optimizer, passes, 1.0)


def batch_of(blocks: Blocks, device: torch.device) -> TargetFeatures:
    """Random tokens and features, on the device the features alone."""
    draw = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(0, blocks.shape.vocab_size - 1, (blocks.documents, blocks.length), generator=draw)
    places_A = torch.linspace(1, blocks.length - 2, blocks.anchors).long().unique()
    batch = TokenBatch(
        plan=BatchPlan(0, 0, 0, 0, 0, np.arange(blocks.documents)),
        tokens_BT=tokens_BT,
        supervised_BT=torch.ones_like(tokens_BT, dtype=torch.bool),
        lengths_B=torch.full((blocks.documents,), blocks.length),
        anchor_row_A=torch.arange(blocks.documents).repeat_interleave(len(places_A)),
        anchor_position_A=places_A.repeat(blocks.documents),
    )
    width = len(blocks.shape.target_layer_ids) * blocks.shape.hidden_size
    features_PF = torch.randn(tokens_BT.numel(), width, generator=torch.Generator(device).manual_seed(2), device=device)
    return TargetFeatures(batch, features_PF.to(blocks.dtype))


def synchronized(device: torch.device) -> None:
    """What was launched is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
